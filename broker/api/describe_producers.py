"""DescribeProducers (key 61), versions 0-0: the idempotent producers that a partition remembers, as
this broker has it: it may follow another one."""

from kafka.errors import BrokerResponseError, UnknownTopicOrPartitionError
from kafka.protocol.admin import DescribeProducersRequest, DescribeProducersResponse
from kafka.structs import TopicPartition

from broker.api.contexts import RecordContext
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.api.topic_names import check_topic_name
from broker.log.producer_state import ProducerStateEntry

_TOPIC = DescribeProducersResponse.TopicResponse
_PARTITION = _TOPIC.PartitionResponse
_PRODUCER = _PARTITION.ProducerState


def handle(request: Request, context: RecordContext) -> Response:
    wanted = request.decode(DescribeProducersRequest)
    topics = [
        _TOPIC(
            name=topic.name,
            partitions=[
                _answer(topic.name, index, context) for index in topic.partition_indexes or ()
            ],
        )
        for topic in wanted.topics or ()
    ]
    return DescribeProducersResponse(topics=topics)


def _answer(topic: str, index: int, context: RecordContext) -> object:
    producers: list[object] = []
    error: BrokerResponseError | None = None
    try:
        check_topic_name(topic)
        if context.metadata.topic(topic) is None:
            raise UnknownTopicOrPartitionError("This server does not host this topic-partition.")
        place = TopicPartition(topic, index)
        log = (context.replicas.kept(place) or context.replicas.partition(place)).log
        # A copy in one step: the maintenance thread forgets expired producers meanwhile.
        entries = log.producers.entries.copy()
        producers = [_producer(producer_id, entry) for producer_id, entry in entries.items()]
    except BrokerResponseError as raised:
        error = raised
    code, message = wire_error(error)
    return _PARTITION(
        partition_index=index, error_code=code, error_message=message, active_producers=producers
    )


def _producer(producer_id: int, entry: ProducerStateEntry) -> object:
    return _PRODUCER(
        producer_id=producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.batches[-1].timestamp_ms if entry.batches else -1,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.current_txn_first_offset,
    )


API = Api(key=61, min_version=0, max_version=0, handle=handle, context=RecordContext)
