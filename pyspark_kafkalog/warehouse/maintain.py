"""`pyspark_kafkalog.maintain`: what a table needs that many small loads go into.

Small files are compacted, old versions and what they alone need is removed (`Target.upkeep`), and
what killed loads left behind is swept (`Target.vacuum`): nothing of it is visible to readers; it
takes room only. What a dead load staged is told from what a live one does by its age, and by that
alone only to choose: each target makes sure that a loader which wakes up after all cannot publish
what was removed.

Runs on the driver, without Spark; beside loads, too. Killed at any instant it leaves the table as
it was or as it should be, and files that the next one sweeps.
"""

from dataclasses import dataclass

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.source.options import parse_bytes
from pyspark_kafkalog.warehouse.rows.layout import check_file_bytes
from pyspark_kafkalog.warehouse.targets.target import open_existing
from pyspark_kafkalog.warehouse.targets.upkeep import Upkeep

SWEEP_HOURS = 24.0


@dataclass(frozen=True, slots=True)
class MaintainResult:
    """What `maintain` did, or with `dry_run` would do.

    `compacted_files` with `compacted_bytes` in all became `written_files` with `written_bytes`.
    `expired` counts snapshots of an Iceberg table, or files of a Delta log; `removed` are paths of
    files and directories. `left` says in sentences what was left as it is, and why. A dry run does
    not know what would come of what it would do: `written_bytes`, files of a log, and files that
    nobody needs once others are compacted.
    """

    target: str
    compacted_files: int
    compacted_bytes: int
    written_files: int
    written_bytes: int
    expired: int
    removed: tuple[str, ...]
    left: tuple[str, ...]
    dry_run: bool


def maintain(
    target: str,
    *,
    target_file_bytes: int | str | None = None,
    retention_hours: float | None = None,
    compact: bool = True,
    expire: bool = True,
    dry_run: bool = False,
    force: bool = False,
) -> MaintainResult:
    """Keeps a load target, named as for `load`, in order. Loads may run meanwhile.

    `compact`: small files of a Delta or Iceberg table are copied into larger ones of about
    `target_file_bytes` (such as "256m"); by default of what the table's properties say
    (delta.targetFileSize, write.target-file-size-bytes), or 512 MiB. Rows, and where loads go on,
    stay as they are.
    `expire`: versions of the table that are older than `retention_hours` go, but for the newest,
    with the files that they alone need; by default older than the table's properties say
    (delta.deletedFileRetentionDuration, a week; history.expire.max-snapshot-age-ms, five days). So
    do old entries of Delta's log (delta.logRetentionDuration).
    Always, and alone where both are False, in any target: what killed loads left goes, if no load
    has touched it for `retention_hours`, by default 24.

    A `retention_hours` below 24, or below what the table's properties say, has to be asked for by
    `force`: a load that is idle for so long, as its executors wait for a machine, has to be run
    again then, and readers of older versions miss files.

    With `dry_run` nothing is changed. Raises InvalidOptionError; UnknownTargetError where there is
    no such target; TargetError.
    """
    hours = SWEEP_HOURS if retention_hours is None else retention_hours
    if not (hours >= SWEEP_HOURS or (force and hours >= 0)):
        raise InvalidOptionError(
            f"a retention of {hours:g} hours is less than {SWEEP_HOURS:g}: a load that is still at "
            "work may be swept, and would have to be run again. To do so all the same, use force."
        )
    file_bytes = None
    if target_file_bytes is not None:
        file_bytes = parse_bytes("target_file_bytes", str(target_file_bytes))
        check_file_bytes(file_bytes)
    opened = open_existing(target)
    retention_s = None if retention_hours is None else hours * 3600
    kept = opened.upkeep(Upkeep(file_bytes, retention_s, force, compact, expire, dry_run))
    swept = opened.vacuum(hours * 3600, dry_run)
    return MaintainResult(
        str(opened),
        kept.compacted_files,
        kept.compacted_bytes,
        kept.written_files,
        kept.written_bytes,
        kept.expired,
        tuple(kept.removed + swept),
        tuple(kept.left),
        dry_run,
    )
