"""What the dispatcher counts: requests, bytes and times by API and version, refused requests.

Called by: the event loop's thread; any thread may read. One object for each API and version, so
that counting is a few additions.
"""

from collections import Counter
from collections.abc import Iterable
from time import perf_counter
from typing import Any

from broker.api.request import Api
from broker.histogram import Histogram
from broker.network.connection import Answer
from broker.network.send import size_of


class ApiStats:
    """Requests of one API in one version."""

    __slots__ = (
        "api",
        "at_once_ms",
        "count",
        "local_ms",
        "remote_ms",
        "request_bytes",
        "response_bytes",
        "total_ms",
        "version",
    )

    def __init__(self, api: Api[Any], version: int) -> None:
        self.api = api
        self.version = version
        self.count = 0
        self.request_bytes = 0
        self.response_bytes = 0
        self.at_once_ms = Histogram()
        """Requests answered in one go."""
        self.local_ms = Histogram()
        """Of the others: the time until they began to wait, for records or for a thread."""
        self.remote_ms = Histogram()
        """Of the others: the time they waited."""
        self.total_ms = Histogram()
        """Of the others: from the request's arrival to its answer."""

    def answered_at_once(self, began_s: float, request_bytes: int, answer: Answer) -> None:
        self.count += 1
        self.request_bytes += request_bytes
        if answer is not None:
            self.response_bytes += size_of(answer)
        self.at_once_ms.observe((perf_counter() - began_s) * 1000)

    def answered_later(
        self, began_s: float, waited_s: float, request_bytes: int, answer: Answer
    ) -> None:
        """`waited_s`: the instant from which on the request waited."""
        now_s = perf_counter()
        self.count += 1
        self.request_bytes += request_bytes
        if answer is not None:
            self.response_bytes += size_of(answer)
        self.local_ms.observe((waited_s - began_s) * 1000)
        self.remote_ms.observe((now_s - waited_s) * 1000)
        self.total_ms.observe((now_s - began_s) * 1000)


class RequestStats:
    """All requests since the start."""

    def __init__(self, apis: Iterable[Api[Any]]) -> None:
        self.by_head = {
            api.key << 16 | version: ApiStats(api, version)
            for api in apis
            for version in range(api.min_version, api.max_version + 1)
        }
        """By what a request begins with, key and version read as one number."""
        self.errors: Counter[int] = Counter()
        """How often each error code was answered."""
        self.refused = 0
        """Requests that closed their connection: not spoken here, malformed, or too large."""

    def used(self) -> list[ApiStats]:
        """Of the APIs and versions that anybody has used."""
        return [stats for stats in self.by_head.values() if stats.count]
