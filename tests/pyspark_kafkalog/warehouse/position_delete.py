"""A deletion of rows as engines with position deletes make it, which pyiceberg only reads."""

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record


def delete_by_position(table: Any, row: int, directory: Path) -> None:
    """Deletes a row, by its number, of the table's only file."""
    [task] = table.scan().plan_files()
    columns = (("file_path", pa.string(), 2147483546), ("pos", pa.int64(), 2147483545))
    schema = pa.schema(
        [pa.field(name, kind, False, {"PARQUET:field_id": str(n)}) for name, kind, n in columns]
    )
    path = directory / f"{uuid.uuid4()}.parquet"
    pq.write_table(pa.table([[task.file.file_path], [row]], schema=schema), path)
    deletion = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=path.stat().st_size,
        spec_id=0,
    )

    class Delete(_FastAppendFiles):
        def _existing_manifests(self) -> list[ManifestFile]:
            output = self._io.new_output(f"file://{directory}/{uuid.uuid4()}.avro")
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                data_file=deletion,
            )
            writer = _DeleteManifest(
                table.spec(), table.schema(), output, self._snapshot_id, "deflate"
            )
            with writer:
                writer.add(entry)
            return [*super()._existing_manifests(), writer.to_manifest_file()]

    with table.transaction() as transaction, Delete(Operation.DELETE, transaction, table.io):
        pass


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}
