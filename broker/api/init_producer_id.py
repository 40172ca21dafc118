"""InitProducerId (key 22), versions 0-5: an id for a producer, and an epoch that fences others.

An idempotent producer gets an id that is never given twice, and a new one when it asks again
(version 3 and later names its old id), as from Apache Kafka. A transactional producer takes its
transactional id over: a transaction that is open is aborted first, and the producer has to come
back. Who names its old id and epoch goes on unless another took its place (KIP-360). Version 6,
which keeps prepared transactions (KIP-939), is left out.
"""

from kafka.errors import (
    BrokerResponseError,
    InvalidProducerEpochError,
    InvalidRequestError,
    KafkaStorageError,
    ProducerFencedError,
)
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from broker.api.contexts import TransactionContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.coordinator.state_records import ProducerIdAndEpoch
from broker.coordinator.transaction_metadata import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
)

# The first version whose clients know PRODUCER_FENCED.
_FENCED_VERSION = 4


async def handle(request: Request, context: TransactionContext) -> Response:
    wanted = request.decode(InitProducerIdRequest)
    producer = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    error: BrokerResponseError | None = None
    try:
        producer = await _initialize(wanted, request.version, context)
    except ProducerFencedError as raised:
        error = raised if request.version >= _FENCED_VERSION else InvalidProducerEpochError()
    except BrokerResponseError as raised:
        error = raised
    except OSError as raised:
        error = KafkaStorageError(str(raised))
    response = InitProducerIdResponse(
        error_code=code_of(error),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )
    return response


async def _initialize(
    wanted: InitProducerIdRequest, version: int, context: TransactionContext
) -> ProducerIdAndEpoch:
    has_id, has_epoch = False, False
    expected = None
    if version >= 3:
        has_id = wanted.producer_id != NO_PRODUCER_ID
        has_epoch = wanted.producer_epoch != NO_PRODUCER_EPOCH
        if has_id != has_epoch:
            raise InvalidRequestError("a producer id and an epoch belong together")
        if has_id:
            expected = ProducerIdAndEpoch(wanted.producer_id, wanted.producer_epoch)
    transactional_id = wanted.transactional_id
    if transactional_id is None:
        return ProducerIdAndEpoch(await context.producer_ids.next_id(), 0)
    await context.producer_ids.ensure()
    producer = context.transactions.initialize(
        transactional_id, wanted.transaction_timeout_ms, expected
    )
    await context.transactions_topic.wait_committed(transactional_id)
    return producer


API = Api(key=22, min_version=0, max_version=5, handle=handle, context=TransactionContext)
