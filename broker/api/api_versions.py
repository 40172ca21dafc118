"""ApiVersions (key 18), versions 0-4: what this broker speaks.

Any other version is answered as version 0 with UNSUPPORTED_VERSION and the versions of this API
(KIP-511), by the dispatcher, which sees it before the body. Left out: features (none are
finalized, so that Java clients use transactions of the first protocol) and ZooKeeper migration. A
client whose software has no proper name and version gets INVALID_REQUEST, as KIP-511 wants it.
"""

import re

from kafka.errors import InvalidRequestError, UnsupportedVersionError
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from broker.api.request import Api, ApiContext, ApiRange, Body, Request, encoded
from broker.network.send import Part

# The first version in which clients say who they are.
_SOFTWARE_VERSION = 3
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(request: Request, context: ApiContext) -> Body:
    wanted = request.decode(ApiVersionsRequest)
    if request.version >= _SOFTWARE_VERSION:
        for text in (wanted.client_software_name, wanted.client_software_version):
            if not _SOFTWARE.fullmatch(text or ""):
                return encoded(_response(InvalidRequestError.errno, ()), request)
    return encoded(_response(0, context.api_ranges), request)


def unsupported_version_body() -> list[Part]:
    """The answer, always in version 0, to a version that is not known."""
    return [_response(UnsupportedVersionError.errno, (API.range,)).encode(version=0)]


def _response(error_code: int, ranges: tuple[ApiRange, ...]) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        error_code=error_code,
        api_keys=[
            ApiVersionsResponse.ApiVersion(
                api_key=spoken.key, min_version=spoken.min_version, max_version=spoken.max_version
            )
            for spoken in ranges
        ],
        throttle_time_ms=0,
    )


API = Api(key=18, min_version=0, max_version=4, handle=handle)
