"""Controller: which topics there are, who keeps their partitions and who leads them.

Owns: topics and brokers, for the broker that is elected. Each change has its turn (`turns`). A
crash at any instant leaves a topic whole or gone: it is created by one commit;
logs that are missing are made by whoever becomes leader; a deletion is marked first, and is carried
on by the next controller.
Called by: the event loop's thread; what blocks runs in the one metadata thread (`run_blocking`). A
change once begun goes on when its client leaves.
"""

import asyncio
import functools
import logging
import uuid
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from weakref import WeakValueDictionary

from kafka.errors import (
    BrokerIdNotRegisteredError,
    BrokerNotAvailableError,
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    InvalidPartitionsError,
    InvalidReplicationAssignmentError,
    InvalidUpdateVersionError,
    KafkaStorageError,
    NotControllerError,
    ReassignmentInProgressError,
    StaleBrokerEpochError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import TopicPartition

from broker.cluster.changes import RunBlocking
from broker.cluster.control import (
    LEADER_DURING_DELETE,
    NO_LEADER,
    AlterPartition,
    Failures,
    IsrAnswer,
    Partitions,
)
from broker.cluster.metadata import NOT_MADE, BrokerNode, PartitionMetadata, TopicMetadata
from broker.cluster.records import MetadataRecords
from broker.cluster.store import MetadataStoreError, NoNodeError, NotEmptyError
from broker.controller.channels import BrokerChannel, Channels, failures_of
from broker.controller.context import ControllerContext, ControllerFigures
from broker.controller.elections import (
    begun_at,
    elect_offline,
    elect_without,
    first_state,
    kept_by_replicas,
)
from broker.controller.failed_replicas import FailedReplicas
from broker.controller.isr_decisions import decide
from broker.controller.leaders import ElectionRules, Leaders
from broker.controller.moves import Moves
from broker.controller.placement import Assignment, place, place_more
from broker.controller.reassignments import is_moving
from broker.controller.turns import Turns

_log = logging.getLogger(__name__)

Configs = Mapping[str, str]

_CLEAN = ElectionRules()
_NOTHING: Mapping[int, Failures] = {}
_AGAIN_S = 5.0
"""After so long a deletion goes on that others have held up."""
_AWAY = (BrokerNotAvailableError, StaleBrokerEpochError)
"""What a channel says of a broker that is gone, and one that was started anew a moment ago: it is
seen to be back, and is told everything then."""


class Controller:
    """Topics and their partitions, while this broker is the elected controller."""

    def __init__(
        self,
        node_id: int,
        records: MetadataRecords,
        channel_to: Callable[[BrokerNode], BrokerChannel],
        run_blocking: RunBlocking,
        rules: ElectionRules = _CLEAN,
    ) -> None:
        self._node_id = node_id
        self._rules = rules
        self._records = records
        self._run_blocking = run_blocking
        self._context = ControllerContext()
        self._channels = Channels(node_id, self._context, channel_to, self._heard)
        self._turns = Turns(records, self._context, self._channels, run_blocking)
        self._changes = self._turns.changes
        self._adding: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By topic: held while partitions are added to it, until it is known whether they stay."""
        self.moves = Moves(self._turns)
        self.leaders = Leaders(self._turns, rules)
        self.failed_replicas = FailedReplicas(
            self._turns, self._elect_offline, self.leaders.read_rules
        )

    # Taking over.

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self._turns.is_active

    def figures(self) -> ControllerFigures:
        """Any thread."""
        return self._context.figures() if self.is_active else ControllerFigures()

    def on_doubt(self, function: Callable[[], None]) -> None:
        """Calls it where the store has not answered, or refused: nobody knows what stands there
        now, and `start` is to read it anew. Until then this broker is no controller."""
        self._turns.on_doubt = function

    async def start(self) -> None:
        """This broker was elected, or is in doubt: reads what is there, elects leaders where the
        last ones are gone, and tells the brokers. Returns when this broker has heard."""
        async with self._turns.lock:
            found = await self._run_blocking(self._records.cluster)
            self._context.forget()
            self._context.brokers.update(found.brokers)
            self._context.topics.update({topic.name: topic for topic in found.topics})
            marked = set(found.deleted_topics)
            self._context.deleting.update(marked & self._context.topics.keys())
            for name in sorted(marked - self._context.topics.keys()):
                await self._run_blocking(functools.partial(self._records.forget_rest, name))
            self._channels.controller_epoch = self._records.controller_epoch
            for broker in found.brokers.values():
                self._channels.open(broker)
            created = await self._make_partitions()
            await self.leaders.read_rules()
            await self._elect_where_leaders_are_gone(found.written)
            everything = dict(self._context.partitions())
            # Who is there comes first, as in `_tell_of_brokers`; and all topics with it: a broker
            # that has just started would say that there are none, and clients would give them up.
            self._channels.update_metadata(everything)
            answers = self._turns.announce(everything, created)
            self._turns.is_active = True
            self._turns.term += 1
        _log.info("controller.started epoch=%d", self._records.controller_epoch)
        own = {self._node_id: answers[self._node_id]} if self._node_id in answers else {}
        await failures_of(own, everything)
        self._go_on_deleting()
        if self.is_active:
            self.moves.take_over()
            self.leaders.take_over()

    def _heard(self, node_id: int, told: Partitions, failures: Failures) -> None:
        self.failed_replicas.heard(node_id, told, failures)

    async def look_at_requests(self) -> None:
        """What old tools ask for by nodes below /admin. Raises NotControllerError and
        MetadataStoreError."""
        await self.moves.look_at_node()
        await self.leaders.look_at_node()

    async def _elect_where_leaders_are_gone(self, written: Mapping[TopicPartition, int]) -> None:
        """And takes from the ISRs who is gone. Who was started anew since it was written down is
        gone, too: a follower may lack what it had, and what a leader lost in a crash, or as it came
        back from a copy, and writes again, is told apart by the epoch. So is who keeps the
        partition no more: the controller before was lost as it took a move back."""
        brokers = self._context.brokers
        elected = {}
        for topic_partition, state in self._context.partitions():
            if (since := written.get(topic_partition)) is None:
                continue  # made a moment ago
            restarted = {
                node_id
                for node_id in state.isr
                if node_id in brokers and brokers[node_id].epoch > since
            }
            strangers = set(state.isr).difference(state.replicas)
            leaving = restarted | strangers | set(state.isr).difference(brokers)
            others = elect_without(state, leaving, self._context.is_online)
            if state.leader not in brokers or state.leader in restarted | strangers:
                left = kept_by_replicas(state)
                elected[topic_partition] = others or self._begin_anew(topic_partition, left)
            elif others:
                elected[topic_partition] = others  # else nothing would be committed for a while
        await self._turns.write_states(elected)

    def _begin_anew(
        self, topic_partition: TopicPartition, state: PartitionMetadata
    ) -> PartitionMetadata:
        elected = self._elect_offline(topic_partition, state)
        clock = self._rules.epoch_clock
        return elected if clock is None else begun_at(elected, clock())

    async def resign(self) -> None:
        """Another broker is controller, or may be: says and knows nothing any more."""
        was_active, self._turns.is_active = self._turns.is_active, False
        self.leaders.resign()
        async with self._turns.lock:
            await self._channels.close()
            self._context.forget()
        if was_active:
            _log.info("controller.resigned")

    async def finish_changes(self) -> None:
        """Waits for those under way."""
        await self._changes.drain()

    async def stop(self) -> None:
        """Waits for the changes under way, and takes no more."""
        await self.finish_changes()
        await self._channels.close()

    # Topics.

    def check_absent(self, name: str) -> None:
        """Raises TopicAlreadyExistsError when `name` is taken, or just going."""
        self._turns.check_active()
        if name in self._context.topics:
            raise TopicAlreadyExistsError(f"Topic '{name}' already exists.")

    def topic(self, name: str) -> TopicMetadata:
        """As the controller knows it, before any broker is told. Raises NotControllerError and
        UnknownTopicOrPartitionError."""
        self._turns.check_active()
        return self._context.existing(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> TopicMetadata:
        """As `topic`. Raises UnknownTopicIdError."""
        self._turns.check_active()
        name = self._context.names_by_id().get(topic_id)
        if name is None or name in self._context.deleting:
            raise UnknownTopicIdError("This server does not host this topic ID.")
        return self._context.topics[name]

    def place(self, partition_count: int, replication_factor: int) -> Assignment:
        """Brokers for the replicas of a new topic. Raises InvalidReplicationFactorError."""
        self._turns.check_active()
        return place(self._context.racks, partition_count, replication_factor)

    async def place_and_create_topic(
        self, name: str, partition_count: int, replication_factor: int, configs: Configs
    ) -> TopicMetadata:
        """As `create_topic`. Raises InvalidReplicationFactorError, too."""
        assignment = self.place(partition_count, replication_factor)
        return await self.create_topic(name, assignment, configs)

    async def create_topic(
        self, name: str, assignment: Assignment, configs: Configs
    ) -> TopicMetadata:
        """Returns when the topic can be written to and read.

        Raises TopicAlreadyExistsError, and KafkaStorageError where it cannot be written down, or
        none of a partition's replicas can make a log: there is no topic then.
        """
        return await self._changes.finish(name, self._create_topic(name, assignment, configs))

    async def _create_topic(
        self, name: str, assignment: Assignment, configs: Configs
    ) -> TopicMetadata:
        async with self._turns.turn() as term:
            topic = TopicMetadata(name, uuid.uuid4(), self._first_states(assignment))
            if not await self._run_blocking(lambda: self._records.create_topic(topic, configs)):
                raise TopicAlreadyExistsError(f"Topic '{name}' already exists.")
            self._context.topics[name] = topic
            created = self._context.states(topic.topic_partitions())
            answers = self._turns.announce(created, created)
        failures = await failures_of(answers, created)
        error = _not_made(created, failures)
        if error is not None:
            await self._delete_topic(topic, term, failures)  # no space for its logs: no topic
            raise error
        _log.info("topic.created topic=%r partitions=%d", name, len(topic.partitions))
        return topic

    def _first_states(self, assignment: Assignment) -> tuple[PartitionMetadata, ...]:
        return tuple(first_state(replicas, self._context.is_online) for replicas in assignment)

    async def add_partitions(
        self, name: str, partition_count: int, assignment: Assignment | None = None
    ) -> None:
        """Lets the topic have `partition_count` partitions, more than it has: where `assignment`
        says, if given.

        Returns when they can be written to and read. Raises UnknownTopicOrPartitionError,
        InvalidPartitionsError, ReassignmentInProgressError, and KafkaStorageError as
        `create_topic`; they stay then where a broker that may have their logs was lost meanwhile.
        """
        await self._changes.finish(name, self._add_partitions(name, partition_count, assignment))

    async def _add_partitions(
        self, name: str, partition_count: int, assignment: Assignment | None
    ) -> None:
        adding = self._adding.setdefault(name, asyncio.Lock())
        async with adding:
            async with self._turns.turn() as term:
                topic = self._context.existing(name)
                grown = self._grown(topic, partition_count, assignment)
                await self._run_blocking(lambda: self._records.add_partitions(topic, grown))
                self._context.topics[name] = grown
                added = self._context.states(grown.topic_partitions()[len(topic.partitions) :])
                answers = self._turns.announce(added, added)
            failures = await failures_of(answers, added)
            error = _not_made(added, failures)
            if error is not None:
                # No space for the logs: no partitions either, and none after them until then. But
                # the log that a broker has made before it was lost would be another one's later.
                if not any(map(_is_away, failures.values())):
                    await self._take_back(grown, len(topic.partitions), term, failures)
                raise error
        _log.info("topic.grown topic=%r partitions=%d", name, len(grown.partitions))

    def _grown(
        self, topic: TopicMetadata, partition_count: int, assignment: Assignment | None
    ) -> TopicMetadata:
        if any(map(is_moving, topic.partitions)):
            raise ReassignmentInProgressError(
                f"A partition reassignment is in progress for the topic '{topic.name}'."
            )
        present = len(topic.partitions)
        if partition_count <= present:
            raise InvalidPartitionsError(f"Topic already has {present} partition(s).")
        additional = partition_count - present
        if assignment is None:
            assignment = place_more(self._context.racks, topic.partitions, additional)
        elif len(assignment) != additional:
            raise InvalidReplicationAssignmentError(
                f"Attempted to add {additional} additional partition(s), but only "
                f"{len(assignment)} assignment(s) were specified."
            )
        return replace(topic, partitions=topic.partitions + self._first_states(assignment))

    async def _take_back(
        self, grown: TopicMetadata, present: int, term: int, not_made: Mapping[int, Failures]
    ) -> None:
        async with self._turns.turn(term):
            topic = self._context.topics.get(grown.name)
            is_same = topic is not None and topic.topic_id == grown.topic_id
            if topic is None or not is_same or topic.name in self._context.deleting:
                return
            added = self._context.states(topic.topic_partitions()[present:])
            self._channels.update_metadata(_during_delete(added))
            made = _of_this_topic(added, not_made)
            answers = self._channels.stop_replicas(made, delete=True)
            fewer = replace(topic, partitions=topic.partitions[:present])
            await self._run_blocking(lambda: self._records.remove_partitions(topic, fewer))
            self._context.topics[topic.name] = fewer
        await failures_of(answers, added)

    async def delete_topic(self, topic: TopicMetadata) -> None:
        """Returns when the topic is gone for clients and for a restart.

        Raises UnknownTopicOrPartitionError where there is no such topic, or another of its name,
        NotControllerError where another controller goes on with it, and KafkaStorageError.
        """
        await self._changes.finish(topic.name, self._delete_topic(topic))

    async def _delete_topic(
        self,
        topic: TopicMetadata,
        term: int | None = None,
        not_made: Mapping[int, Failures] = _NOTHING,
    ) -> None:
        async with self._turns.turn(term) as term:
            if self._context.existing(topic.name).topic_id != topic.topic_id:
                raise UnknownTopicOrPartitionError(f"topic {topic.name!r} is another one now")
            await self._run_blocking(lambda: self._records.mark_deleted(topic.name))
            self._context.deleting.add(topic.name)
        await self._carry_out_deletion(topic.name, term, not_made)

    async def _carry_out_deletion(
        self, name: str, term: int | None = None, not_made: Mapping[int, Failures] = _NOTHING
    ) -> None:
        """Of a topic that is marked: clients hear first, then the replicas go, then the nodes. With
        a broker away that keeps one, it is gone for clients, and goes on when that is back. Another
        one may be under way, and done with it first: there may be a new topic of that name then.
        `not_made`: what brokers have said to its creation, where that has failed."""
        async with self._turns.turn(term) as term:
            if name not in self._context.deleting:
                return
            topic = self._context.topics[name]
            states = self._context.states(topic.topic_partitions())
            heard = self._channels.update_metadata(_during_delete(states))
            states = _of_this_topic(states, not_made)
            answers = self._channels.stop_replicas(states, delete=True)
            keepers = {node_id for state in states.values() for node_id in state.replicas}
            away = keepers - answers.keys()
        for node_id, failures in (await failures_of(answers, states)).items():
            if _is_away(failures):
                away.add(node_id)
                continue
            for error in failures.values():
                if not isinstance(error, NotControllerError):  # which goes on: the mark is there
                    _log.error(
                        "topic.not_deleted topic=%r broker=%d reason=%r", name, node_id, error
                    )
                raise error
        if away:
            _log.warning("topic.deletion_waits topic=%r brokers=%s", name, sorted(away))
            return
        # To those that keep nothing of it the next controller would have nothing to say.
        await failures_of({node_id: [answer] for node_id, answer in heard.items()}, ())
        async with self._turns.turn(term):
            now = self._context.topics.get(name)
            if now is None or now.topic_id != topic.topic_id:
                return
            try:
                await self._run_blocking(lambda: self._records.forget_topic(topic))
            except (NoNodeError, NotEmptyError) as error:
                # Somebody else is at its nodes. The mark stays, and it is tried again.
                asyncio.get_running_loop().call_later(_AGAIN_S, self._go_on_deleting)
                raise KafkaStorageError(f"{name} is not gone yet: {error}") from error
            del self._context.topics[name]
            self._context.deleting.discard(name)
        _log.info("topic.deleted topic=%r", name)

    def _go_on_deleting(self) -> None:
        """What was marked, and whose keepers are all there now."""
        for name in sorted(self._context.deleting):
            states = self._context.topics[name].partitions
            keepers = {node_id for state in states for node_id in state.replicas}
            if keepers <= self._context.brokers.keys():
                self._changes.begin(name, self._carry_out_deletion(name))

    async def topics_changed(self) -> None:
        """Topics may have been written down by others: Apache Kafka's brokers do so where a client
        asks for one that is to be made by that."""
        async with self._turns.turn():
            names = await self._run_blocking(self._records.topic_names)
            new = set(names) - self._context.topics.keys()
            if not new:
                return
            found = await self._run_blocking(lambda: self._records.topics(sorted(new)))
            self._context.topics.update({topic.name: topic for topic in found})
            created = await self._make_partitions()
            self._turns.announce(created, created)
            _log.info("topic.found topics=%s", [topic.name for topic in found])

    async def _make_partitions(self) -> Partitions:
        """Those of topics that were written down without them."""
        new = {
            topic_partition: first_state(state.replicas, self._context.is_online)
            for topic_partition, state in self._context.partitions()
            if state.partition_epoch == NOT_MADE
        }
        if new:
            await self._run_blocking(lambda: self._records.make_partitions(new))
            self._context.put(new)
        return new

    # Brokers.

    async def brokers_changed(self) -> None:
        """Some have registered, or have gone: reads which, has others lead what those led that are
        gone, and tells everybody. One that has registered anew is gone first."""
        async with self._turns.turn():
            found = await self._run_blocking(self._records.brokers)
            known = self._context.brokers
            gone = {
                node_id
                for node_id, broker in known.items()
                if node_id not in found or found[node_id].epoch != broker.epoch
            }
            new = {node_id for node_id in found if node_id not in known or node_id in gone}
            if not gone and not new:
                return
            _log.info("controller.brokers gone=%s new=%s", sorted(gone), sorted(new))
            await self._channels.close(gone)
            had_failed: set[TopicPartition] = set()
            for node_id in gone:
                del known[node_id]
                self._context.shutting_down.discard(node_id)
                had_failed |= self._context.failed.pop(node_id, set())
            changed = self._context.states(filter(self._context.state, had_failed))
            await self.leaders.read_rules()
            changed |= await self._turns.write_states(self._without(gone))
            for node_id in sorted(new):
                known[node_id] = found[node_id]
                self._channels.open(found[node_id])
            await self.leaders.read_rules()
            changed |= await self._turns.write_states(self._led_again(new))
            self._tell_of_brokers(new, changed)
        self._go_on_deleting()

    def _tell_of_brokers(self, new: Set[int], changed: Partitions) -> None:
        """First who is there: Apache Kafka's brokers follow nobody of whom they have not heard, and
        are not told again."""
        others = self._context.brokers.keys() - new
        if new and changed:
            self._channels.update_metadata({}, to=others)
        self._channels.lead_and_follow(changed, to=others)
        self._channels.update_metadata(changed, to=others)
        everything = dict(self._context.partitions())
        kept = {
            topic_partition: state
            for topic_partition, state in everything.items()
            if not new.isdisjoint(state.replicas)
        }
        self._channels.update_metadata(everything, to=new)
        if kept:
            self._channels.lead_and_follow(kept, to=new)
            self._channels.update_metadata(kept, to=new)

    def _without(self, gone: Set[int]) -> dict[TopicPartition, PartitionMetadata]:
        """The partitions that change as these brokers are gone."""
        changed = {}
        for topic_partition, state in self._context.partitions():
            if state.leader in gone:
                changed[topic_partition] = self._elect_offline(topic_partition, state)
            else:
                is_online = self._context.online(topic_partition)
                if (others := elect_without(state, gone, is_online)) is not None:
                    changed[topic_partition] = others
        return changed

    def _led_again(self, new: Set[int]) -> dict[TopicPartition, PartitionMetadata]:
        """The partitions that nobody led, and one of these brokers may lead."""
        return {
            topic_partition: elected
            for topic_partition, state in self._context.partitions()
            if state.leader == NO_LEADER and not new.isdisjoint(state.replicas)
            if (elected := self._elect_offline(topic_partition, state)).leader != NO_LEADER
        }

    def _elect_offline(
        self, topic_partition: TopicPartition, state: PartitionMetadata
    ) -> PartitionMetadata:
        is_online = self._context.online(topic_partition)
        elected = elect_offline(state, is_online)
        if elected.leader == NO_LEADER and self._rules.is_unclean(topic_partition.topic):
            return elect_offline(state, is_online, unclean=True)
        return elected

    async def shut_down(self, node_id: int, broker_epoch: int) -> list[TopicPartition]:
        """A broker is about to stop (ControlledShutdown): others lead and are in sync instead of
        it. The partitions that it still leads, as nobody else in sync can.

        Raises NotControllerError, BrokerNotAvailableError, StaleBrokerEpochError, and
        RequestTimedOutError where the store did not answer.
        """
        shutting_down = self._shut_down(node_id, broker_epoch)
        return await self._changes.finish(f"shutdown of {node_id}", shutting_down)

    async def _shut_down(self, node_id: int, broker_epoch: int) -> list[TopicPartition]:
        async with self._turns.turn():
            broker = self._context.brokers.get(node_id)
            if broker is None:
                raise BrokerNotAvailableError(f"broker {node_id} is not registered")
            if broker_epoch < broker.epoch:
                raise StaleBrokerEpochError(f"broker epoch is {broker.epoch}")
            self._context.shutting_down.add(node_id)
            leaving = {node_id}
            changed = await self._turns.write_states(
                {
                    topic_partition: others
                    for topic_partition, state in self._context.partitions()
                    if (
                        others := elect_without(
                            state, leaving, self._context.online(topic_partition)
                        )
                    )
                }
            )
            self._channels.lead_and_follow(changed, to=self._context.brokers.keys() - leaving)
            answers = self._channels.stop_replicas(changed, delete=False, to=leaving)
            self._channels.update_metadata(changed)
            remaining = [
                topic_partition
                for topic_partition, state in self._context.partitions()
                if state.leader == node_id and len(state.replicas) > 1
            ]
        await failures_of(answers, changed)
        return remaining

    async def allocate_producer_ids(self, node_id: int, broker_epoch: int) -> range:
        """A block of producer ids for a broker, which nobody else has.

        Raises NotControllerError, BrokerIdNotRegisteredError, StaleBrokerEpochError and
        CoordinatorLoadInProgressError.
        """
        async with self._turns.turn():
            broker = self._context.brokers.get(node_id)
            if broker is None:
                raise BrokerIdNotRegisteredError(f"broker {node_id} is not registered")
            if broker_epoch != broker.epoch:
                raise StaleBrokerEpochError(f"broker epoch is {broker.epoch}")
            try:
                return await self._run_blocking(lambda: self._records.claim_producer_ids(node_id))
            except MetadataStoreError as error:
                _log.error("producer_ids.not_claimed reason=%r", str(error))
                raise CoordinatorLoadInProgressError(str(error)) from error

    async def alter_partitions(self, asked: AlterPartition) -> list[IsrAnswer]:
        """A leader asks for other ISRs: what each partition is now, or why not, in their order.

        Raises NotControllerError, StaleBrokerEpochError, and RequestTimedOutError where the store
        did not answer.
        """
        return await self._changes.finish("isr", self._alter_partitions(asked))

    async def _alter_partitions(self, asked: AlterPartition) -> list[IsrAnswer]:
        async with self._turns.turn():
            broker = self._context.brokers.get(asked.broker_id)
            if broker is None or asked.broker_epoch < broker.epoch:
                raise StaleBrokerEpochError(f"broker {asked.broker_id} has another epoch")
            answers: list[IsrAnswer] = []
            wanted: dict[TopicPartition, PartitionMetadata] = {}
            numbers = {}
            unknown_to_it: dict[TopicPartition, PartitionMetadata] = {}
            names = self._context.names_by_id()
            for number, change in enumerate(asked.changes):
                try:
                    if change.topic_id not in names:
                        raise UnknownTopicIdError()
                    place = TopicPartition(names[change.topic_id], change.partition)
                    state = self._context.existing_state(place)
                    answers.append(state)
                    new = decide(change, asked.broker_id, state, self._context.online(place))
                except (FencedLeaderEpochError, InvalidUpdateVersionError) as error:
                    answers[number:] = [error]
                    unknown_to_it[place] = state
                except BrokerResponseError as error:
                    answers[number:] = [error]
                else:
                    if new is not None:
                        wanted[place], numbers[place] = new, number
            written = await self._turns.write_states(wanted)
            for place, state in written.items():
                if state.isr == wanted[place].isr:
                    answers[numbers[place]] = state
                else:
                    answers[numbers[place]] = InvalidUpdateVersionError()
                    unknown_to_it[place] = state
            # It waits for that now, and may have missed it: its own change, when the answer was.
            self._channels.lead_and_follow(unknown_to_it, to={asked.broker_id})
            self._channels.update_metadata(written)
        self.moves.go_on(written)
        return answers


def _not_made(created: Partitions, failures: Mapping[int, Failures]) -> BrokerResponseError | None:
    """Why one of the new partitions has no replica at all, and will have none."""
    for topic_partition, state in created.items():
        if state.leader == NO_LEADER:
            continue
        errors = [failures.get(node_id, {}).get(topic_partition) for node_id in state.isr]
        if not any(error is None or isinstance(error, _AWAY) for error in errors):
            return errors[0]
    return None


def _is_away(failures: Failures) -> bool:
    """By what a broker has, or has not, answered."""
    return any(isinstance(error, _AWAY) for error in failures.values())


def _of_this_topic(
    states: Partitions, not_made: Mapping[int, Failures]
) -> dict[TopicPartition, PartitionMetadata]:
    """Without the replicas whose brokers have the log of another topic of that name, as they have
    said: nobody has given that up."""
    return {
        place: replace(
            state,
            replicas=tuple(
                node_id
                for node_id in state.replicas
                if not isinstance(not_made.get(node_id, {}).get(place), InconsistentTopicIdError)
            ),
        )
        for place, state in states.items()
    }


def _during_delete(states: Partitions) -> Partitions:
    return {
        topic_partition: replace(state, leader=LEADER_DURING_DELETE)
        for topic_partition, state in states.items()
    }
