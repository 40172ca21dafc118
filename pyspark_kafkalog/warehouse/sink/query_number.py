"""Which query a micro-batch is of, as a number that commits keep of each partition they move.

    31 bits   a digest of the query's id, as Spark has it in the checkpoint and tells it to tasks
    31 bits   a digest of the place of the checkpoint

Two numbers with a half in common are the same query: a checkpoint that was moved keeps the id, and
one that was lost is made anew in its place. A half that is not known is 0, which is nobody's.

A target leaves out rows that are below the place of the load's name. They are in it if it was this
query that passed their offsets, or a `load`, which takes all records. Another query of the same
name has passed offsets, too, of which it may have filtered other rows.

Plain functions; ask nobody.
"""

import re
from hashlib import blake2b

from pyspark_kafkalog.source.checkpoint import place_text

_HALF_BITS = 31
_HALF = (1 << _HALF_BITS) - 1
_OF_A_FLOW = re.compile(r"(.*/_checkpoints/.+)/\d+", re.DOTALL)
"""A declarative pipeline numbers the checkpoints of a flow, which a full refresh makes anew."""


def query_number(query_id: str | None, checkpoint: str | None) -> int:
    """The number of the query with that id and that checkpoint, as far as they are known."""
    place = None if checkpoint is None else place_text(checkpoint).rstrip("/")
    flow = None if place is None else _OF_A_FLOW.fullmatch(place)
    return _digest(query_id) << _HALF_BITS | _digest(place if flow is None else flow[1])


def is_same_query(one: int, other: int) -> bool:
    """Whether two numbers are of one query."""
    pairs = ((one >> _HALF_BITS, other >> _HALF_BITS), (one & _HALF, other & _HALF))
    return any(mine == theirs != 0 for mine, theirs in pairs)


def _digest(text: str | None) -> int:
    if text is None:
        return 0
    whole = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
    return whole % _HALF + 1
