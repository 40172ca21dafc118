"""EndTxn (key 26), versions 0-5: a producer commits or aborts its transaction.

Answered when the decision is written down; markers follow. From version 5 on (transaction version
2, KIP-890) the end bumps the producer's epoch, and the answer says who the producer is from now on.
"""

from kafka.errors import BrokerResponseError, InvalidProducerEpochError, ProducerFencedError
from kafka.protocol.producer import EndTxnRequest, EndTxnResponse

from broker.api.contexts import TransactionContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.coordinator.state_records import ProducerIdAndEpoch
from broker.coordinator.transaction_metadata import (
    EPOCH_BUMP_VERSION,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
)

_FENCED_VERSION = 2
_EPOCH_BUMP_REQUEST = 5


async def handle(request: Request, context: TransactionContext) -> Response:
    wanted = request.decode(EndTxnRequest)
    producer = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    error: BrokerResponseError | None = None
    try:
        producer = context.transactions.end(
            wanted.transactional_id,
            ProducerIdAndEpoch(wanted.producer_id, wanted.producer_epoch),
            EPOCH_BUMP_VERSION if request.version >= _EPOCH_BUMP_REQUEST else 0,
            is_commit=wanted.committed,
        )
        await context.transactions_topic.wait_committed(wanted.transactional_id)
    except ProducerFencedError as raised:
        error = raised if request.version >= _FENCED_VERSION else InvalidProducerEpochError()
    except BrokerResponseError as raised:
        error = raised
    response = EndTxnResponse(
        error_code=code_of(error),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )
    return response


API = Api(key=26, min_version=0, max_version=5, handle=handle, context=TransactionContext)
