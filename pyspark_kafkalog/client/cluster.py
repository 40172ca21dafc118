"""A Kafka cluster as a client sees it: brokers, topics, partition leaders, offsets.

Owns the connections, one for each broker, and the metadata that says which broker leads a
partition. Questions are asked again while their error is one that passes (a leader moves, a broker
restarts), with growing pauses, until `request.timeout.ms` is over for the whole call. Whoever holds
a Connection from here may send ahead on it: answers are told apart by correlation id.

Blocking; one thread at a time; to be made anew in each process. Never creates a topic unless asked
to (`topics(..., create=True)`), never looks at records.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from types import TracebackType
from typing import Any, TypeVar
from uuid import UUID

from kafka.errors import (
    InvalidTopicError,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NoError,
    NotLeaderForPartitionError,
    OffsetNotAvailableError,
    UnknownError,
    UnknownTopicOrPartitionError,
    for_code,
)
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from kafka.structs import OffsetAndTimestamp, TopicPartition

from pyspark_kafkalog.client.config import ClientConfig, Isolation, address
from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.client.receive_buffers import ReceiveBuffers
from pyspark_kafkalog.client.transport import NobodyListensError
from pyspark_kafkalog.errors import (
    AuthenticationError,
    BrokersUnreachableError,
    InvalidTopicNameError,
    UnknownTopicError,
)

EARLIEST_LOCAL = -4
"""What lies below is in remote storage alone (KIP-405)."""
EARLIEST = -2
LATEST = -1

_METADATA_NO_AUTO_CREATE_VERSION = 4
_METADATA_MAX_VERSION = 12
_LIST_OFFSETS_MIN_VERSION = 1
_LIST_OFFSETS_MAX_VERSION = 8
_EARLIEST_LOCAL_VERSION = 8
_FIND_COORDINATOR_MAX_VERSION = 3
_GROUP = 0
_CREATION_TIMEOUT_MS = 10_000
_STALE_METADATA_MS = 5_000
"""How long a broker may deny a topic that it leads: one that has just started knows none yet."""
_LEADERLESS = (LeaderNotAvailableError, NotLeaderForPartitionError, OffsetNotAvailableError)
_WORD_MS = 2_000
"""How long one broker of several is waited for where others may know as much."""
_REFUSED_FOR_MS = 2_000
"""How long brokers that never answered may refuse where somebody waits: a restart takes less."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition as the cluster's metadata states it; `leader` is -1 while there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """One broker as the cluster's metadata names it; `rack` is None where it has none."""

    broker_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    """All that the cluster's metadata states. `cluster_id` is empty before Kafka 0.10.1; under
    KRaft `controller` is a broker that hands on what a controller is asked for."""

    cluster_id: str
    controller: int
    brokers: tuple[BrokerAddress, ...]
    topics: Mapping[str, Sequence[PartitionMetadata]]
    internal: Collection[str]

    @property
    def brokers_away(self) -> list[int]:
        """Those that are known by nothing but the replicas that they have."""
        partitions = (each for topic in self.topics.values() for each in topic)
        replicas = {replica for each in partitions for replica in each.replicas}
        return sorted(replicas - {broker.broker_id for broker in self.brokers})


@dataclass(slots=True)
class _Metadata:
    """What brokers have said of themselves and of topics, believed until `fresh_until`."""

    brokers: dict[int, tuple[str, int]] = field(default_factory=dict)
    racks: dict[int, str | None] = field(default_factory=dict)
    controller: int = -1
    cluster_id: str = ""
    topics: dict[str, list[PartitionMetadata]] = field(default_factory=dict)
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    errors: dict[str, type[KafkaError]] = field(default_factory=dict)
    internal: set[str] = field(default_factory=set)
    fresh_until: Deadline = field(default_factory=lambda: Deadline(0))

    @property
    def elections(self) -> int:
        """Of how many it tells: the more, the newer it is."""
        return sum(1 + each.leader_epoch for topic in self.topics.values() for each in topic)


