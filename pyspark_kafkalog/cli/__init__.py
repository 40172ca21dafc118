"""`kafkalog`: the quick start, brokers, topics, groups, records and loads from a shell.

A file for each word, `entry` for what all words share at their beginning and end, `arguments` for
what they share in between. What is slow to import is imported where it is used.
"""

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line, without `arguments` the process's own; returns the exit code."""
    try:
        from pyspark_kafkalog.cli.entry import main as run
    except KeyboardInterrupt:  # before anything is there that could say so
        return 130
    return run(arguments)
