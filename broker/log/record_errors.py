"""Why single records of a producer's batch are refused (KIP-467).

A batch is appended whole or not at all. Its answer names the records that were at fault, so that a
client fails those with the reason, and tells the others that they were only in the same batch. The
words are Apache Kafka's. Values only: any thread.
"""

from collections.abc import Sequence
from typing import Final

from kafka.errors import BrokerResponseError, InvalidRecordError, InvalidTimestampError

# A batch may hold millions of records, and an answer has a hundred bytes for each of these.
MAX_RECORD_ERRORS: Final = 20_000
_SHOWN = 3

RecordError = tuple[int, str]
"""A record's place in its batch, from 0 on, and what is wrong with it."""


class RefusedRecordsError(BrokerResponseError):  # type: ignore[misc]
    """Some records may not be appended. `log_start_offset`: of the log that refused them."""

    def __init__(self, message: str, record_errors: Sequence[RecordError]) -> None:
        super().__init__(message)
        self.record_errors = record_errors
        self.log_start_offset = -1


class InvalidRecordsError(RefusedRecordsError, InvalidRecordError):  # type: ignore[misc]
    """Records that the topic does not take."""

    def __init__(self, record_errors: Sequence[RecordError], total: int) -> None:
        shown = ", ".join(
            f"RecordError(batchIndex={index}, message='{message}')"
            for index, message in record_errors[:_SHOWN]
        )
        super().__init__(
            f"One or more records have been rejected due to {total} record errors in total, and "
            f"only showing the first three errors at most: [{shown}]",
            record_errors,
        )


class InvalidTimestampsError(RefusedRecordsError, InvalidTimestampError):  # type: ignore[misc]
    """Records whose timestamps are out of the topic's bounds; others may be refused as well."""

    def __init__(self, record_errors: Sequence[RecordError]) -> None:
        super().__init__(
            "One or more records have been rejected due to invalid timestamp", record_errors
        )
