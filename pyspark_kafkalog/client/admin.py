"""Creates, describes, changes and deletes topics, and deletes their first records.

Functions of a Cluster; each asks the controller, waits out errors that pass within
`request.timeout.ms`, and raises the broker's own error (`kafka.errors`) with the broker's words
otherwise. A topic that was created is ready to be written when `create_topic` returns.

Blocking; one thread at a time.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NoError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    for_code,
)
from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import Cluster, PartitionMetadata, refusal
from pyspark_kafkalog.client.connection import Connection
from pyspark_kafkalog.client.deadline import Deadline
from pyspark_kafkalog.errors import BrokersUnreachableError, UnknownTopicError

BROKER_DEFAULT = -1

_CREATE_MIN_VERSION_WITH_DEFAULTS = 4
_CREATE_MAX_VERSION = 7
_DELETE_MAX_VERSION = 5
_DESCRIBE_CONFIGS_MAX_VERSION = 4
_CREATE_PARTITIONS_MAX_VERSION = 3
_ALTER_CONFIGS_MAX_VERSION = 1
_DELETE_RECORDS_MAX_VERSION = 2
_RESOURCE_TOPIC = 2
_SET, _DELETE = 0, 1
_SOURCE_TOPIC = 1


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic's partitions, in order, and its properties: those set for it, or all."""

    name: str
    partitions: tuple[PartitionMetadata, ...]
    configs: Mapping[str, str]


