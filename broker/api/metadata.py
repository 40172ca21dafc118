"""Metadata (key 3), versions 0-13: brokers, topics, and who leads each partition.

A topic that is named and missing is created when `auto.create.topics.enable` and the request allow
it; the answer comes when it can be produced to, or after 5 s: a broker that is to keep it may not
answer, and what the client asks for next waits behind this. Version 13's error code for the whole
answer is never set: no client needs to bootstrap again (KIP-1102). A broker that no controller has
told who is there answers with nothing at all, which clients take for no answer; beside a topic,
whatever is said of it, librdkafka takes no brokers for all that there are, and may never find them
again.
"""

from kafka.errors import (
    BrokerNotAvailableError,
    BrokerResponseError,
    InvalidRequestError,
    LeaderNotAvailableError,
    NotControllerError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from broker.api.contexts import MetadataContext
from broker.api.create_topics import MAX_PARTITIONS_PER_REQUEST
from broker.api.deadline import Deadline
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Outcome, Response
from broker.api.topic_names import check_no_collision, check_topic_name
from broker.cluster.control import NO_LEADER
from broker.cluster.metadata import (
    CONSUMER_OFFSETS,
    INTERNAL_TOPICS,
    TRANSACTION_STATE,
    TopicMetadata,
)

# What the client may do: everything, since there is no authorizer. Kafka's AclOperation codes.
TOPIC_OPERATIONS = frozenset((3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = frozenset((5, 7, 8, 9, 10, 11, 12))
NOT_ASKED: None = None
_NO_CONTROLLER = (BrokerNotAvailableError, NotControllerError, RequestTimedOutError)
"""Clients take these, said of a topic, for the end of it, or of themselves."""
_MOST_WAIT_MS = 5_000


def handle(request: Request, context: MetadataContext) -> Outcome:
    wanted = request.decode(MetadataRequest)
    if not context.metadata.brokers:
        return _answer(request, context, wanted, [])
    if wanted.topics is None or (not wanted.topics and request.version == 0):
        return _answer(
            request, context, wanted, [_found(t, context) for t in context.metadata.topics()]
        )
    # As Apache Kafka, a name that is repeated is answered once: an answer has no room for more
    # than there is, however often a small request asks for it.
    wanted.topics = list({(topic.name, topic.topic_id): topic for topic in wanted.topics}.values())
    missing = [
        topic.name
        for topic in wanted.topics
        if topic.name is not None and context.metadata.topic(topic.name) is None
    ]
    may_create = wanted.allow_auto_topic_creation and context.config.auto_create_topics_enable
    if missing and may_create:
        return _create_and_answer(request, context, wanted, missing)
    topics = [_look_up(topic, context) for topic in wanted.topics]
    return _answer(request, context, wanted, topics)


async def _create_and_answer(
    request: Request, context: MetadataContext, wanted: MetadataRequest, missing: list[str]
) -> Response:
    refused: dict[str, BrokerResponseError] = {}
    deadline = Deadline(_MOST_WAIT_MS)
    most_topics = max(1, MAX_PARTITIONS_PER_REQUEST // context.config.num_partitions)
    for number, name in enumerate(missing):
        try:
            if number >= most_topics:  # the client asks again
                raise UnknownTopicOrPartitionError()
            await deadline.wait_for(_auto_create(name, context))
        except (TopicAlreadyExistsError, *_NO_CONTROLLER):
            # It is being made, by another request perhaps, or another controller is to come: the
            # client asks again and finds it, or has it made.
            refused[name] = UnknownTopicOrPartitionError()
        except BrokerResponseError as error:
            refused[name] = error
    topics = []
    for topic in wanted.topics:
        known = topic.name is None or context.metadata.topic(topic.name) is not None
        if not known and topic.name in refused:
            topics.append(_failed(topic, refused[topic.name]))
        else:
            topics.append(_look_up(topic, context))
    return _answer(request, context, wanted, topics)


async def _auto_create(name: str, context: MetadataContext) -> None:
    if name == CONSUMER_OFFSETS:
        await context.offsets_topic.ensure()
        return
    if name == TRANSACTION_STATE:
        await context.transactions_topic.ensure()
        return
    check_topic_name(name)
    check_no_collision(name, (topic.name for topic in context.metadata.topics()))
    config = context.config
    await context.create_topic(name, config.num_partitions, config.default_replication_factor, {})


def _look_up(topic: "MetadataRequest.MetadataRequestTopic", context: MetadataContext) -> object:
    if topic.name is not None:
        found = context.metadata.topic(topic.name)
        if found is not None:
            return _found(found, context)
        try:
            check_topic_name(topic.name)
        except BrokerResponseError as error:
            return _failed(topic, error)
        return _failed(topic, UnknownTopicOrPartitionError())
    if topic.topic_id is None:
        return _failed(topic, InvalidRequestError())
    found = context.metadata.topic_by_id(topic.topic_id)
    return _failed(topic, UnknownTopicIdError()) if found is None else _found(found, context)


def _found(topic: TopicMetadata, context: MetadataContext) -> object:
    """Nobody leads a partition for clients whose leader is not there: they know it no more."""
    partition_class = MetadataResponse.MetadataResponseTopic.MetadataResponsePartition
    live = context.metadata.live
    partitions = [
        partition_class(
            error_code=0 if partition.leader in live else LeaderNotAvailableError.errno,
            partition_index=index,
            leader_id=partition.leader if partition.leader in live else NO_LEADER,
            leader_epoch=partition.leader_epoch,
            replica_nodes=partition.replicas,
            isr_nodes=partition.isr,
            offline_replicas=context.metadata.offline_replicas(partition),
        )
        for index, partition in enumerate(topic.partitions)
    ]
    return MetadataResponse.MetadataResponseTopic(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        authorized_operations=NOT_ASKED,
    )


def _failed(topic: "MetadataRequest.MetadataRequestTopic", error: BrokerResponseError) -> object:
    return MetadataResponse.MetadataResponseTopic(
        error_code=code_of(error),
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[],
        authorized_operations=NOT_ASKED,
    )


def _answer(
    request: Request, context: MetadataContext, wanted: MetadataRequest, topics: list[object]
) -> Response:
    if wanted.include_topic_authorized_operations:
        for topic in topics:
            topic.authorized_operations = TOPIC_OPERATIONS  # type: ignore[attr-defined]
    all_operations = bool(wanted.include_cluster_authorized_operations)
    metadata = context.metadata
    response = MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(
                node_id=node.node_id, host=node.host, port=node.port, rack=node.rack
            )
            for node in metadata.brokers
        ],
        cluster_id=metadata.cluster_id,
        controller_id=metadata.controller_id,
        topics=topics,
        authorized_operations=CLUSTER_OPERATIONS if all_operations else NOT_ASKED,
    )
    return response


API = Api(key=3, min_version=0, max_version=13, handle=handle, context=MetadataContext)
