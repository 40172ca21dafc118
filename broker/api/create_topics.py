"""CreateTopics (key 19), versions 0-7: makes topics, or only checks that they could be made.

Each topic succeeds or fails alone. The answer comes when the topics are served, or the request's
time is over: they are made all the same. Left out: creation quotas.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from kafka.errors import (
    BrokerResponseError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    PolicyViolationError,
)
from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse

from broker.api.contexts import ControllerContext
from broker.api.deadline import Deadline
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.api.topic_assignments import check_assignment
from broker.api.topic_names import check_no_collision, check_topic_name
from broker.cluster.metadata import TopicMetadata
from broker.config.describe import describe_topic
from broker.controller.placement import Assignment

# As Kafka's controller: more at once would hold up everything else.
MAX_PARTITIONS_PER_REQUEST = 10_000
_BROKER_DEFAULT = -1


class _Plan(NamedTuple):
    """A topic that may be made."""

    assignment: Assignment
    configs: Mapping[str, str]


async def handle(request: Request, context: ControllerContext) -> Response:
    wanted = request.decode(CreateTopicsRequest)
    deadline = Deadline(wanted.timeout_ms)
    times = Counter(topic.name for topic in wanted.topics or ())
    partition_count = 0
    results = []
    for name, topic in {topic.name: topic for topic in wanted.topics or ()}.items():
        await asyncio.sleep(0)  # thousands of topics: the other connections have their turn between
        try:
            if times[name] > 1:
                raise InvalidRequestError("Duplicate topic name.")
            plan = _plan(topic, context)
            partition_count += len(plan.assignment)
            if partition_count > MAX_PARTITIONS_PER_REQUEST:
                raise too_many()
            created = None
            if not wanted.validate_only:
                creating = context.controller.create_topic(name, *plan)
                created = await deadline.wait_for(creating)
        except BrokerResponseError as error:
            results.append(_failed(name, error))
        else:
            results.append(_created(name, plan, created, context))
    return CreateTopicsResponse(topics=results)


def too_many() -> PolicyViolationError:
    """What answers a request for more than MAX_PARTITIONS_PER_REQUEST."""
    return PolicyViolationError(
        f"A request makes at most {MAX_PARTITIONS_PER_REQUEST} partitions: make fewer, and add "
        "the others later."
    )


def _plan(topic: "CreateTopicsRequest.CreatableTopic", context: ControllerContext) -> _Plan:
    """Everything that can be wrong with a topic is found here. Raises BrokerResponseError."""
    check_topic_name(topic.name)
    context.controller.check_absent(topic.name)
    check_no_collision(topic.name, (other.name for other in context.metadata.topics()))
    if topic.assignments:
        assignment = _manual_assignment(topic, context)
    else:
        partition_count = _partition_count(topic.num_partitions, context)
        replication_factor = _replication_factor(topic.replication_factor, context)
        assignment = context.controller.place(partition_count, replication_factor)
    configs = _configs(topic)
    context.config.log_config(configs, strict=True)
    return _Plan(assignment, configs)


def _partition_count(wanted: int, context: ControllerContext) -> int:
    if wanted == _BROKER_DEFAULT:
        return context.config.num_partitions
    if wanted <= 0:
        raise InvalidPartitionsError(
            "Number of partitions was set to an invalid non-positive value."
        )
    if wanted > MAX_PARTITIONS_PER_REQUEST:
        raise too_many()
    return wanted


def _replication_factor(wanted: int, context: ControllerContext) -> int:
    factor = context.config.default_replication_factor if wanted == _BROKER_DEFAULT else wanted
    if factor <= 0:
        raise InvalidReplicationFactorError(
            "Replication factor was set to an invalid non-positive value."
        )
    return int(factor)


def _manual_assignment(
    topic: "CreateTopicsRequest.CreatableTopic", context: ControllerContext
) -> Assignment:
    """As the client wants it: brokers that are there, as many for each partition."""
    if topic.num_partitions != _BROKER_DEFAULT:
        raise InvalidRequestError(
            "A manual partition assignment was specified, but numPartitions was not set to -1."
        )
    if topic.replication_factor != _BROKER_DEFAULT:
        raise InvalidRequestError(
            "A manual partition assignment was specified, but replicationFactor was not set to -1."
        )
    assigned = {each.partition_index: tuple(each.broker_ids) for each in topic.assignments}
    if sorted(assigned) != list(range(len(topic.assignments))):
        raise InvalidReplicationAssignmentError(
            "partitions should be a consecutive 0-based integer sequence"
        )
    count = None
    for replicas in assigned.values():
        check_assignment(list(replicas), context, count)
        count = len(replicas)
    return [assigned[index] for index in range(len(assigned))]


def _configs(topic: "CreateTopicsRequest.CreatableTopic") -> Mapping[str, str]:
    configs = {}
    for config in topic.configs or ():
        if config.value is None:
            raise InvalidConfigurationError(f"Null value not supported for {config.name}")
        configs[config.name] = config.value
    return configs


def _created(
    name: str, plan: _Plan, created: TopicMetadata | None, context: ControllerContext
) -> object:
    """`created`: None where it was only to be checked."""
    entries = describe_topic(context.config, context.config.log_config(plan.configs))
    config_class = CreateTopicsResponse.CreatableTopicResult.CreatableTopicConfigs
    return CreateTopicsResponse.CreatableTopicResult(
        name=name,
        topic_id=None if created is None else created.topic_id,
        error_code=0,
        error_message=None,
        num_partitions=len(plan.assignment),
        replication_factor=len(plan.assignment[0]),
        configs=[
            config_class(
                name=entry.name,
                value=entry.value,
                read_only=entry.is_read_only,
                config_source=int(entry.source),
                is_sensitive=entry.is_sensitive,
            )
            for entry in entries
        ],
    )


def _failed(name: str, error: BrokerResponseError) -> object:
    code, message = wire_error(error)
    return CreateTopicsResponse.CreatableTopicResult(
        name=name,
        topic_id=None,
        error_code=code,
        error_message=message,
        num_partitions=-1,
        replication_factor=-1,
        configs=[],
    )


API = Api(key=19, min_version=0, max_version=7, handle=handle, context=ControllerContext)
