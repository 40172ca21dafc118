"""DescribeCluster (key 60), versions 0-2: the cluster's id, brokers and controller.

Left out: controller endpoints (brokers are their own controllers) and fenced brokers (there are
none).
"""

from kafka.errors import (
    BrokerResponseError,
    MismatchedEndpointTypeError,
    UnsupportedEndpointTypeError,
)
from kafka.protocol.admin import DescribeClusterRequest, DescribeClusterResponse

from broker.api.contexts import MetadataContext
from broker.api.errors import wire_error
from broker.api.metadata import CLUSTER_OPERATIONS, NOT_ASKED
from broker.api.request import Api, Request
from broker.api.response import Response

_BROKERS, _CONTROLLERS = 1, 2


def handle(request: Request, context: MetadataContext) -> Response:
    wanted = request.decode(DescribeClusterRequest)
    metadata = context.metadata
    code, message = wire_error(_refusal(wanted.endpoint_type))
    all_operations = wanted.include_cluster_authorized_operations and not code
    response = DescribeClusterResponse(
        error_code=code,
        error_message=message,
        endpoint_type=_BROKERS,
        cluster_id="" if code else metadata.cluster_id,
        controller_id=-1 if code else metadata.controller_id,
        brokers=[]
        if code
        else [
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=node.node_id,
                host=node.host,
                port=node.port,
                rack=node.rack,
                is_fenced=False,
            )
            for node in metadata.brokers
        ],
        authorized_operations=CLUSTER_OPERATIONS if all_operations else NOT_ASKED,
    )
    return response


def _refusal(endpoint_type: int) -> BrokerResponseError | None:
    if endpoint_type == _BROKERS:
        return None
    if endpoint_type == _CONTROLLERS:
        return MismatchedEndpointTypeError(
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of "
            "type CONTROLLER"
        )
    return UnsupportedEndpointTypeError("Unsupported endpoint type " + str(endpoint_type))


API = Api(key=60, min_version=0, max_version=2, handle=handle, context=MetadataContext)
