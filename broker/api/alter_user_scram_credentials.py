"""AlterUserScramCredentials (key 51), versions 0-0: sets and deletes users' credentials.

One for each user and request, as in Apache Kafka. They are kept; nothing asks for them, as no
listener of this broker has its clients log in.
"""

from collections.abc import Callable
from typing import Any

from kafka.errors import (
    BrokerResponseError,
    DuplicateResourceError,
    ResourceNotFoundError,
    UnacceptableCredentialError,
    UnknownError,
    UnsupportedSaslMechanismError,
)
from kafka.protocol.admin import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)

from broker.api.contexts import ConfigContext
from broker.api.errors import wire_error
from broker.api.request import Api, Request
from broker.api.response import Response
from broker.api.scram import LEAST_ITERATIONS, MECHANISMS, MOST_ITERATIONS, dump_credential
from broker.cluster.entity_configs import Configs

_RESULT = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult


async def handle(request: Request, context: ConfigContext) -> Response:
    wanted = request.decode(AlterUserScramCredentialsRequest)
    asks: dict[str, list[Any]] = {}
    for ask in (*(wanted.deletions or ()), *(wanted.upsertions or ())):
        asks.setdefault(ask.name, []).append(ask)
    results = []
    for name, (first, *others) in asks.items():
        error: BrokerResponseError | None = None
        try:
            change = _change(first, context)
            if others:
                raise DuplicateResourceError(
                    "A user credential cannot be altered twice in the same request"
                )
            await context.users.set(name, change)
        except BrokerResponseError as raised:
            error = raised
        code, message = wire_error(error)
        results.append(_RESULT(user=name, error_code=code, error_message=message))
    return AlterUserScramCredentialsResponse(results=results)


def _change(ask: Any, context: ConfigContext) -> Callable[[Configs], Configs]:
    """What one deletion or setting makes of a user's credentials. Raises why it is refused, in
    Apache Kafka's words."""
    mechanism = MECHANISMS.get(ask.mechanism)
    if not ask.name:
        raise UnacceptableCredentialError("Username must not be empty")
    if mechanism is None:
        raise UnsupportedSaslMechanismError("Unknown SCRAM mechanism")
    if isinstance(ask, AlterUserScramCredentialsRequest.ScramCredentialDeletion):
        if mechanism not in context.users.of(ask.name):
            raise ResourceNotFoundError("Attempt to delete a user credential that does not exist")
        return lambda kept: {each: text for each, text in kept.items() if each != mechanism}
    if ask.iterations < LEAST_ITERATIONS:
        raise UnacceptableCredentialError("Too few iterations")
    if ask.iterations > MOST_ITERATIONS:
        raise UnacceptableCredentialError("Too many iterations")
    if not ask.salted_password:
        raise UnknownError
    text = dump_credential(ask.mechanism, ask.salt, ask.salted_password, ask.iterations)
    return lambda kept: {**kept, mechanism: text}


API = Api(key=51, min_version=0, max_version=0, handle=handle, context=ConfigContext)