def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int = BROKER_DEFAULT,
    replication_factor: int = BROKER_DEFAULT,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Creates a topic and waits until all of its partitions have leaders.

    Raises TopicAlreadyExistsError, InvalidTopicError, InvalidPartitionsError,
    InvalidReplicationFactorError, InvalidConfigurationError, PolicyViolationError.
    """
    deadline = Deadline(cluster.config.request_timeout_ms)
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=[],
        configs=[
            CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key, value=value)
            for key, value in sorted((configs or {}).items())
        ],
    )

    def create(deadline: Deadline) -> None:
        connection = cluster.controller(deadline)
        if BROKER_DEFAULT in (partitions, replication_factor):
            connection.version(
                CreateTopicsRequest.API_KEY, _CREATE_MAX_VERSION, _CREATE_MIN_VERSION_WITH_DEFAULTS
            )
        request = CreateTopicsRequest(
            topics=[topic], timeout_ms=deadline.remaining_ms, validate_only=False
        )
        answer = sent.call(connection, request, deadline, _CREATE_MAX_VERSION)
        _check_complete([name], (result.name for result in answer.topics))
        code, message = answer.topics[0].error_code, answer.topics[0].error_message
        if sent.is_lost and for_code(code) is TopicAlreadyExistsError:
            message = (
                f"Topic {name} exists, and the answer to a first attempt to create it was lost: it "
                "is perhaps the one that was to be created. Describe it."
            )
        sent.check(cluster, code, message, name)

    sent = _Sent()
    sent.until_answered(cluster, create, deadline, f"topic {name} is created")
    _wait_for_leaders(cluster, name, deadline)


def describe_topics(
    cluster: Cluster, names: Iterable[str], all_configs: bool = False
) -> list[TopicDescription]:
    """What each topic is made of, in the order of names; raises UnknownTopicError."""
    wanted = list(names)
    partitions = cluster.describe(wanted)
    configs = _configs(cluster, wanted, all_configs)
    return [TopicDescription(name, tuple(partitions[name]), configs[name]) for name in wanted]


def topic_property(cluster: Cluster, name: str, key: str) -> str | None:
    """What a property of a topic is, set there or not; None where the brokers do not tell."""
    try:
        (result,) = _describe_configs(cluster, [name], [key])
    except KafkaError:
        return None
    if for_code(result.error_code) is not NoError:
        return None
    return next((str(config.value) for config in result.configs if config.name == key), None)


def delete_topics(cluster: Cluster, names: Iterable[str]) -> None:
    """Deletes topics; raises UnknownTopicError, TopicDeletionDisabledError."""

    def delete(name: str, sent: _Sent) -> Callable[[Deadline], None]:
        def attempt(deadline: Deadline) -> None:
            request = DeleteTopicsRequest(topic_names=[name], timeout_ms=deadline.remaining_ms)
            connection = cluster.controller(deadline)
            answer = sent.call(connection, request, deadline, _DELETE_MAX_VERSION)
            _check_complete([name], (result.name for result in answer.responses))
            try:
                sent.check(cluster, answer.responses[0].error_code, None, name)
            except UnknownTopicError:
                # It was there before: it is an attempt whose answer was lost that deleted it.
                if not sent.is_lost:
                    raise

        return attempt

    wanted = sorted(set(names))
    cluster.topics(wanted)
    for name in wanted:
        sent = _Sent()
        deadline = Deadline(cluster.config.request_timeout_ms)
        sent.until_answered(cluster, delete(name, sent), deadline, f"topic {name} is deleted")


def add_partitions(cluster: Cluster, name: str, total: int) -> None:
    """Lets a topic have `total` partitions, more than now, and waits until all have leaders.

    Raises UnknownTopicError, InvalidPartitionsError, PolicyViolationError.
    """
    deadline = Deadline(cluster.config.request_timeout_ms)
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=total, assignments=None)

    def add(deadline: Deadline) -> None:
        request = CreatePartitionsRequest(
            topics=[topic], timeout_ms=deadline.remaining_ms, validate_only=False
        )
        connection = cluster.controller(deadline)
        answer = sent.call(connection, request, deadline, _CREATE_PARTITIONS_MAX_VERSION)
        _check_complete([name], (result.name for result in answer.results))
        if sent.is_lost and len(cluster.topics([name])[name]) == total:
            return  # an attempt whose answer was lost has added them
        sent.check(cluster, answer.results[0].error_code, answer.results[0].error_message, name)

    sent = _Sent()
    cluster.topics([name])
    sent.until_answered(cluster, add, deadline, f"topic {name} has {total} partitions")
    _wait_for_leaders(cluster, name, deadline, total)


def alter_configs(
    cluster: Cluster, name: str, configs: Mapping[str, str], deleted: Iterable[str] = ()
) -> None:
    """Sets properties of a topic, and lets `deleted` ones be the brokers' again; others stay.

    Raises UnknownTopicError, InvalidConfigurationError, PolicyViolationError.
    """
    of_resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    changes: list[tuple[str, int, str | None]] = []
    changes += [(key, _SET, value) for key, value in sorted(configs.items())]
    changes += [(key, _DELETE, None) for key in sorted(set(deleted))]
    resource = of_resource(
        resource_type=_RESOURCE_TOPIC,
        resource_name=name,
        configs=[
            of_resource.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in changes
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)

    def alter(deadline: Deadline) -> None:
        connection = cluster.controller(deadline)
        answer = connection.call(request, deadline, _ALTER_CONFIGS_MAX_VERSION)
        _check_complete([name], (result.resource_name for result in answer.responses))
        _check(cluster, answer.responses[0].error_code, answer.responses[0].error_message, name)

    cluster.topics([name])
    cluster.retrying(alter, Deadline(cluster.config.request_timeout_ms))


def delete_records(
    cluster: Cluster,
    offsets: Mapping[TopicPartition, int],
    tell: Callable[[TopicPartition, int], None],
) -> dict[TopicPartition, Exception]:
    """Deletes what lies before an offset of each partition; tells where one begins now as soon as
    that is known, and returns why others were refused.

    These may be an UnknownTopicError, an OffsetOutOfRangeError beyond the end, a
    PolicyViolationError where the topic is compacted only. What brokers do not answer is raised.
    """
    begins: dict[TopicPartition, int] = {}
    refused: dict[TopicPartition, Exception] = {}

    def delete(deadline: Deadline) -> None:
        by_leader: dict[Connection, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        for topic_partition in sorted(offsets.keys() - begins.keys() - refused.keys()):
            partition = DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition(
                partition_index=topic_partition.partition, offset=offsets[topic_partition]
            )
            by_leader[cluster.leader(topic_partition, deadline)][topic_partition.topic].append(
                partition
            )
        for connection, topics in by_leader.items():
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsRequest.DeleteRecordsTopic(name=name, partitions=partitions)
                    for name, partitions in topics.items()
                ],
                timeout_ms=deadline.remaining_ms,
            )
            answer = connection.call(request, deadline, _DELETE_RECORDS_MAX_VERSION)
            for topic in answer.topics:
                for partition in topic.partitions:
                    topic_partition = TopicPartition(topic.name, partition.partition_index)
                    what = f"Partition {partition.partition_index} of topic {topic.name}"
                    try:
                        _check(cluster, partition.error_code, None, topic.name, what)
                    except (KafkaError, UnknownTopicError) as error:
                        if getattr(error, "retriable", False):
                            raise
                        refused[topic_partition] = error
                        continue
                    begins[topic_partition] = partition.low_watermark
                    tell(topic_partition, partition.low_watermark)

    if offsets:
        cluster.retrying(delete, Deadline(cluster.config.request_timeout_ms))
    return refused


class _Sent:
    """A change that is asked for until it is answered: an attempt may have made it already."""

    def __init__(self) -> None:
        self.is_lost = False

    def call(
        self, connection: Connection, request: Any, deadline: Deadline, max_version: int
    ) -> Any:
        try:
            return connection.call(request, deadline, max_version)
        except (KafkaConnectionError, KafkaTimeoutError):
            self.is_lost = True
            raise

    def check(self, cluster: Cluster, error_code: int, message: str | None, name: str) -> None:
        """As `_check`: a broker that was out of time has begun, and goes on."""
        self.is_lost |= for_code(error_code) is RequestTimedOutError
        _check(cluster, error_code, message, name)

    def until_answered(
        self, cluster: Cluster, change: Callable[[Deadline], None], deadline: Deadline, what: str
    ) -> None:
        """Raises BrokersUnreachableError where time is over, which says that it may be done yet."""
        try:
            cluster.retrying(change, deadline)
        except (BrokersUnreachableError, RequestTimedOutError) as error:
            if not self.is_lost:
                raise
            time_ms = cluster.config.request_timeout_ms
            raise BrokersUnreachableError(
                f"No broker said within kafka.request.timeout.ms={time_ms} that {what}. It may be "
                "so, or become so yet: look before you try again, and raise request.timeout.ms "
                "where it takes so long."
            ) from error


def _check_complete(asked: Iterable[str], answered: Iterable[str]) -> None:
    """Raises KafkaProtocolError where an answer is silent of a topic that it should be about."""
    left_out = set(asked).difference(answered)
    if left_out:
        raise KafkaProtocolError(f"A broker left topic {min(left_out)} out of its answer.")


def _check(
    cluster: Cluster, error_code: int, message: str | None, name: str, what: str = ""
) -> None:
    """`message` is the broker's; without it `what` the error is about: else topic `name`."""
    error = for_code(error_code)
    if error is NoError:
        return
    if error.errno == 3:
        raise UnknownTopicError(f"Topic {name} does not exist.")
    if error.retriable:
        cluster.distrust()
    raise error(message) if message else refusal(error, what or f"Topic {name}")


