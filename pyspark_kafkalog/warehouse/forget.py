"""`pyspark_kafkalog.forget`: a load name starts over.

Where a name goes on is forgotten in one commit of the target; the rows that it loaded stay. Runs on
the driver, without Spark and without a broker; beside loads, too: one of that name which is at work
ends in LoadConflictError.
"""

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.warehouse.targets.target import open_target


def forget(target: str, name: str) -> bool:
    """Forgets where the load `name` into `target`, both as for `load`, goes on: offsets and topic
    ids. Its next load is a first one and lands everything again, from startingOffsets or `starting`
    on, beside the rows that are there: delete these before, or choose that start.

    Returns False when there was nothing to forget. Raises InvalidOptionError, TargetError.
    """
    if not isinstance(name, str) or not name.strip():
        raise InvalidOptionError("say which load to forget by its name, for example nightly")
    return open_target(target).forget(name)
