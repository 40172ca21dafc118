"""What a load may do to the columns of its table, as a value; schema_change.py says what it does.

Imports neither Arrow nor another module of the warehouse.
"""

from dataclasses import dataclass

from pyspark_kafkalog.errors import InvalidOptionError

FAIL, ADD, WIDEN = "fail", "add", "widen"
CHANGES = (FAIL, ADD, WIDEN)


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """What a load may do to the columns of a table whose rows had others before.

    With `adds` the commit that first needs them makes new columns, which are null in the rows that
    are there; where nobody said (None), only what has no rules of its own, a directory of Parquet
    files, takes more. With `widens` columns also get a wider type where that loses nothing, and
    rows of a narrower type take the column's. The columns `sorted_out` keep the type that they
    have, whatever comes: whoever lands the rows sorts out those that do not fit.
    """

    adds: bool | None = None
    widens: bool = False
    sorted_out: frozenset[str] = frozenset()


UNSAID = SchemaChange()


def parse_schema_change(said: str | None, option: str = "on_schema_change") -> SchemaChange:
    """What a user says of it; None is nothing. Raises InvalidOptionError."""
    if said is None:
        return UNSAID
    if said not in CHANGES:
        raise InvalidOptionError(f"{option} is {said!r}: write one of {', '.join(CHANGES)}")
    return SchemaChange(adds=said != FAIL, widens=said == WIDEN)
