"""InitProducerId (key 22), versions 0-5: an id for an idempotent producer, never given twice.

An idempotent producer that asks again (version 3 and later names its old id) gets a new id, as
from Apache Kafka. Left out until this broker has transactions: transactional ids, refused with
INVALID_REQUEST.
"""

from kafka.errors import BrokerResponseError, InvalidRequestError, KafkaStorageError
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from broker.api.errors import wire_error
from broker.api.request import Api, ApiContext, Body, Request, encoded


async def handle(request: Request, context: ApiContext) -> Body:
    wanted = request.decode(InitProducerIdRequest)
    producer_id, error = -1, None
    try:
        if wanted.transactional_id is not None:
            raise InvalidRequestError("transactions are not supported by this broker")
        producer_id = await context.producer_ids.next_id()
    except BrokerResponseError as raised:
        error = raised
    except OSError as raised:
        error = KafkaStorageError(str(raised))
    response = InitProducerIdResponse(
        throttle_time_ms=0,
        error_code=wire_error(error)[0],
        producer_id=producer_id,
        producer_epoch=-1 if error else 0,
    )
    return encoded(response, request)


API = Api(key=22, min_version=0, max_version=5, handle=handle)
