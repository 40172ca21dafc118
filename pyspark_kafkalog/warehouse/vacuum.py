"""`pyspark_kafkalog.vacuum`: removes what loads left behind that were killed.

Nothing of it is visible to readers; it takes room only. What a dead load staged is told from what a
live one does by its age, and by that alone only to choose: each target makes sure that a loader
which wakes up after all cannot publish what was removed (`Target.vacuum`).

Runs on the driver, without Spark; beside loads, too.
"""

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.warehouse.targets.target import open_target

RETENTION_HOURS = 24.0


def vacuum(
    target: str,
    retention_hours: float = RETENTION_HOURS,
    *,
    dry_run: bool = False,
    force: bool = False,
) -> list[str]:
    """Removes from a load target, named as for `load`, what no commit names and no load has touched
    for `retention_hours`; returns what that was. With `dry_run` it only says so.

    A retention below RETENTION_HOURS has to be asked for by `force`: a load that is idle for so
    long, as its executors wait for a machine, has to be run again then. Raises InvalidOptionError,
    TargetError.
    """
    if not (retention_hours >= RETENTION_HOURS or (force and retention_hours >= 0)):
        raise InvalidOptionError(
            f"a retention of {retention_hours:g} hours is less than {RETENTION_HOURS:g}: a load "
            "that is still at work may be swept, and would have to be run again. To do so all the "
            "same, use force."
        )
    return open_target(target).vacuum(retention_hours * 3600, dry_run)