def _wait_for_leaders(cluster: Cluster, name: str, deadline: Deadline, total: int = 1) -> None:
    """A broker may not know yet what its controller has created: `total` partitions at least."""

    def look(deadline: Deadline) -> None:
        try:
            partitions = cluster.describe([name])[name]
        except UnknownTopicError:
            partitions = []
        if len(partitions) < total or any(partition.leader < 0 for partition in partitions):
            raise LeaderNotAvailableError(f"Topic {name} was created, but has no leaders yet.")

    cluster.retrying(look, deadline)


def _configs(cluster: Cluster, names: list[str], are_all: bool) -> dict[str, dict[str, str]]:
    if not names:
        return {}
    found: dict[str, dict[str, str]] = {}
    for result in _describe_configs(cluster, names):
        _check(cluster, result.error_code, result.error_message, result.resource_name)
        found[result.resource_name] = {
            config.name: "[hidden]" if config.is_sensitive else config.value
            for config in result.configs
            if are_all or _is_topic_level(config)
        }
    return found


def _describe_configs(
    cluster: Cluster, names: list[str], keys: list[str] | None = None
) -> list[Any]:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=_RESOURCE_TOPIC, resource_name=name, configuration_keys=keys
            )
            for name in names
        ],
        include_synonyms=False,
        include_documentation=False,
    )
    answer = cluster.call(request, max_version=_DESCRIBE_CONFIGS_MAX_VERSION)
    _check_complete(names, (result.resource_name for result in answer.results))
    return list(answer.results)


def _is_topic_level(config: Any) -> bool:
    """Set on the topic itself; brokers before 1.1 said only whether it is a default."""
    if config.config_source is not None and config.config_source >= 0:
        return bool(config.config_source == _SOURCE_TOPIC)
    return not config.is_default
