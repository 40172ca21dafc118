"""Who may ask the page, and what browsers are told about every answer.

GET and HEAD alone. A name that the page is not known under is refused: a page of somebody else's
whose name was pointed here (DNS rebinding) would read along; addresses cannot be pointed anywhere.
Browsers are told to run and load nothing but the page's own two files, whatever a record holds.
"""

import logging
from collections.abc import Collection
from ipaddress import ip_address

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_logger = logging.getLogger(__name__)
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Around the application."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = {"localhost", *(host.lower().rstrip(".") for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        app: ASGIApp = self._app
        if scope["method"] not in ("GET", "HEAD"):
            app = PlainTextResponse("This page is read only.", 405, {"allow": "GET, HEAD"})
        elif not self._is_known(dict(scope["headers"]).get(b"host", b"").decode("latin-1")):
            said = "This page does not go by that name: see --allow-host of kafkalog ui."
            app = PlainTextResponse(said, 421)
        try:
            await app(scope, receive, send_guarded)
        except Exception:
            # It was answered with 500 before.
            _logger.exception("the page %s failed", scope["path"])

    def _is_known(self, host: str) -> bool:
        name, _, port = host.rpartition(":")
        if not name or not port.isdecimal():
            name = host
        name = name.lower().rstrip(".")
        try:
            ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name in self._hosts
        return True
