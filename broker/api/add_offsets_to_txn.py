"""AddOffsetsToTxn (key 25), versions 0-4: a producer is about to commit a group's offsets.

Adds the group's partition of `__consumer_offsets` to the transaction, so that its end is written
there too. Clients of transaction version 2 send none: their TxnOffsetCommit adds it (KIP-890).
"""

from kafka.errors import BrokerResponseError, InvalidProducerEpochError, ProducerFencedError
from kafka.protocol.producer import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kafka.structs import TopicPartition

from broker.api.contexts import TransactionContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.cluster.metadata import CONSUMER_OFFSETS
from broker.coordinator.state_records import ProducerIdAndEpoch

_FENCED_VERSION = 2


async def handle(request: Request, context: TransactionContext) -> Response:
    wanted = request.decode(AddOffsetsToTxnRequest)
    error: BrokerResponseError | None = None
    try:
        await context.offsets_topic.ensure()
        partition = context.offsets_topic.partition_of(wanted.group_id)
        context.transactions.add_partitions(
            wanted.transactional_id,
            ProducerIdAndEpoch(wanted.producer_id, wanted.producer_epoch),
            frozenset((TopicPartition(CONSUMER_OFFSETS, partition),)),
            client_version=0,
        )
        await context.transactions_topic.wait_committed(wanted.transactional_id)
    except ProducerFencedError as raised:
        error = raised if request.version >= _FENCED_VERSION else InvalidProducerEpochError()
    except BrokerResponseError as raised:
        error = raised
    return AddOffsetsToTxnResponse(error_code=code_of(error))


API = Api(key=25, min_version=0, max_version=4, handle=handle, context=TransactionContext)
