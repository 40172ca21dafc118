"""`kafkalog`: the quick start, brokers, topics, groups, records and loads from a shell.

A file for each word, `entry` for what all words share at their beginning and end, `arguments` for
what they share in between. What is slow to import is imported where it is used.
"""

from pyspark_kafkalog.cli.entry import main

__all__ = ["main"]
