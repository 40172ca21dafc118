"""ApiVersions (key 18), versions 0-4: what this broker speaks.

Any other version is answered as version 0 with UNSUPPORTED_VERSION and the versions of this API
(KIP-511), by the dispatcher, which sees it before the body. A client whose software has no proper
name and version gets INVALID_REQUEST, as KIP-511 wants it. Since version 3 clients hear of features
(KIP-584), all of which are finalized: who finds `transaction.version` 2 uses transactions in which
each end bumps the epoch (KIP-890). A cluster over ZooKeeper has none, as with Apache Kafka 3.9: any
of its brokers may be the next coordinator. Left out: ZooKeeper migration.
"""

import re
from collections.abc import Mapping

from kafka.errors import InvalidRequestError, UnsupportedVersionError
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from broker.api.contexts import FeatureContext
from broker.api.request import Api, ApiRange, Request
from broker.api.response import Response

GROUP_VERSION = "group.version"
"""From level 1 on groups may use the consumer protocol, KIP-848."""
# Of a broker alone, by name: the last level, which is the finalized one; each begins at 0.
FEATURES = {GROUP_VERSION: 1, "transaction.version": 2}
# Features never change while a broker runs: one epoch for all of them.
_FEATURES_EPOCH = 0
# The first version whose clients understand a feature that begins at 0.
_FEATURES_FROM_0_VERSION = 4
# The first version in which clients say who they are.
_SOFTWARE_VERSION = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(request: Request, context: FeatureContext) -> Response:
    wanted = request.decode(ApiVersionsRequest)
    if request.version >= _SOFTWARE_VERSION:
        for text in (wanted.client_software_name, wanted.client_software_version):
            if not _SOFTWARE.fullmatch(text or ""):
                return _response(InvalidRequestError.errno, ())
    return _with_features(_response(0, context.api_ranges), request.version, context.features)


def unsupported_version() -> Response:
    """The answer, always in version 0, to a version that is not known."""
    return _response(UnsupportedVersionError.errno, (API.range,))


def _with_features(
    response: ApiVersionsResponse, version: int, features: Mapping[str, int]
) -> ApiVersionsResponse:
    if version >= _FEATURES_FROM_0_VERSION:
        response.supported_features = [
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=0, max_version=level)
            for name, level in features.items()
        ]
    response.finalized_features_epoch = _FEATURES_EPOCH
    response.finalized_features = [
        ApiVersionsResponse.FinalizedFeatureKey(
            name=name, min_version_level=level, max_version_level=level
        )
        for name, level in features.items()
    ]
    return response


def _response(error_code: int, ranges: tuple[ApiRange, ...]) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        error_code=error_code,
        api_keys=[
            ApiVersionsResponse.ApiVersion(
                api_key=spoken.key, min_version=spoken.min_version, max_version=spoken.max_version
            )
            for spoken in ranges
        ],
    )


API = Api(key=18, min_version=0, max_version=4, handle=handle, context=FeatureContext)
