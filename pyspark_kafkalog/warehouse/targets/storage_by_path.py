"""The storage, or the stage, at a path: a directory, or the URL of an object store.

The one place that knows both; what object stores need is imported where one is asked for.
"""

from pyspark_kafkalog.warehouse.targets.directory_storage import (
    DirectoryStageFiles,
    DirectoryStorage,
)
from pyspark_kafkalog.warehouse.targets.storage import StageFiles, Storage, is_url


def open_storage(path: str) -> Storage:
    """The storage at `path`: absolute, or an object store's URL. Reads and writes nothing."""
    if is_url(path):
        from pyspark_kafkalog.warehouse.targets.object_storage import ObjectStorage

        return ObjectStorage(path)
    return DirectoryStorage(path)


def open_stage(path: str) -> StageFiles:
    """The files of the stage at `path`, which `Storage.make_stage` gave."""
    if is_url(path):
        from pyspark_kafkalog.warehouse.targets.object_stage import ObjectStageFiles

        return ObjectStageFiles(path)
    return DirectoryStageFiles(path)
