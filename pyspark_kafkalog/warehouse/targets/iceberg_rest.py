"""What REST catalogs need: that nobody waits for them without end, as pyiceberg's own would; in
Nessie, a first snapshot; and with a changed schema, the highest column id.

A commit requires that the table's current snapshot is the one that was looked at. Of a table that
has none Nessie (0.99) does not check that: whoever commits second takes the first one's rows away.
So whoever makes a table there makes a snapshot without files, too, and nobody commits before it.

The protocol has that id (`last-column-id`) optional by now, and pyiceberg leaves it out. Nessie
(0.99), and servers of Iceberg's Java library before 1.8, refuse a schema without it.

Called by iceberg.py alone.
"""

import json
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import AddSchemaUpdate, TableRequirement, TableUpdate
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

CONNECT_TIMEOUT_S = 10
ANSWER_TIMEOUT_S = 120
WAITS_FOR_FIRST_SNAPSHOT = 20
"""How often it is looked for, with a second in between."""

_highest_id: ContextVar[int | None] = ContextVar("highest_id", default=None)
"""Of the columns, in a commit that changes the schema, as pyiceberg's requests do not say it."""


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

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        schemas = [each.schema_ for each in updates if isinstance(each, AddSchemaUpdate)]
        ids = [table.metadata.last_column_id, *(each.highest_field_id for each in schemas)]
        token = _highest_id.set(max(ids) if schemas else None)
        try:
            done: CommitTableResponse = super().commit_table(table, requirements, updates)
        finally:
            _highest_id.reset(token)
        return done


class _BoundedAdapter(HTTPAdapter):
    """Gives a request up that gets no answer."""

    def send(self, request: PreparedRequest, *given: Any, **named: Any) -> Response:
        highest_id = _highest_id.get()
        if highest_id is not None and isinstance(request.body, bytes):
            said = json.loads(request.body)
            for update in said["updates"]:
                if update["action"] == "add-schema":
                    update.setdefault("last-column-id", highest_id)
            request.prepare_body(json.dumps(said).encode(), None)
        named["timeout"] = named.get("timeout") or (CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S)
        return super().send(request, *given, **named)
