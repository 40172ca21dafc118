"""FindCoordinator (key 10), versions 0-6: which broker coordinates a group or a transaction.

The one that leads the key's partition of `__consumer_offsets` or `__transaction_state`. The first
question makes the topic; the answer comes when it is there, or cannot be made now. Several keys
since version 4. Left out: the share groups of version 6.
"""

from kafka.errors import BrokerResponseError, InvalidRequestError
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from broker.api.contexts import MetadataContext
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.cluster.metadata import BrokerNode
from broker.coordinator.offsets import OffsetsTopic
from broker.coordinator.transactions import TransactionsTopic

_GROUP, _TRANSACTION = 0, 1
_BATCH_VERSION = 4
_NOBODY = BrokerNode(-1, "", -1)


async def handle(request: Request, context: MetadataContext) -> Response:
    wanted = request.decode(FindCoordinatorRequest)
    topic: OffsetsTopic | TransactionsTopic | None = None
    if wanted.key_type == _GROUP:
        topic = context.offsets_topic
    elif wanted.key_type == _TRANSACTION:
        topic = context.transactions_topic
    error: BrokerResponseError | None = None
    try:
        if topic is None:
            raise InvalidRequestError(f"unknown coordinator type {wanted.key_type}")
        await topic.ensure()
    except BrokerResponseError as raised:
        error = raised
    if request.version < _BATCH_VERSION:
        return FindCoordinatorResponse(**_found(topic, wanted.key, error))
    return FindCoordinatorResponse(
        coordinators=[
            FindCoordinatorResponse.Coordinator(key=key, **_found(topic, key, error))
            for key in wanted.coordinator_keys
        ]
    )


def _found(
    topic: OffsetsTopic | TransactionsTopic | None, key: str, error: BrokerResponseError | None
) -> dict[str, object]:
    node = _NOBODY
    if topic is not None and error is None:
        try:
            node = topic.coordinator_of(key)
        except BrokerResponseError as raised:
            error = raised
    code, message = wire_error(error)
    return {
        "node_id": node.node_id,
        "host": node.host,
        "port": node.port,
        "error_code": code,
        "error_message": message,
    }


API = Api(key=10, min_version=0, max_version=6, handle=handle, context=MetadataContext)
