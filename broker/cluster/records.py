"""The cluster's nodes in a MetadataStore, as values: what `metadata` names. Configs are
`config_records`'s, but for those that a topic is made with.

Every method blocks: called from a thread. Whoever changes something writes it here first. What
others have written in nonsense raises NonsenseError, or is left out with an error in the log where
the rest can do without: a broker's registration, a topic.
"""

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from types import NoneType
from typing import Any, NamedTuple
from uuid import UUID

from kafka.errors import (
    InconsistentClusterIdError,
    InvalidPartitionsError,
    NotControllerError,
)
from kafka.structs import TopicPartition

from broker.cluster import znodes
from broker.cluster.control import LEADER_DURING_DELETE, NO_LEADER, Partitions
from broker.cluster.metadata import (
    NOT_MADE,
    BrokerNode,
    LiveBroker,
    PartitionMetadata,
    TopicMetadata,
)
from broker.cluster.producer_id_blocks import claim_block
from broker.cluster.store import (
    ANY_VERSION,
    BadVersionError,
    Check,
    CommitTooLargeError,
    Create,
    Delete,
    MetadataStore,
    MetadataStoreError,
    Node,
    NodeExistsError,
    NoNodeError,
    NonsenseError,
    Operation,
    Result,
    SessionExpiredError,
    Set,
    StoreConnectionError,
)
from pyspark_kafkalog.protocol.uuid_text import decode_uuid

_log = logging.getLogger(__name__)

# So many partitions are made or forgotten by one commit: far less than a store refuses.
_AT_ONCE = 200
_LAST_NUMBER = 2**31 - 2
_LAST_PORT = 2**16 - 1


@dataclass(frozen=True, slots=True)
class StoredCluster:
    """What a controller finds when it takes over. `written`: which transaction wrote each
    partition's state; `deleted_topics`: those that are marked to be deleted."""

    brokers: dict[int, LiveBroker]
    topics: list[TopicMetadata]
    written: dict[TopicPartition, int]
    deleted_topics: list[str]


class TopicMade(NamedTuple):
    """Of the topic that has a name now: its id, and when it was made, by the store's clock (0 where
    that keeps no times)."""

    topic_id: UUID
    made_ms: int


