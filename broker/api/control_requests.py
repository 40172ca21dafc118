"""How a broker answers what a controller says: LeaderAndIsr, StopReplica and UpdateMetadata.

In the one version that brokers speak at inter.broker.protocol.version 3.9; in a cluster only. Which
controller, and which of this broker's lives is meant, is checked by who obeys.
"""

from typing import Any

from kafka.errors import BrokerResponseError

from broker.api.contexts import ControlledContext
from broker.api.request import MAX_BROKER_ELEMENTS, Request
from broker.api.response import Response
from broker.cluster.control_messages import request_of, response_to
from broker.cluster.store import MetadataStoreError
from broker.network.connection import CloseConnection


async def answer(request: Request, context: ControlledContext, message_class: Any) -> Response:
    """What became of each partition, or why nothing was done. Nothing where the store does not
    answer: the controller says it again, by its next connection."""
    wanted = request_of(request.decode(message_class, MAX_BROKER_ELEMENTS))
    try:
        return response_to(wanted, await context.obey(wanted, request.peer.number))
    except BrokerResponseError as error:
        return response_to(wanted, {}, error)
    except MetadataStoreError as error:
        raise CloseConnection(str(error)) from error
