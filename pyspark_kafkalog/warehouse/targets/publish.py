"""The commit of tables whose files stay where tasks wrote them, in one order for all of them.

Fenced: what the table says is compared with the plan, and the commit succeeds on that very state or
not at all. Whoever is too late looks again; the libraries' own retries would build the commit anew
on whatever is there by then. Delta and Iceberg say how to look and how to publish.

Called by the driver.
"""

from typing import Protocol

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.warehouse.commit import Commit, PendingCommit, Position, Step
from pyspark_kafkalog.warehouse.targets.staging import check_staged, discard, remove_all_but, sync


class FencedTable(Protocol):
    """A table as one pending commit sees it."""

    advice: str
    """What may be wrong where a staged file is missing, as the end of an error's text."""

    def look(self) -> None:
        """Opens the table in its newest state, which `position` and `publish` are about."""

    def position(self) -> Position:
        """Where the load's name goes on in that state. Raises LoadConflictError, TargetError or
        InvalidRowError where the commit must not follow it."""

    def publish(self, step: Step) -> int | None:
        """The number of the commit that followed just that state; None where another one did.
        An error leaves open whether it was published."""


def publish_fenced(pending: PendingCommit, table: FencedTable) -> Commit:
    """Publishes on the first state that nobody else follows before.

    What is refused before anything was tried is discarded. Raises LoadConflictError, TargetError,
    and what the library of the table raises.
    """
    stage, files = pending.stage, pending.files
    check_staged(stage, files, table.advice)
    sync(stage)
    while True:
        table.look()
        # Again, after the table was opened: see sweep_directories.
        check_staged(stage, files, table.advice)
        try:
            step = pending.step_from(table.position())
        except KafkalogError:
            discard(stage)
            raise
        sequence = table.publish(step)
        if sequence is not None:
            # The rows of an upsert are in other files by now.
            remove_all_but(stage, files if stage.upsert is None else ())
            return pending.committed(sequence, step)