class MetadataRecords:
    """The cluster's nodes in a MetadataStore, as values. Blocks.

    What is written is the controller's to write: each commit checks that no other controller was
    elected meanwhile, and raises NotControllerError if one was.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._controller_epoch = 0
        self._is_controller: Check | None = None

    def cluster_id(self) -> str | None:
        """None before the cluster's first start."""
        if not self._store.exists(znodes.CLUSTER_ID):
            return None
        value = self._store.get(znodes.CLUSTER_ID).value
        with _meaning(znodes.CLUSTER_ID):
            return str(znodes.load(value)["id"])

    def set_cluster_id(self, cluster_id: str) -> None:
        """Writes down the cluster's id at the first start.

        Raises InconsistentClusterIdError when this tree belongs to another cluster.
        """
        if self.cluster_id() is None:
            value = znodes.dump({"version": "1", "id": cluster_id})
            self._store.ensure(znodes.CLUSTER_ID, value)
        if (known := self.cluster_id()) != cluster_id:
            raise InconsistentClusterIdError(
                f"the metadata belongs to cluster {known}, the logs to {cluster_id}"
            )

    def prepare(self) -> None:
        """Makes the folders of the tree, and what else is there from a cluster's first start."""
        for path in znodes.FOLDERS:
            self._store.ensure(path)
        self._store.ensure(znodes.CONTROLLER_EPOCH, b"0")
        self._store.ensure(znodes.FEATURES, znodes.dump_no_features())

    def become_controller(self, node_id: int) -> None:
        """Elects this broker; raises NodeExistsError or BadVersionError where another one is, or
        was faster."""
        before = self._store.get(znodes.CONTROLLER_EPOCH)
        with _meaning(znodes.CONTROLLER_EPOCH):
            epoch, version = _number(before.value) + 1, before.version + 1
        elected_ms = time.time_ns() // 1_000_000
        try:
            self._store.commit(
                [
                    Create(znodes.CONTROLLER, znodes.dump_controller(node_id, elected_ms), True),
                    Set(znodes.CONTROLLER_EPOCH, b"%d" % epoch, before.version),
                ]
            )
        except SessionExpiredError:
            raise
        except StoreConnectionError:
            # It may be done all the same: then these two say so, and nobody else can have it so.
            is_this_one = self.controller_id() == node_id
            if not is_this_one or self._store.get(znodes.CONTROLLER_EPOCH).version != version:
                raise
        self._controller_epoch = epoch
        self._is_controller = Check(znodes.CONTROLLER_EPOCH, version)

    def resign(self) -> None:
        """Lets another broker be elected. Raises NotControllerError where one is."""
        self._commit([Delete(znodes.CONTROLLER, ANY_VERSION)])

    def controller_id(self) -> int | None:
        """The elected controller's; None where there is none."""
        try:
            value = self._store.get(znodes.CONTROLLER).value
        except NoNodeError:
            return None
        with _meaning(znodes.CONTROLLER):
            return int(znodes.load(value)["brokerid"])

    def _commit(self, operations: Sequence[Operation]) -> list[Result]:
        assert self._is_controller is not None, "elect this broker first"
        try:
            return self._store.commit([self._is_controller, *operations])[1:]
        except BadVersionError as error:
            self._check_is_controller(error)
            raise

    def _check_is_controller(self, error: BadVersionError) -> None:
        """Raises NotControllerError where `error` comes from another controller's election."""
        assert self._is_controller is not None
        if self._store.get(znodes.CONTROLLER_EPOCH).version != self._is_controller.version:
            raise NotControllerError(str(error)) from error

    @property
    def controller_epoch(self) -> int:
        """Which controller this broker was made last, counted from the cluster's first."""
        return self._controller_epoch

    def cluster(self) -> StoredCluster:
        """Everything that a controller needs to know."""
        written: dict[TopicPartition, int] = {}
        return StoredCluster(
            self.brokers(),
            self._topics(self.topic_names(), written),
            written,
            self.deleted_topics(),
        )

    def brokers(self) -> dict[int, LiveBroker]:
        """Those that are there, by their ids."""
        found = {}
        for name in self._store.children(znodes.BROKERS):
            with contextlib.suppress(NoNodeError):  # gone just now
                try:
                    broker = self._broker(name)
                except NonsenseError as error:
                    _log.error("broker.ignored reason=%r", str(error))
                else:
                    found[broker.node.node_id] = broker
        return found

    def _broker(self, name: str) -> LiveBroker:
        path = f"{znodes.BROKERS}/{name}"
        node = self._store.get(path)
        with _meaning(path):
            value = znodes.load(node.value)
            node_id, rack = _number(name), value.get("rack")
            host, port = value["host"], _number(value["port"])
            if str(node_id) != name or port > _LAST_PORT:
                raise ValueError(f"broker {name!r} at port {port}")
            if not isinstance(host, str) or not isinstance(rack, (str, NoneType)):
                raise TypeError("a host is a text, and so is a rack")
            return LiveBroker(BrokerNode(node_id, host, port, rack), node.czxid)

    def register(self, broker: BrokerNode) -> int:
        """Announces this broker: its epoch. NodeExistsError when its id is taken by a live one."""
        path = znodes.broker(broker.node_id)
        value = znodes.dump_broker(broker.host, broker.port, broker.rack, int(time.time() * 1000))
        try:
            # The answer to a Set tells the number of the transaction, as Kafka asks for it.
            _, node = self._store.commit([Create(path, ephemeral=True), Set(path, value, 0)])
        except SessionExpiredError:
            raise
        except StoreConnectionError:
            # It may be done all the same.
            if not self._store.exists(path) or self._store.get(path).value != value:
                raise
            node = self._store.get(path)
        assert isinstance(node, Node)
        return node.czxid

    def claim_producer_ids(self, node_id: int) -> range:
        """The next block of producer ids, for that broker. Raises
        CoordinatorLoadInProgressError."""
        return claim_block(self._store, node_id)

    def topic_names(self) -> list[str]:
        """Of every topic, those on their way out too."""
        return self._store.children(znodes.TOPICS)

    def topics(self, names: Iterable[str]) -> list[TopicMetadata]:
        """Those of them that are there."""
        return self._topics(names, {})

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        """Of these topics, 0 where there is no such; without those whose nodes are nonsense."""
        names = [*names]
        counts = {}
        nodes = self._store.get_each([znodes.topic(name) for name in names])
        for name, node in zip(names, nodes, strict=True):
            with _ignored("topic"):
                counts[name] = 0 if node is None else len(_topic_in(name, node).partitions)
        return counts

    def topic_made(self, name: str) -> TopicMade | None:
        """None where there is no such topic, or its node is nonsense."""
        try:
            node = self._store.get(znodes.topic(name))
            return TopicMade(_topic_in(name, node).topic_id, node.made_ms)
        except (NoNodeError, NonsenseError):
            return None

    def _topics(
        self, names: Iterable[str], written: dict[TopicPartition, int]
    ) -> list[TopicMetadata]:
        names = [*names]
        nodes = self._store.get_each([znodes.topic(name) for name in names])
        placed = []
        for name, node in zip(names, nodes, strict=True):
            if node is not None:  # else gone just now
                with _ignored("topic"):
                    placed.append(_topic_in(name, node))
        topic_partitions = [each for topic in placed for each in topic.topic_partitions()]
        states = iter(
            self._store.get_each([znodes.partition_state(*each) for each in topic_partitions])
        )
        found = []
        for topic in placed:
            own = {each: next(states) for each in topic.topic_partitions()}
            with _ignored("topic"):
                partitions = [
                    partition if node is None else _state_in(each, node, partition)
                    for (each, node), partition in zip(own.items(), topic.partitions, strict=True)
                ]
                found.append(replace(topic, partitions=tuple(partitions)))
                written |= {each: node.mzxid for each, node in own.items() if node is not None}
        return found

    def make_partitions(self, states: Partitions) -> None:
        """Writes down partitions that were NOT_MADE."""
        for name, topic_partitions in groupby(sorted(states), lambda each: each.topic):
            operations: list[Operation] = []
            if not self._store.exists(znodes.partitions(name)):
                operations.append(Create(znodes.partitions(name)))
            for number, topic_partition in enumerate(topic_partitions, 1):
                if not self._store.exists(znodes.partition(*topic_partition)):
                    operations.append(Create(znodes.partition(*topic_partition)))
                path = znodes.partition_state(*topic_partition)
                operations.append(Create(path, self._state(states[topic_partition])))
                if number % _AT_ONCE == 0:
                    self._commit(operations)
                    operations = []
            self._commit(operations)

    def create_topic(self, topic: TopicMetadata, configs: Mapping[str, str]) -> bool:
        """Writes the topic and its configs, all or nothing. False when it exists already. Raises
        InvalidPartitionsError where there are more partitions than the store takes at once."""
        name = topic.name
        path, value = znodes.topic_config(name), znodes.dump_config(configs)
        operations: list[Operation] = [
            Create(path, value),
            Create(znodes.topic(name), znodes.dump_topic(topic)),
            Create(znodes.partitions(name)),
            *self._creations(topic, 0),
        ]
        try:
            try:
                self._commit(operations)
            except NodeExistsError:
                if self._store.exists(znodes.topic(name)):
                    return False
                # Left by a broker of Apache Kafka's, which writes the configs first.
                self._commit([Set(path, value, ANY_VERSION), *operations[1:]])
        except NodeExistsError:
            return False
        except CommitTooLargeError as error:
            raise _too_many(len(topic.partitions), error) from error
        return True

    def add_partitions(self, topic: TopicMetadata, grown: TopicMetadata) -> None:
        """Writes the partitions that `grown` has and `topic` has not, all or none. Raises
        InvalidPartitionsError where they are more than the store takes at once."""
        present = len(topic.partitions)
        try:
            self._commit([_placement(grown), *self._creations(grown, present)])
        except CommitTooLargeError as error:
            raise _too_many(len(grown.partitions) - present, error) from error

    def remove_partitions(self, grown: TopicMetadata, topic: TopicMetadata) -> None:
        """Removes the partitions that `grown` has and `topic` has not, all or none."""
        operations: list[Operation] = [_placement(topic)]
        for index in range(len(topic.partitions), len(grown.partitions)):
            operations.append(Delete(znodes.partition_state(topic.name, index), ANY_VERSION))
            operations.append(Delete(znodes.partition(topic.name, index), ANY_VERSION))
        self._commit(operations)

    def write_states(self, states: Partitions) -> Partitions:
        """Writes partitions' states, each where nobody has changed it since it was read.

        Returns what stands there now: what was written, or what somebody else had.
        """
        assert self._is_controller is not None, "elect this broker first"
        done = self._store.commit_each(
            [
                [
                    self._is_controller,
                    Set(
                        znodes.partition_state(*topic_partition),
                        self._state(state),
                        state.partition_epoch,
                    ),
                ]
                for topic_partition, state in states.items()
            ]
        )
        return {
            topic_partition: self._written(topic_partition, state, result)
            for (topic_partition, state), result in zip(states.items(), done, strict=True)
        }

    def _written(
        self,
        topic_partition: TopicPartition,
        state: PartitionMetadata,
        result: list[Result] | MetadataStoreError,
    ) -> PartitionMetadata:
        if not isinstance(result, MetadataStoreError):
            return replace(state, partition_epoch=state.partition_epoch + 1)
        if not isinstance(result, BadVersionError):
            raise result
        self._check_is_controller(result)
        path = znodes.partition_state(*topic_partition)
        node = self._store.get(path)
        try:
            return _state_in(topic_partition, node, state)
        except NonsenseError as error:
            _log.error("state.replaced reason=%r", str(error))
            self._commit([Set(path, self._state(state), node.version)])
            return replace(state, partition_epoch=node.version + 1)

    def write_placements(self, topics: Sequence[TopicMetadata]) -> None:
        """Writes down who keeps the topics' partitions, and who is added and removed."""
        assert self._is_controller is not None, "elect this broker first"
        commits = [[self._is_controller, _placement(topic)] for topic in topics]
        for result in self._store.commit_each(commits):
            if isinstance(result, BadVersionError):
                self._check_is_controller(result)
            if isinstance(result, MetadataStoreError):
                raise result

    def reassignments_asked_for(self) -> dict[TopicPartition, list[int]] | None:
        """By the node of tools before Kafka 2.6; None where there is none. Raises ValueError."""
        return self._asked_for(znodes.REASSIGNMENTS)

    def elections_asked_for(self) -> list[TopicPartition] | None:
        """By the node of tools before Kafka 2.4; None where there is none. Raises ValueError."""
        asked = self._asked_for(znodes.PREFERRED_ELECTIONS)
        return None if asked is None else list(asked)

    def _asked_for(self, path: str) -> dict[TopicPartition, list[int]] | None:
        try:
            return znodes.load_request(self._store.get(path).value)
        except NoNodeError:
            return None

    def forget_request(self, path: str) -> None:
        """What the node asked for is done."""
        with contextlib.suppress(NoNodeError):
            self._commit([Delete(path, ANY_VERSION)])

    def tell_of_failed_logs(self, node_id: int) -> None:
        """By any broker, of itself: the controller is to ask it which."""
        event = znodes.dump_log_dir_event(node_id)
        self._store.commit([Create(znodes.log_dir_event(), event, sequence=True)])

    def brokers_with_failed_logs(self) -> dict[str, int | None]:
        """By the names of what they have said; None for what is nonsense."""
        found: dict[str, int | None] = {}
        for name in self._store.children(znodes.LOG_DIR_EVENTS):
            try:
                value = self._store.get(znodes.log_dir_event(name)).value
                found[name] = znodes.load_log_dir_event(value)
            except NoNodeError:
                continue  # another controller is at work
            except ValueError:
                found[name] = None
        return found

    def forget_log_dir_events(self, names: Iterable[str]) -> None:
        """Whoever said so was asked."""
        for name in names:
            with contextlib.suppress(NoNodeError):
                self._commit([Delete(znodes.log_dir_event(name), ANY_VERSION)])

    def mark_deleted(self, name: str) -> None:
        """From here on the topic is going, whatever happens to this broker."""
        path = znodes.deleted_topic(name)
        if not self._store.exists(path):
            self._commit([Create(path)])

    def deleted_topics(self) -> list[str]:
        """Topics that were marked and not forgotten yet."""
        return self._store.children(znodes.DELETED_TOPICS)

    def forget_topic(self, topic: TopicMetadata) -> None:
        """Removes the topic's nodes and, last, its mark. In between it is a topic of fewer
        partitions, which whoever finds the mark forgets in turn; what is gone already may be."""
        try:
            self._forget_whole(topic)
        except NoNodeError:
            self.forget_rest(topic.name)

    def forget_rest(self, name: str) -> None:
        """Removes what is there of a topic's nodes and its mark: Apache Kafka's controllers remove
        them one by one."""
        paths = [
            znodes.partitions(name),
            znodes.topic(name),
            znodes.topic_config(name),
            znodes.deleted_topic(name),
        ]
        with contextlib.suppress(NoNodeError):
            for index in map(int, self._store.children(paths[0])):
                paths[:0] = [znodes.partition_state(name, index), znodes.partition(name, index)]
        for path in paths:
            if self._store.exists(path):
                self._commit([Delete(path, ANY_VERSION)])

    def _forget_whole(self, topic: TopicMetadata) -> None:
        name = topic.name
        count = len(self._store.children(znodes.partitions(name)))
        topic = replace(topic, partitions=topic.partitions[:count])
        while len(topic.partitions) > _AT_ONCE:
            fewer = replace(topic, partitions=topic.partitions[:-_AT_ONCE])
            self.remove_partitions(topic, fewer)
            topic = fewer
        operations = []
        for index in range(len(topic.partitions)):
            operations.append(Delete(znodes.partition_state(name, index), ANY_VERSION))
            operations.append(Delete(znodes.partition(name, index), ANY_VERSION))
        for path in (
            znodes.partitions(name),
            znodes.topic(name),
            znodes.topic_config(name),
            znodes.deleted_topic(name),
        ):
            operations.append(Delete(path, ANY_VERSION))
        self._commit(operations)

    def _creations(self, topic: TopicMetadata, first: int) -> list[Operation]:
        """What makes the nodes of the partitions from `first` on."""
        added = dict(enumerate(topic.partitions[first:], first))
        return [
            *(Create(znodes.partition(topic.name, index)) for index in added),
            *(
                Create(znodes.partition_state(topic.name, index), self._state(partition))
                for index, partition in added.items()
            ),
        ]

    def _state(self, partition: PartitionMetadata) -> bytes:
        return znodes.dump_partition_state(partition, self._controller_epoch)


