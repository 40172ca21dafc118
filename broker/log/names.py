"""How the files of a log are named: as Apache Kafka names them.

A segment's files are its base offset in 20 digits and a suffix for what they hold; a second suffix
says that they are on their way in (`.cleaned`, then `.swap`) or out (`.deleted`). Constants and
pure functions: any thread.
"""

from typing import Final

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
SNAPSHOT_SUFFIX: Final = ".snapshot"
"""Of the producers' state at an offset."""
CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
DELETED_SUFFIX: Final = ".deleted"
DELETED_LOG_SUFFIX: Final = "-delete"
"""Of a whole log's directory that is to be removed."""
STRAY_LOG_SUFFIX: Final = "-stray"
"""Of one that no topic has, and nobody removes."""


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"
