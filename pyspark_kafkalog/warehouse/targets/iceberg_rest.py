"""What REST catalogs need: that nobody waits for them without end, as pyiceberg's own would; and in
Nessie, a first snapshot.

A commit requires that the table's current snapshot is the one that was looked at. Of a table that
has none Nessie (0.99) does not check that: whoever commits second takes the first one's rows away.
So whoever makes a table there makes a snapshot without files, too, and nobody commits before it.

Called by iceberg.py alone.
"""

from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

CONNECT_TIMEOUT_S = 10
ANSWER_TIMEOUT_S = 120
WAITS_FOR_FIRST_SNAPSHOT = 20
"""How often it is looked for, with a second in between."""


def is_rest(properties: Mapping[str, Any]) -> bool:
    """Whether these of a catalog, with those of pyiceberg's configuration, are a REST one's."""
    if kind := properties.get("type"):
        return str(kind).lower() == "rest"
    uri = str(properties.get("uri", ""))
    return uri.startswith("http") and "py-catalog-impl" not in properties


def is_nessie(properties: Mapping[str, Any]) -> bool:
    """Whether a catalog or a table's FileIO says that it is Nessie's."""
    return str(properties.get("nessie.is-nessie-catalog", "")).lower() == "true"


class BoundedRestCatalog(RestCatalog):
    """pyiceberg's own, of which each request ends in some time."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, _BoundedAdapter())
        return session


class _BoundedAdapter(HTTPAdapter):
    """Gives a request up that gets no answer."""

    def send(self, request: PreparedRequest, *given: Any, **named: Any) -> Response:
        named["timeout"] = named.get("timeout") or (CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S)
        return super().send(request, *given, **named)
