"""StateChanges: what this broker does when a controller tells it to lead, follow, stop or know.

Owns: the order of that: one request after the other, each partition by itself, logs made before
they are served and given up only after; nothing is led that is still fetched, and nothing fetched
that is still led. A request of a controller of the past is refused, as is one that was meant for
this broker before it registered anew, or that a controller sent by a connection before the one that
it has now. The log of a topic is given up by StopReplica alone. Where one of another topic of that
name is to be led or followed, it is INCONSISTENT_TOPIC_ID, as in Apache Kafka, or set aside if that
topic is known to be gone (`other_logs`).
Called by: the event loop's thread; what blocks runs in the one metadata thread (`run_blocking`).
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Protocol
from uuid import UUID

from kafka.errors import (
    BrokerResponseError,
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    KafkaStorageError,
    StaleBrokerEpochError,
    StaleControllerEpochError,
)
from kafka.structs import TopicPartition

from broker.cluster.cache import MetadataCache
from broker.cluster.changes import RunBlocking
from broker.cluster.control import (
    ControlRequest,
    Failures,
    LeaderAndIsr,
    Partitions,
    StopReplica,
    UpdateMetadata,
)
from broker.cluster.entity_configs import EntityConfigs
from broker.cluster.metadata import INTERNAL_TOPICS, BrokerNode, PartitionMetadata
from broker.replica.fetchers import ReplicaFetchers
from broker.replica.manager import ReplicaManager
from broker.replica.other_logs import OtherLogs

_log = logging.getLogger(__name__)

_NOT_TOLD = -1
_OWN = 0
"""No connection: this broker's own controller."""
_AT_ONCE = 64
"""Of thousands of partitions: between so many everybody else has a turn, in the metadata thread,
where a log costs milliseconds, and on the event loop."""


