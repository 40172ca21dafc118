"""An entry of a Delta table's log that deltalake would not write, such as one that also changes
the table's columns, or replaces files by others with the same rows.

Under its number, in one step that fails where the number is taken: by a hard link, as deltalake
itself does. Called by the modules of Delta alone.
"""

import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from pyspark_kafkalog.warehouse.targets.directory_storage import sync_directory


def write_entry(
    stage_path: str, version: int, said: Mapping[str, Any], actions: Iterable[Mapping[str, Any]]
) -> None:
    """Makes the table version `version` of `actions` and of what is `said` in commitInfo. The entry
    is written in the directory of a stage of the table first. Raises CommitFailedError where the
    version is there."""
    now_ms = time.time_ns() // 1_000_000
    info = {"timestamp": now_ms, **said, "engineInfo": "pyspark-kafkalog"}
    scratch = os.path.join(stage_path, "log-entry.json")
    with open(scratch, "w", encoding="utf-8") as file:
        for action in ({"commitInfo": info}, *actions):
            # deltalake reads an escaped U+10FFFF as another character.
            file.write(f"{json.dumps(action, ensure_ascii=False)}\n")
        file.flush()
        os.fsync(file.fileno())
    log_path = os.path.join(os.path.dirname(stage_path), "_delta_log")
    try:
        os.link(scratch, os.path.join(log_path, f"{version:020}.json"))
    except FileExistsError as error:
        raise CommitFailedError(f"version {version} is taken") from error
    sync_directory(log_path)


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
