"""What a writer has to know before its tasks begin: made when Spark pickles it for them.

Spark makes a writer that goes to the tasks, and others to commit and to abort, and tells none of
them which it is. Only the first is pickled: it alone asks brokers, takes a lead or makes a stage.
"""

from typing import Any, Generic, TypeVar

from pyspark_kafkalog.source.plain_errors import PlainErrors

P = TypeVar("P")


class PlannedOnPickle(Generic[P]):
    """A writer that is made in Spark's planner, and planned once it is pickled."""

    plan: P | None = None
    """In the tasks; None in writers that commit or abort."""

    def make_plan(self) -> P | None:
        """Called once a plan is needed. What it raises Spark shows as an error of pickling: what a
        task of a stream raises would not be shown at all."""
        raise NotImplementedError

    def for_tasks(self) -> dict[str, Any]:
        """What travels of this writer."""
        return dict(vars(self))

    @PlainErrors()
    def __getstate__(self) -> dict[str, Any]:
        if self.plan is None:
            self.plan = self.make_plan()
        return self.for_tasks()
