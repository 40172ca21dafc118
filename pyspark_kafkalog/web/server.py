"""Serves the page by HTTP until SIGTERM or Ctrl-C. One process, one event loop."""

import os
import socket
from contextlib import suppress

import uvicorn

from pyspark_kafkalog.client.config import address
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.web.app import PageSettings, make_app

_MOST_CONNECTIONS = 200
_LAST_ANSWERS_S = 1


def listen(host: str, port: int) -> socket.socket:
    """Raises InvalidOptionError for an address that cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        code = error.errno or 0  # below nothing it is of a name that means no address
        reason = os.strerror(code) if code > 0 else error.strerror
        raise InvalidOptionError(
            f"The page cannot listen at {address(host, port)}: {reason}."
        ) from None


def server_of(settings: PageSettings) -> uvicorn.Server:
    """To be run with a socket of `listen`; raises InvalidOptionError, MissingExtraError."""
    return uvicorn.Server(
        uvicorn.Config(
            make_app(settings),
            loop="asyncio",
            http="h11",
            ws="none",
            interface="asgi3",
            log_config=None,
            log_level="critical",  # `guard` logs what fails; to be cut off at the end is no error
            access_log=False,
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_LAST_ANSWERS_S,
        )
    )


def serve(server: uvicorn.Server, listening: socket.socket) -> None:
    """Returns after SIGTERM or Ctrl-C. Whoever connects before it serves is kept waiting."""
    with suppress(KeyboardInterrupt):  # which the server raises again when it has ended
        server.run([listening])