def _topic_in(name: str, node: Node) -> TopicMetadata:
    """Apache Kafka's brokers write a topic down alone, and leave its partitions to the controller:
    they are NOT_MADE until their states are there."""
    with _meaning(znodes.topic(name)):
        value = znodes.load(node.value)
        adding, removing = value.get("adding_replicas", {}), value.get("removing_replicas", {})
        keys = map(str, range(len(value["partitions"])))
        partitions = tuple(
            PartitionMetadata(
                *(_node_ids(value["partitions"][key]), NO_LEADER, -1, (), NOT_MADE),
                _node_ids(adding.get(key, ())),
                _node_ids(removing.get(key, ())),
            )
            for key in keys
        )
        if not partitions or not all(each.replicas for each in partitions):
            raise ValueError("a topic has partitions, and these have replicas")
        return TopicMetadata(name, decode_uuid(value["topic_id"]), partitions)


def _state_in(
    topic_partition: TopicPartition, node: Node, placed: PartitionMetadata
) -> PartitionMetadata:
    """`placed`: whose replicas it is about."""
    with _meaning(znodes.partition_state(*topic_partition)):
        state = znodes.load(node.value)
        return replace(
            placed,
            leader=_number(state["leader"], LEADER_DURING_DELETE),
            leader_epoch=_number(state["leader_epoch"]),
            isr=_node_ids(state["isr"]),
            partition_epoch=node.version,
            is_recovering=bool(state.get("leader_recovery_state", 0)),
        )