class Coordinators(Protocol):
    """Those of groups and transactions, whose state lies in partitions of internal topics."""

    def lead(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """This broker leads a partition of theirs."""
        ...

    def resign(self, topic_partition: TopicPartition) -> None:
        """This broker leads a partition of theirs no more."""
        ...

    def topic_deleted(self, name: str) -> None:
        """Any topic is gone."""
        ...


class StateChanges:
    """Does what controllers ask of this broker."""

    def __init__(
        self,
        node_id: int,
        metadata: MetadataCache,
        topic_configs: EntityConfigs,
        replicas: ReplicaManager,
        fetchers: ReplicaFetchers,
        run_blocking: RunBlocking,
        coordinators: Coordinators,
        other_logs: OtherLogs,
    ) -> None:
        self.broker_epoch = 0
        """Of this broker's registration."""
        self._is_registered = asyncio.Event()
        self._has_session = False
        self._told_epoch = _NOT_TOLD
        """As which this broker was told last what it leads."""
        self._informed = _NOT_TOLD, _NOT_TOLD
        """As which it was told last what topics there are, and by which controller."""
        self._node_id = node_id
        self._metadata = metadata
        self._topic_configs = topic_configs
        self._replicas = replicas
        self._fetchers = fetchers
        self._run_blocking = run_blocking
        self._coordinators = coordinators
        self._other_logs = other_logs
        self._newly_led: dict[TopicPartition, int] = {}
        """Leader epochs of partitions whose coordinator does not know yet."""
        self._controller_epoch = 0
        self._connection = _OWN
        """By which its controller has said something last."""
        self._one_at_a_time = asyncio.Lock()
        self.has_heard = asyncio.Event()
        """Set when a controller has told what brokers and topics there are."""

    def registered(self, broker_epoch: int) -> None:
        """From now on what is meant for this broker is known from what was for the one before."""
        self.broker_epoch = broker_epoch
        if self._told_epoch != broker_epoch:
            # Epochs go back where ZooKeeper comes back from an older copy.
            self._told_epoch = _NOT_TOLD
        self._has_session = True
        self._look_whether_to_append()
        self._is_registered.set()

    def session_lost(self) -> None:
        """Others may lead what this broker leads: until it has registered anew, and was told after
        that what it leads, it takes no more records. What is said to it as it was before does not
        count, by a controller that does not know yet."""
        self._has_session = False
        self._look_whether_to_append()

    def _look_whether_to_append(self) -> None:
        is_told = self._told_epoch >= self.broker_epoch
        self._replicas.takes_appends = self._has_session and is_told

    async def obey(self, request: ControlRequest, connection: int = _OWN) -> Failures:
        """Does what is asked, when this broker is registered; the partitions where it failed.
        `connection`: the number of that by which it came.

        Raises StaleControllerEpochError for a controller of the past, and StaleBrokerEpochError for
        what is meant for this broker as it was before; and MetadataStoreError, where nothing was
        done: it is to be asked for again.
        """
        # A controller that has not seen yet that the broker before is gone goes on to tell it of
        # changes, alone; here they would be taken for all that there is.
        await self._is_registered.wait()
        async with self._one_at_a_time:
            stamp = request.stamp
            if stamp.broker_epoch < self.broker_epoch:
                raise StaleBrokerEpochError(f"broker epoch is {self.broker_epoch}")
            if stamp.controller_epoch < self._controller_epoch:
                raise StaleControllerEpochError(f"controller epoch is {self._controller_epoch}")
            if stamp.controller_epoch == self._controller_epoch and connection < self._connection:
                # It was sent again by a later one: this is from before what was said since.
                raise StaleControllerEpochError("its controller has a later connection")
            self._controller_epoch = stamp.controller_epoch
            self._connection = connection
            if isinstance(request, LeaderAndIsr):
                return await self._lead_and_follow(request)
            if isinstance(request, StopReplica):
                return await self._stop(request)
            return await self._update_metadata(request)

    async def _lead_and_follow(self, request: LeaderAndIsr) -> Failures:
        failures: dict[TopicPartition, BrokerResponseError] = {}
        changed = self._changed(request, failures)
        # What the store does not answer leaves everything as it is, until the request comes again.
        await self._run_blocking(lambda: self._read_configs(request, changed))
        if self._told_epoch != request.stamp.broker_epoch:
            await self._stop_all_but(request.partitions)
        await self._fetchers.remove(changed.keys())
        for some in _batches(changed):
            failures |= await self._run_blocking(partial(self._make_logs, request, some))
        await self._make_place(request, changed, failures)
        leaders = {leader.node_id: leader for leader in request.leaders}
        for at, (topic_partition, state) in enumerate(changed.items(), 1):
            if not at % _AT_ONCE:
                await asyncio.sleep(0)
            if (error := failures.get(topic_partition)) is not None:
                _log.error("log.not_made topic=%r partition=%d reason=%r", *topic_partition, error)
                # Of another topic of that name nothing was said.
                if not isinstance(error, InconsistentTopicIdError):
                    self._replicas.stop(topic_partition)
                    self._resign(topic_partition)
                continue
            topic_id = request.topic_ids[topic_partition.topic]
            if state.leader == self._node_id:
                self._lead(topic_partition, topic_id, state)
            else:
                self._follow(topic_partition, topic_id, state, leaders.get(state.leader))
        self._told_epoch = request.stamp.broker_epoch
        self._look_whether_to_append()
        return failures

    async def _stop_all_but(self, partitions: Partitions) -> None:
        """What a broker hears first after it has registered is about all that it keeps. What it
        kept before, others may keep instead, and nobody who was told to stop it could reach it."""
        others = self._replicas.high_watermarks().keys() - partitions.keys()
        await self._stop_serving(others)

    async def _stop_serving(self, places: Collection[TopicPartition]) -> None:
        """Their logs stay."""
        await self._fetchers.remove(places)
        for topic_partition in places:
            _log.info("replica.stopped topic=%r partition=%d", *topic_partition)
            self._replicas.stop(topic_partition)
            self._resign(topic_partition)

    def _changed(
        self, request: LeaderAndIsr, failures: dict[TopicPartition, BrokerResponseError]
    ) -> dict[TopicPartition, PartitionMetadata]:
        """What this broker does not know yet; in `failures` what is older than what it does."""
        changed = {}
        for topic_partition, state in request.partitions.items():
            kept = self._replicas.kept(topic_partition)
            if kept is None:
                changed[topic_partition] = state
            elif kept.topic_id != request.topic_ids[topic_partition.topic]:
                _log.error("replica.of_other_topic topic=%r partition=%d", *topic_partition)
                failures[topic_partition] = InconsistentTopicIdError()
            elif state.leader_epoch < kept.leader_epoch:
                failures[topic_partition] = StaleControllerEpochError()
            elif state.partition_epoch >= kept.partition_epoch:
                changed[topic_partition] = state
        return changed

    def _lead(
        self, topic_partition: TopicPartition, topic_id: UUID, state: PartitionMetadata
    ) -> None:
        self._replicas.lead(topic_partition, topic_id, state)
        if topic_partition.topic in INTERNAL_TOPICS:
            self._newly_led[topic_partition] = state.leader_epoch

    def _follow(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        state: PartitionMetadata,
        leader: BrokerNode | None,
    ) -> None:
        """Where nobody leads it there is nobody to follow, until the controller says more."""
        self._resign(topic_partition)
        partition = self._replicas.follow(topic_partition, topic_id, state)
        if leader is not None:
            self._fetchers.add(partition, leader)

    def _resign(self, topic_partition: TopicPartition) -> None:
        if topic_partition.topic in INTERNAL_TOPICS:
            self._newly_led.pop(topic_partition, None)
            self._coordinators.resign(topic_partition)

    def _read_configs(self, request: LeaderAndIsr, changed: Partitions) -> None:
        """Of the topics whose logs are to be made. Blocks; raises MetadataStoreError."""
        missing = [each for each in changed if not self._replicas.has_log(each)]
        for name in {topic_partition.topic for topic_partition in (*request.created, *missing)}:
            self._topic_configs.refresh(name)

    def _make_logs(self, request: LeaderAndIsr, some: Collection[TopicPartition]) -> Failures:
        """Makes those that are missing, by their topics' configs. Blocks."""
        topic_ids = {each: request.topic_ids[each.topic] for each in some}
        return self._replicas.make_logs(topic_ids, request.created)

    async def _make_place(
        self,
        request: LeaderAndIsr,
        changed: dict[TopicPartition, PartitionMetadata],
        failures: dict[TopicPartition, BrokerResponseError],
    ) -> None:
        """For logs of topics that were made after those that are here. Not for what this broker is
        to lead, and others may have kept before: with an empty log it would have them cut theirs.
        """
        others = {
            place: request.topic_ids[place.topic]
            for place, error in failures.items()
            if isinstance(error, InconsistentTopicIdError)
            if place in request.created or request.partitions[place].leader != self._node_id
        }
        if not others:
            return
        older = await self._run_blocking(partial(self._other_logs.older_than, others))
        await self._stop_serving(older)
        made = await self._run_blocking(partial(self._make_logs_anew, request, older))
        for place in older:
            failures.pop(place)
            changed[place] = request.partitions[place]
        failures |= made

    def _make_logs_anew(
        self, request: LeaderAndIsr, older: Collection[TopicPartition]
    ) -> dict[TopicPartition, BrokerResponseError]:
        """Beside those of topics that are gone. Blocks."""
        failures: dict[TopicPartition, BrokerResponseError] = {}
        for topic in {place.topic for place in older}:
            self._topic_configs.refresh(topic)
        for place in older:
            try:
                self._other_logs.set_aside(place)
            except (OSError, KafkaStorageError) as error:
                failures[place] = KafkaStorageError(str(error))
        left = [place for place in older if place not in failures]
        return failures | dict(self._make_logs(request, left))

    async def _stop(self, request: StopReplica) -> Failures:
        failures: dict[TopicPartition, BrokerResponseError] = {}
        for topic_partition, stopped in request.partitions.items():
            kept = self._replicas.kept(topic_partition)
            if kept is not None and 0 <= stopped.leader_epoch < kept.leader_epoch:
                failures[topic_partition] = FencedLeaderEpochError()
        stopping = request.partitions.keys() - failures.keys()
        await self._fetchers.remove(stopping)
        for at, topic_partition in enumerate(stopping, 1):
            self._replicas.stop(topic_partition)
            self._resign(topic_partition)
            if not at % _AT_ONCE:
                await asyncio.sleep(0)
        going = [each for each in sorted(stopping) if request.partitions[each].delete]
        if not going:
            return failures
        for some in _batches(going):
            failures |= await self._run_blocking(partial(self._delete_logs, some))
        for name in {topic_partition.topic for topic_partition in going}:
            if self._metadata.topic(name) is None:
                self._topic_configs.remove(name)
        return failures

    def _delete_logs(self, going: Collection[TopicPartition]) -> Failures:
        """Those of the topics that are there now. Blocks."""
        failures: dict[TopicPartition, BrokerResponseError] = {}
        others = self._other_logs.of(going)
        for topic_partition in going:
            try:
                if topic_partition in others:
                    self._other_logs.set_aside(topic_partition)
                else:
                    self._replicas.delete_log(topic_partition)
            except (OSError, KafkaStorageError) as error:
                failures[topic_partition] = KafkaStorageError(str(error))
        return failures

    async def _update_metadata(self, request: UpdateMetadata) -> Failures:
        counts = await self._counted_meanwhile(request)
        await self._stop_serving(self._kept_by_others(request))
        self._informed = _informer(request)
        for name in self._metadata.cut(counts):
            self._coordinators.topic_deleted(name)
        for name in self._metadata.update(request):
            self._coordinators.topic_deleted(name)
            topic_partitions = (each for each in request.partitions if each.topic == name)
            # Else when the last log goes.
            if not any(map(self._replicas.has_log, topic_partitions)):
                self._topic_configs.remove(name)
        # Now that it is known how many partitions there are, and which of them has which key.
        newly_led, self._newly_led = self._newly_led, {}
        for topic_partition, leader_epoch in newly_led.items():
            self._coordinators.lead(topic_partition, leader_epoch)
        self.has_heard.set()
        return {}

    async def _counted_meanwhile(self, request: UpdateMetadata) -> dict[str, int]:
        """A controller's first word to a broker that has registered, or after its election, names
        all that there is. How many partitions the topics have that it does not name as a whole:
        while this broker had no session, or as the controller before was lost, nobody told it what
        was deleted or taken back, nor does anybody afterwards."""
        if self._informed == _informer(request):
            return {}
        names = {
            topic.name
            for topic in self._metadata.topics()
            if not request.partitions.keys() >= {*topic.topic_partitions()}
        }
        if not names:
            return {}
        return await self._run_blocking(partial(self._other_logs.partition_counts, names))

    def _kept_by_others(self, request: UpdateMetadata) -> list[TopicPartition]:
        """What has moved away while this broker was not there to be stopped. Of a broker that keeps
        nothing any more a controller has nothing else to tell."""
        return [
            place
            for place, state in request.partitions.items()
            if (kept := self._replicas.kept(place)) is not None
            and kept.topic_id == request.topic_ids[place.topic]
            and state.leader_epoch >= kept.leader_epoch
            and self._node_id not in state.replicas
        ]


def _informer(request: UpdateMetadata) -> tuple[int, int]:
    return request.stamp.broker_epoch, request.stamp.controller_epoch


def _batches(places: Iterable[TopicPartition]) -> Iterator[list[TopicPartition]]:
    rest = iter(places)
    while some := list(islice(rest, _AT_ONCE)):
        yield some
