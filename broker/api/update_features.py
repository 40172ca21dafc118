"""UpdateFeatures (key 57), versions 0-2: every feature is at its last level, and stays there; in a
cluster over ZooKeeper there are none (`api_versions`).

To ask for the level that a feature has succeeds. Left out: other levels. Raising one is refused as
Apache Kafka does; lowering one too, which Kafka would do.
"""

from typing import Any

from kafka.errors import BrokerResponseError, InvalidUpdateVersionError
from kafka.protocol.admin import UpdateFeaturesRequest, UpdateFeaturesResponse

from broker.api.contexts import FeatureContext
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response

_UPGRADE, _UNSAFE_DOWNGRADE = 1, 3
# Since then one result stands for all.
_ALL_OR_NONE_VERSION = 2


def handle(request: Request, context: FeatureContext) -> Response:
    wanted = request.decode(UpdateFeaturesRequest)
    updates = wanted.feature_updates or ()
    error: BrokerResponseError | None = None
    for update in updates:
        reason = _refusal(update, request.version, context)
        if reason is not None:
            error = InvalidUpdateVersionError(
                "The update failed for all features since the following feature had an error: "
                f"Invalid update version {update.max_version_level} for feature "
                f"{update.feature}. {reason}"
            )
            break
    code, message = wire_error(error)
    results = [
        UpdateFeaturesResponse.UpdatableFeatureResult(
            feature=update.feature, error_code=0, error_message="NONE"
        )
        for update in updates
        if error is None and request.version < _ALL_OR_NONE_VERSION
    ]
    response = UpdateFeaturesResponse(error_code=code, error_message=message, results=results)
    return response


def _refusal(update: Any, version: int, context: FeatureContext) -> str | None:
    node_id, level = context.metadata.broker.node_id, update.max_version_level
    current = context.features.get(update.feature)
    is_typed = version == 0 or _UPGRADE <= update.upgrade_type <= _UNSAFE_DOWNGRADE
    if not is_typed:
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    if current is None:
        return f"Local controller {node_id} does not support this feature."
    if level > current:
        return f"Local controller {node_id} only supports versions 0-{current}"
    if level == current:
        return None
    is_upgrade = not update.allow_downgrade if version == 0 else update.upgrade_type == _UPGRADE
    if is_upgrade:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade."
        )
    return "This broker keeps each feature at its last level."


API = Api(key=57, min_version=0, max_version=2, handle=handle, context=FeatureContext)
