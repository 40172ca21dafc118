"""An entry of a Delta table's log that deltalake would not write, such as one that also changes
the table's columns, or replaces files by others with the same rows.

Under its number, in one step that fails where the number is taken: by a hard link or a conditional
put, as deltalake itself does. Called by the modules of Delta alone.
"""

import json
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from deltalake import Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from pyspark_kafkalog.warehouse.commit import Stage
from pyspark_kafkalog.warehouse.targets.delta_table import LOG
from pyspark_kafkalog.warehouse.targets.table_place import TablePlace


def write_entry(
    place: TablePlace,
    stage: Stage,
    version: int,
    said: Mapping[str, Any],
    actions: Iterable[Mapping[str, Any]],
) -> None:
    """Makes the table version `version` of `actions` and of what is `said` in commitInfo, with the
    help of a stage of the table. Raises CommitFailedError where the version is there."""
    info = {
        "timestamp": time.time_ns() // 1_000_000,
        **said,
        "engineInfo": "pyspark-kafkalog",
        # By which an entry whose answer was lost is known again.
        "txnId": str(uuid.uuid4()),
    }
    # deltalake reads an escaped U+10FFFF as another character.
    lines = (json.dumps(one, ensure_ascii=False) for one in ({"commitInfo": info}, *actions))
    content = "".join(f"{line}\n" for line in lines).encode()
    if not place.create(f"{LOG}/{version:020}.json", content, stage.path):
        raise CommitFailedError(f"version {version} is taken")


def txn(transaction: Transaction) -> dict[str, Any]:
    return {"txn": {"appId": transaction.app_id, "version": transaction.version}}


def add(action: AddAction) -> dict[str, Any]:
    """An `add` as it is in a log, where paths are URIs."""
    return {
        "add": {
            "path": quote(action.path),
            "partitionValues": action.partition_values,
            "size": action.size,
            "modificationTime": action.modification_time,
            "dataChange": action.data_change,
            "stats": action.stats,
        }
    }