class Cluster:
    """A client of one cluster; a context manager that closes its connections.

    Making one connects to nothing. Each method raises BrokersUnreachableError when no broker
    answers within `request.timeout.ms`, or none that leads what is asked about, and
    AuthenticationError when one refuses. With `fails_fast` the former is raised after
    _REFUSED_FOR_MS where no broker answered yet and every address refuses: a wrong address, most
    likely, and somebody waits. Java's and librdkafka's clients know no such thing; where a broker
    may be restarting, as below a running query, neither does this one.
    """

    def __init__(self, config: ClientConfig, fails_fast: bool = False) -> None:
        self.config = config
        self._fails_fast = fails_fast
        self._connections: dict[tuple[str, int], Connection] = {}
        self._buffers = ReceiveBuffers()
        self._has_lost_one = False
        self._metadata = _Metadata()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections; the cluster may be used again and connects anew."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close()

    def free_memory(self) -> None:
        """Lets go of what answers were received into: for a cluster that is kept for later."""
        self._buffers.clear()

    def __repr__(self) -> str:
        return f"Cluster({self.config.servers})"

    def topics(
        self, names: Iterable[str] | None = None, create: bool = False
    ) -> dict[str, list[int]]:
        """The partitions of each topic, sorted: of `names`, or of all that are not internal.

        Raises UnknownTopicError for a name that does not exist and InvalidTopicNameError for one
        that cannot. With `create` the brokers are asked to create it by their own defaults, if
        they allow that.
        """
        wanted = None if names is None else sorted(set(names))
        if wanted == []:
            return {}
        metadata = self._ask_metadata(wanted, create)
        found = metadata.topics if wanted is None else wanted
        return {
            name: [p.partition for p in metadata.topics[name]]
            for name in sorted(found)
            if wanted is not None or name not in metadata.internal
        }

    def describe(self, names: Iterable[str]) -> dict[str, list[PartitionMetadata]]:
        """Leaders, replicas and in-sync replicas of each partition; raises UnknownTopicError."""
        wanted = sorted(set(names))
        metadata = self._ask_metadata(wanted) if wanted else _Metadata()
        return {name: metadata.topics[name] for name in wanted}

    def overview(self) -> ClusterOverview:
        """Brokers and topics, internal ones too, as any broker knows them now."""
        metadata = self._ask_metadata(None)
        brokers = sorted(metadata.brokers.items())
        return ClusterOverview(
            metadata.cluster_id,
            metadata.controller,
            tuple(BrokerAddress(key, *server, metadata.racks.get(key)) for key, server in brokers),
            {name: metadata.topics[name] for name in sorted(metadata.topics)},
            frozenset(metadata.internal),
        )

    def refresh(self, topics: Iterable[str] | None = None) -> None:
        """Asks anew who leads the partitions of `topics` (None: of all that were asked before)."""
        self._ask_metadata(sorted(set(self._metadata.topics if topics is None else topics)))

    def ask_all(self, topics: Iterable[str] = ()) -> None:
        """Asks each known broker who leads the partitions of `topics`, and of those that were asked
        for before; the one that has heard of the newest elections is believed, and asked first from
        now on. To be called before records are missed: a leader that ZooKeeper has lost goes on
        answering reads as if it led still, with less than there is.

        Who does not answer within _WORD_MS is not heard. Raises nothing.
        """
        names = sorted({*topics, *self._metadata.topics})
        newest = 0
        asked: set[tuple[str, int]] = set()
        while left := [each for each in self._servers() if each not in asked]:
            server, *_ = left
            asked.add(server)
            with suppress(KafkaError, AuthenticationError):
                deadline = Deadline(min(_WORD_MS, self.config.request_timeout_ms))
                connection = self.connection_to(server, deadline)
                loaded = self._metadata_by(connection, names, deadline)
                if (known := loaded.elections) > newest:
                    newest = known
                    self._keep(loaded, names)
                    self._connections = {server: connection, **self._connections}

    def topic_id(self, topic: str) -> UUID | None:
        """The id of a topic as last heard of; None where no broker said one, as before Kafka 2.8.

        A topic that was deleted and created again under its name has another one (KIP-516).
        """
        return self._metadata.topic_ids.get(topic)

    def leader(
        self, topic_partition: TopicPartition, deadline: Deadline | None = None
    ) -> Connection:
        """An open connection to the partition's leader, waiting while there is none.

        Raises UnknownTopicError when topic or partition does not exist, which is believed only
        after _STALE_METADATA_MS: whoever asks here was told before that it does.
        """
        deadline = deadline or self._deadline()
        # Half of a short deadline, so that the last attempt still gets its answer.
        denied_until = deadline.part(min(_STALE_METADATA_MS, deadline.remaining_ms / 2))
        return self.retrying(lambda d: self._leader(topic_partition, d, denied_until), deadline)

    def replica(self, broker_id: int, deadline: Deadline) -> Connection:
        """A connection to the broker to which a leader sent its readers; one attempt."""
        if broker_id not in self._metadata.brokers:
            self.distrust()
            raise KafkaConnectionError(
                f"readers are sent to broker {broker_id}, which is not known"
            )
        return self._node(broker_id, deadline)

    def controller(self, deadline: Deadline | None = None) -> Connection:
        """A connection to the broker that creates and deletes topics."""

        def find(deadline: Deadline) -> Connection:
            if self._metadata.fresh_until.expired:
                self._load_metadata([], deadline)
            if self._metadata.controller not in self._metadata.brokers:
                return self.any_broker(deadline)
            return self._node(self._metadata.controller, deadline)

        return self.retrying(find, deadline or self._deadline())

    def coordinator(self, group_id: str, deadline: Deadline) -> Connection:
        """A connection to the broker that keeps a consumer group, asked for anew each time.

        One attempt, to be made inside of one that is `retrying`.
        """
        request = FindCoordinatorRequest(key=group_id, key_type=_GROUP)
        broker = self._any_broker(deadline)
        answer = broker.call(request, self.attempt(deadline), _FIND_COORDINATOR_MAX_VERSION)
        if answer.error_code:
            raise refusal(for_code(answer.error_code), f"coordinator of group {group_id}")
        return self.connection_to((answer.host, answer.port), deadline)

    def any_broker(self, deadline: Deadline | None = None) -> Connection:
        """A connection to whichever broker answers first: an open one, or known ones in turn."""
        return self.retrying(self._any_broker, deadline or self._deadline())

    def connection_to(self, server: tuple[str, int], deadline: Deadline) -> Connection:
        """An open connection to the broker at (host, port), a new one if need be; one attempt."""
        connection = self._connections.get(server)
        if connection is None or connection.closed:
            self._has_lost_one |= connection is not None
            connection = Connection(*server, self.config, self.attempt(deadline), self._buffers)
            self._connections[server] = connection
        return connection

    def brokers(self) -> list[tuple[str, int]]:
        """(host, port) of every broker that the cluster's metadata names."""
        if self._metadata.fresh_until.expired:
            self.refresh()
        return list(self._metadata.brokers.values())

    def list_offsets(
        self,
        partitions: Iterable[TopicPartition],
        timestamp: int,
        isolation: Isolation | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The offset in each partition for `timestamp`: EARLIEST, LATEST, or ms since the epoch.

        For a time it is the first record at or after it; a partition that has none is absent.
        LATEST is the high watermark, under `isolation.level` read_committed the last stable offset
        (`isolation` goes before it); it and EARLIEST are there for every partition. Raises
        UnknownTopicError as `leader` does, and IncompatibleBrokerVersion for EARLIEST_LOCAL where
        brokers know no remote storage.
        """
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        missing = set(partitions)
        whole = self._deadline()
        denied_until = whole.part(min(_STALE_METADATA_MS, whole.remaining_ms / 2))
        level = int(self.config.isolation_level if isolation is None else isolation)

        def ask(deadline: Deadline) -> None:
            error = self._list_offsets(missing, timestamp, level, found, deadline, denied_until)
            if error is not None:
                topics = sorted({each.topic for each in missing})
                self._metadata_of(topics, deadline, denied_until=denied_until)
                raise error

        if missing:
            self.retrying(ask, whole)
        return {each: found[each] for each in sorted(found) if found[each].offset >= 0}

    def call(self, message: Any, deadline: Deadline | None = None, max_version: int = 99) -> Any:
        """The answer of any broker to a `kafka.protocol` message that may be sent twice.

        Raises the error that the answer states as a whole (`kafka.errors`).
        """

        def ask(deadline: Deadline) -> Any:
            answer = self._any_broker(deadline).call(message, self.attempt(deadline), max_version)
            if error_code := getattr(answer, "error_code", 0):
                raise for_code(error_code)(type(message).__name__)
            return answer

        return self.retrying(ask, deadline or self._deadline())

    def forget(self, topic_partition: TopicPartition) -> None:
        """Declares the topic's metadata outdated: `leader` asks anew when it is next called."""
        self._metadata.topics.pop(topic_partition.topic, None)

    def retrying(self, attempt: Callable[[Deadline], T], deadline: Deadline) -> T:
        """Runs `attempt` until it succeeds, fails for good, or the deadline passes.

        Raises BrokersUnreachableError when the deadline passes without a broker to talk to. Where
        this process was suspended meanwhile, it has the whole time once more.
        """
        is_renewed = False
        pause_ms = self.config.retry_backoff_ms
        earlier: KafkaError | None = None
        refused_until = deadline.part(_REFUSED_FOR_MS)
        while True:
            try:
                return attempt(deadline)
            except KafkaError as error:
                if not error.retriable:
                    raise
                if deadline.was_slept_through and not is_renewed:
                    deadline, is_renewed = Deadline(deadline.timeout_ms), True
                if deadline.expired:
                    # The deadline cut this attempt short: the one before says more.
                    raise self._given_up(earlier or error) from error
                if self._is_refused(error) and refused_until.expired:
                    raise self._refused(_sentence(error)) from error
                earlier = error
            deadline.pause(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, self.config.retry_backoff_max_ms)

    def distrust(self) -> None:
        """Declares all metadata outdated, the controller's included."""
        self._metadata.fresh_until = Deadline(0)

    def resume(self, most_idle_s: float) -> bool:
        """For somebody else than who used it before: what was heard of topics is forgotten, and
        connections that are stale are closed (see `Connection.close_if_stale`).

        Whether every connection that was made since the last time, or is there from before, is
        open: the brokers are then those that they were.
        """
        self.distrust()
        self._metadata.topics.clear()
        self._metadata.topic_ids.clear()
        has_lost_one, self._has_lost_one = self._has_lost_one, False
        for server, connection in list(self._connections.items()):
            connection.close_if_stale(most_idle_s)
            if connection.closed:
                has_lost_one = True
                del self._connections[server]
        return not has_lost_one

    def _deadline(self) -> Deadline:
        return Deadline(self.config.request_timeout_ms)

    def attempt(self, deadline: Deadline) -> Deadline:
        """The part of `deadline` that one broker may use up before another is asked."""
        return deadline.part(self.config.socket_connection_setup_timeout_ms)

    def _is_refused(self, error: KafkaError) -> bool:
        """Whether no broker was ever heard of, and nobody waits for one that restarts."""
        heard_of = bool(self._metadata.brokers or self._connections)
        return self._fails_fast and not heard_of and isinstance(error, NobodyListensError)

    def _refused(self, why: str) -> BrokersUnreachableError:
        return BrokersUnreachableError(
            f"No broker runs at kafka.bootstrap.servers={self.config.servers}, or none was there "
            f"for {_REFUSED_FOR_MS} ms: {why}. Check the addresses, and that the brokers run."
        )

    def _given_up(self, error: KafkaError) -> Exception:
        if isinstance(error, KafkaConnectionError | KafkaTimeoutError):
            return self._unreachable(_sentence(error))
        if isinstance(error, _LEADERLESS):
            return BrokersUnreachableError(
                f"No broker of kafka.bootstrap.servers={self.config.servers} said it leads what "
                f"was asked about within kafka.request.timeout.ms={self.config.request_timeout_ms}"
                f": {type(error).__name__}, {_sentence(error)}. Check that all of them run, and "
                "try again."
            )
        given_up: Exception = error
        return given_up

    def _unreachable(self, why: str) -> BrokersUnreachableError:
        return BrokersUnreachableError(
            f"No broker of kafka.bootstrap.servers={self.config.servers} could be used within "
            f"kafka.request.timeout.ms={self.config.request_timeout_ms}: {why}. Check the "
            "addresses, that the brokers run, and kafka.security.protocol."
        )

    def _any_broker(self, deadline: Deadline) -> Connection:
        for connection in self._connections.values():
            if not connection.closed:
                return connection
        servers = self._servers()
        errors = []
        for tried, server in enumerate(servers):
            try:
                share_ms = deadline.remaining_s * 1000 / (len(servers) - tried)
                return self.connection_to(server, deadline.part(share_ms))
            except (KafkaConnectionError, KafkaTimeoutError, KafkaProtocolError) as error:
                errors.append(error)
        reasons = "; ".join(map(_sentence, errors))
        if all(isinstance(error, KafkaProtocolError) for error in errors):
            raise self._unreachable(reasons) from errors[0]
        if all(isinstance(error, NobodyListensError) for error in errors):
            raise NobodyListensError(reasons)
        raise KafkaConnectionError(reasons)

    def _servers(self) -> list[tuple[str, int]]:
        """All that are known."""
        known = chain(self.config.bootstrap_servers, self._metadata.brokers.values())
        return list(dict.fromkeys(known))

    def _node(self, node: int, deadline: Deadline) -> Connection:
        server = self._metadata.brokers[node]
        try:
            return self.connection_to(server, deadline)
        except (KafkaConnectionError, KafkaTimeoutError) as error:
            self.distrust()
            raise KafkaConnectionError(
                f"broker {node} advertises itself as {address(*server)}, but {_sentence(error)}"
            ) from error

    def _leader(
        self,
        topic_partition: TopicPartition,
        deadline: Deadline,
        denied_until: Deadline | None = None,
    ) -> Connection:
        if topic_partition.topic not in self._metadata.topics or self._metadata.fresh_until.expired:
            self._metadata_of([topic_partition.topic], deadline, denied_until=denied_until)
        partitions = self._metadata.topics[topic_partition.topic]
        metadata = _of_partition(partitions, topic_partition.partition)
        if metadata is not None:
            if metadata.leader in self._metadata.brokers:
                return self._node(metadata.leader, deadline)
            self.forget(topic_partition)
            raise LeaderNotAvailableError(f"{_name(topic_partition)} has no leader now.")
        if denied_until is not None and not denied_until.expired:
            self.forget(topic_partition)
            raise UnknownTopicOrPartitionError(f"{_name(topic_partition)} is not known now.")
        raise UnknownTopicError(
            f"Topic {topic_partition.topic} has no partition {topic_partition.partition}, "
            f"only {len(partitions)} partitions."
        )

    def _ask_metadata(self, names: list[str] | None, create: bool = False) -> _Metadata:
        """Metadata in which every one of `names` exists; raises UnknownTopicError."""
        denied_until = Deadline(_CREATION_TIMEOUT_MS if create else 0)
        try:
            return self.retrying(
                lambda deadline: self._metadata_of(names, deadline, create, denied_until),
                self._deadline(),
            )
        except UnknownTopicOrPartitionError as error:  # the whole time was no longer than that
            missing = set(names or ()).difference(self._metadata.topics)
            raise self._no_topic(min(missing, default="")) from error

    def _metadata_of(
        self,
        names: list[str] | None,
        deadline: Deadline,
        create: bool = False,
        denied_until: Deadline | None = None,
    ) -> _Metadata:
        """One attempt at `_ask_metadata`; a topic may be unknown until `denied_until`."""
        metadata = self._load_metadata(names, deadline, create)
        for name, error in metadata.errors.items() if names is not None else ():
            if error is InvalidTopicError:
                raise InvalidTopicNameError(
                    f"{name!r} cannot be the name of a topic. Use at most 249 of the characters "
                    "a-z A-Z 0-9 . _ and -."
                )
            is_unknown = issubclass(error, UnknownTopicOrPartitionError)
            if is_unknown and (denied_until is None or denied_until.expired):
                raise self._no_topic(name)
            raise refusal(error, f"topic {name}")
        return metadata

    def _no_topic(self, name: str) -> UnknownTopicError:
        return UnknownTopicError(
            f"Topic {name} does not exist in the cluster {self.config.servers}. Check its "
            "spelling, or create it first."
        )

    def _load_metadata(
        self, names: list[str] | None, deadline: Deadline, create: bool = False
    ) -> _Metadata:
        """One Metadata request to any broker; its answer is kept and returned.

        Raises KafkaProtocolError where it is silent of one of `names`, and LeaderNotAvailableError
        where it names no brokers: one that has just started knows of no topics then either.
        """
        loaded = self._metadata_by(self._any_broker(deadline), names, deadline, create)
        return self._keep(loaded, names)

    def _metadata_by(
        self,
        connection: Connection,
        names: list[str] | None,
        deadline: Deadline,
        create: bool = False,
    ) -> _Metadata:
        topics = (
            names
            if names is None
            else [MetadataRequest.MetadataRequestTopic(name=n) for n in names]
        )
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=create)
        connection.version(request.API_KEY, _METADATA_MAX_VERSION, _METADATA_NO_AUTO_CREATE_VERSION)
        answer = connection.call(request, self.attempt(deadline), _METADATA_MAX_VERSION)
        loaded = _read_metadata(answer)
        if not loaded.brokers:
            raise LeaderNotAvailableError(f"{connection.address} knows no brokers yet")
        left_out = set(names or ()) - loaded.topics.keys() - loaded.errors.keys()
        if left_out:
            raise KafkaProtocolError(
                f"{connection.address} left topic {min(left_out)} out of its metadata."
            )
        loaded.fresh_until = Deadline(self.config.metadata_max_age_ms)
        return loaded

    def _keep(self, loaded: _Metadata, names: list[str] | None) -> _Metadata:
        """Metadata of `names` (None: of all), beside what is known of others."""
        known = self._metadata.topics if names is not None else {}
        kept = {name: topic for name, topic in known.items() if name not in loaded.errors}
        loaded.topic_ids = self._metadata.topic_ids | loaded.topic_ids
        self._metadata = loaded
        answered, loaded.topics = loaded.topics, kept | loaded.topics
        return replace(loaded, topics=answered)

    def _list_offsets(
        self,
        missing: set[TopicPartition],
        timestamp: int,
        isolation_level: int,
        found: dict[TopicPartition, OffsetAndTimestamp],
        deadline: Deadline,
        denied_until: Deadline,
    ) -> KafkaError | None:
        """One round over the leaders of `missing`; moves answers to `found`, returns an error."""
        by_leader: dict[Connection, list[TopicPartition]] = defaultdict(list)
        for topic_partition in sorted(missing):
            by_leader[self._leader(topic_partition, deadline, denied_until)].append(topic_partition)
        failed: KafkaError | None = None
        is_local = timestamp == EARLIEST_LOCAL
        least_version = _EARLIEST_LOCAL_VERSION if is_local else _LIST_OFFSETS_MIN_VERSION
        for connection, topic_partitions in by_leader.items():
            request = _offsets_request(topic_partitions, timestamp, isolation_level, deadline)
            connection.version(request.API_KEY, _LIST_OFFSETS_MAX_VERSION, least_version)
            answer = connection.call(request, self.attempt(deadline), _LIST_OFFSETS_MAX_VERSION)
            for topic in answer.topics:
                for p in topic.partitions:
                    topic_partition = TopicPartition(topic.name, p.partition_index)
                    error = read_error(p.error_code)
                    if error is NoError and p.offset < 0 and timestamp < 0:
                        # Both ends are somewhere: a leader that says neither has yet to learn them.
                        error = OffsetNotAvailableError
                    if error is NoError:
                        found[topic_partition] = OffsetAndTimestamp(
                            p.offset, p.timestamp, p.leader_epoch
                        )
                        missing.discard(topic_partition)
                    else:
                        failed = error(f"offsets of {_name(topic_partition)}{_hint(error)}")
            left_out = missing.intersection(topic_partitions)
            if left_out and failed is None:
                raise KafkaProtocolError(
                    f"{connection.address} left {_name(min(left_out))} out of its offsets."
                )
        return failed


