"""The place where an Iceberg table lies, by what its catalog says of it.

A catalog's properties are pyiceberg's, for its own FileIO (`s3.endpoint`, `s3.region`, ...). Tasks
and the driver's own look at files go through obstore, which is given the same. Where a secret is
one of these, tasks get the reference to it that the target has, and look it up where they run: what
the catalog's configuration, or a REST catalog, tells the driver alone does not travel.

Errors are TargetErrors and InvalidOptionErrors. Reads and writes nothing.
"""

import json
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from pyiceberg.table import Table

from pyspark_kafkalog.client.config import Secret
from pyspark_kafkalog.errors import InvalidOptionError, TargetError
from pyspark_kafkalog.warehouse.targets.storage import is_url
from pyspark_kafkalog.warehouse.targets.table_place import TablePlace, open_place

_SETTINGS = {
    "s3.endpoint": "endpoint",
    "s3.region": "region",
    "client.region": "region",
    "s3.anonymous": "skip_signature",
    "s3.force-virtual-addressing": "virtual_hosted_style_request",
    "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "session_token",
}
_SECRETS = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
_AS_GIVEN = "kafkalog.as-given"
"""A property of the catalog, and so of the tables' FileIO: what the target says of _SETTINGS, with
references to secrets."""

_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_REFERENCE = re.compile(r"\$\{[^}]+\}")


def catalog_properties(given: Mapping[str, str], configured: Mapping[str, Any]) -> dict[str, str]:
    """What pyiceberg opens the catalog with: the properties that are `given`, with references in
    the settings of S3 looked up. Without a region it would ask AWS for that of each bucket, so it
    gets the environment's."""
    ours = {name: value for name, value in given.items() if name in _SETTINGS}
    region = next((os.environ[name] for name in _REGIONS if name in os.environ), None)
    known = {**configured, **given}
    if region and not {"s3.region", "client.region"} & known.keys():
        ours["s3.region"] = region
    revealed = {name: Secret(value).reveal() for name, value in ours.items()}
    return {**given, **revealed, **({_AS_GIVEN: json.dumps(ours)} if ours else {})}


def data_place(table: Table) -> TablePlace:
    """Where the table keeps its data."""
    location = table.metadata.properties.get("write.data.path", f"{table.location()}/data")
    return place_at(".".join(table.name()), location, table.io.properties)


def metadata_place(table: Table) -> TablePlace:
    location = table.properties.get("write.metadata.path", f"{table.location()}/metadata")
    return place_at(".".join(table.name()), location, table.io.properties)


def place_at(identifier: str, location: str, properties: Mapping[str, str]) -> TablePlace:
    if not is_in_store(location):
        return open_place(as_path(identifier, location).rstrip("/"))
    refuse_odd_url(identifier, location)
    if not location.startswith(("s3://", "s3a://")):
        raise InvalidOptionError(
            f"the Iceberg table {identifier} at {location} is in another store than S3 and what "
            "speaks like it: give table or warehouse a location s3://BUCKET/PATH"
        )
    given = json.loads(properties.get(_AS_GIVEN, "{}"))
    settings = {}
    for theirs, ours in _SETTINGS.items():
        value = given.get(theirs)
        if value is not None and theirs in _SECRETS[1:] and not _REFERENCE.search(value):
            raise InvalidOptionError(
                f"{theirs} in the target iceberg:{identifier} is a secret that landing tasks need: "
                f"write a reference to it, such as {theirs}=${{env:VARIABLE}}, or leave it to the "
                "environment (AWS_SECRET_ACCESS_KEY)"
            )
        if value is None and theirs not in _SECRETS:
            value = properties.get(theirs)
        if value is not None:
            settings[ours] = value
    query = urlencode(settings)
    return open_place(f"{location.rstrip('/')}{'?' if query else ''}{query}")


def is_in_store(location: str) -> bool:
    return is_url(location) and not location.startswith("file:")


def as_path(identifier: str, location: str) -> str:
    """A location that is no store's, as a path of this machine."""
    refuse_odd_url(identifier, location)
    path = re.sub(r"\Afile:/*", "/", location)
    if not path.startswith("/"):
        raise TargetError(
            f"the Iceberg table {identifier} lies at {location}: landing tasks write to a local or "
            "mounted directory, or to S3, so give table or warehouse a location file:///... or "
            "s3://BUCKET/PATH"
        )
    return path


def name_in(place: TablePlace, file_path: str) -> str | None:
    """What a file that the table names is called in a place; None where it lies elsewhere. Others
    may name it by another of the schemes for one store."""
    if not is_in_store(place.uri):
        name = os.path.relpath(re.sub(r"\Afile:/*", "/", file_path), place.uri)
        return None if name.startswith("../") else name
    path, root = (re.sub(r"\As3[an]?://", "s3://", one) for one in (file_path, place.uri))
    return path[len(root) + 1 :] if path.startswith(f"{root}/") else None


def refuse_odd_url(identifier: str, location: str) -> None:
    """Raises InvalidOptionError for a URL that pyiceberg reads in another way than others do."""
    odd = None
    if location.startswith("file:"):
        odd = re.search(r"[#?\x00-\x1f\x7f]", location)
    elif is_url(location):
        odd = re.search(r"[#?%\x00-\x1f\x7f]|(?<!:)//", location)
    if odd:
        raise InvalidOptionError(
            f"target iceberg:{identifier} lies at {location}, and pyiceberg takes what follows "
            f"{odd[0]!r} in a URL for no part of its path: name the warehouse as a plain path, "
            "/data/lake, or another directory"
        )