def _node_ids(value: object) -> tuple[int, ...]:
    """Raises TypeError and ValueError."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, int) for each in value):
        raise TypeError("ids of brokers are a list of numbers")
    return tuple(map(_number, value))


def _number(value: Any, least: int = 0) -> int:
    """One that a message to the brokers can hold, and the next one, too: else they would hear of
    nothing any more. Raises TypeError, ValueError and OverflowError."""
    number = int(value)
    if not least <= number <= _LAST_NUMBER:
        raise ValueError(f"{number} is not within {least} to {_LAST_NUMBER}")
    return number


@contextlib.contextmanager
def _meaning(path: str) -> Iterator[None]:
    """What goes wrong where the node's value is understood raises NonsenseError."""
    try:
        yield
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise NonsenseError(f"{path} holds nonsense: {error!r}") from error


@contextlib.contextmanager
def _ignored(what: str) -> Iterator[None]:
    """It is left out, and said why."""
    try:
        yield
    except NonsenseError as error:
        _log.error("%s.ignored reason=%r", what, str(error))


def _too_many(count: int, error: CommitTooLargeError) -> InvalidPartitionsError:
    fit = count * error.most // error.size
    return InvalidPartitionsError(
        f"{count} partitions are more than ZooKeeper takes at once: about {fit} fit; a topic can "
        "be given more after that"
    )


def _placement(topic: TopicMetadata) -> Operation:
    """What writes down which brokers keep the topic's partitions."""
    return Set(znodes.topic(topic.name), znodes.dump_topic(topic), ANY_VERSION)