class BrokerFailedError(UnknownError):  # type: ignore[misc]
    """UNKNOWN_SERVER_ERROR of a partition that is read: it passes, as for Kafka's own consumer,
    since brokers answer so where their remote storage (KIP-405) fails."""

    retriable = True
    hint = ": the broker failed, perhaps at its remote storage; the broker's log says why"


def read_error(error_code: int) -> type[KafkaError]:
    """What an error code says of a partition that is read."""
    error = for_code(error_code)
    return BrokerFailedError if error is UnknownError else error


def refusal(error: type[KafkaError], what: str) -> KafkaError:
    """The error of a broker that gave a code and no words: `what` it is about, and its meaning."""
    return error(f"{what}: {error.description or error.__name__}")


def _hint(error: type[KafkaError]) -> str:
    return BrokerFailedError.hint if error is BrokerFailedError else ""


def _sentence(error: KafkaError) -> str:
    """What an error says, without the class name that kafka-python puts before it."""
    return (", ".join(map(str, error.args)) or str(error)).rstrip(".")


def _read_metadata(answer: Any) -> _Metadata:
    metadata = _Metadata(
        brokers={broker.node_id: (broker.host, broker.port) for broker in answer.brokers},
        racks={broker.node_id: broker.rack for broker in answer.brokers},
        controller=answer.controller_id,
        cluster_id=answer.cluster_id or "",
    )
    for topic in answer.topics:
        error = for_code(topic.error_code)
        if error is not NoError:
            metadata.errors[topic.name] = error
            continue
        if topic.is_internal:
            metadata.internal.add(topic.name)
        if topic.topic_id is not None and topic.topic_id.int:
            metadata.topic_ids[topic.name] = topic.topic_id
        metadata.topics[topic.name] = sorted(
            (
                PartitionMetadata(
                    p.partition_index,
                    p.leader_id,
                    -1 if p.leader_epoch is None else p.leader_epoch,
                    tuple(p.replica_nodes),
                    tuple(p.isr_nodes),
                )
                for p in topic.partitions
            ),
            key=lambda p: p.partition,
        )
    return metadata


def _of_partition(partitions: Sequence[PartitionMetadata], number: int) -> PartitionMetadata | None:
    """In constant time where all are there, as each of thousands is looked up."""
    if 0 <= number < len(partitions) and partitions[number].partition == number:
        return partitions[number]
    return next((each for each in partitions if each.partition == number), None)


def _offsets_request(
    topic_partitions: list[TopicPartition], timestamp: int, isolation_level: int, deadline: Deadline
) -> Any:
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for topic_partition in topic_partitions:
        by_topic[topic_partition.topic].append(
            ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                partition_index=topic_partition.partition,
                current_leader_epoch=-1,
                timestamp=timestamp,
            )
        )
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ],
        timeout_ms=deadline.remaining_ms,
    )


def _name(topic_partition: TopicPartition) -> str:
    return f"{topic_partition.topic}-{topic_partition.partition}"
