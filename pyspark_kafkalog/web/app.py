"""The page's addresses: each is a function from a request to a template and what it shows.

Names of topics and groups are in queries, never in paths, as they may hold anything. What an
address takes is checked here; who may ask, and what browsers are told, in `guard`. Functions run in
a few threads, since they ask and wait; an error that says something to people becomes a page.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from weakref import WeakSet

import anyio.to_thread
import jinja2
from kafka.structs import TopicPartition
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from pyspark_kafkalog.client.admin import describe_topics
from pyspark_kafkalog.client.brokers import BrokerDescription, describe_brokers
from pyspark_kafkalog.client.cluster import BrokerAddress, Cluster, PartitionMetadata
from pyspark_kafkalog.client.config import ClientConfig
from pyspark_kafkalog.decoding.registry import RegistryConfig
from pyspark_kafkalog.errors import (
    InvalidOptionError,
    UnknownGroupError,
    UnknownTopicError,
    sentence,
)
from pyspark_kafkalog.source.places import parse_place
from pyspark_kafkalog.web import formats, groups, tables
from pyspark_kafkalog.web.brokers import ERRORS, Brokers, Seen
from pyspark_kafkalog.web.figures import Figures, Measure, total
from pyspark_kafkalog.web.guard import Guard
from pyspark_kafkalog.web.loads import Target, loads_of
from pyspark_kafkalog.web.records import RECORDS_A_PAGE, BusyError, Readers, RecordPage
from pyspark_kafkalog.web.shown import Registry, Shown, show, visible
from pyspark_kafkalog.web.tables import Column, Paged, PartitionRow, Sorting, T, TopicRow

_HERE = Path(__file__).parent
_THREADS = 8
_PARTITIONS_A_PAGE = 100
_MOST_SORTED_PARTITIONS = 20_000
_MOST_SORTED_GROUPS = 200
"""Of more nobody is asked to sort by what they say."""
_CHUNK_BYTES = 256 << 10
_DOWNLOADS = 4
"""Each holds a batch in memory for as long as its taker takes."""
_NEWEST = f"-{RECORDS_A_PAGE}"


@dataclass(frozen=True, slots=True)
class PageSettings:
    """What the page is of. `hosts` are names that it may be asked under, besides addresses."""

    client: ClientConfig
    targets: tuple[str, ...] = ()
    registry: RegistryConfig | None = None
    hosts: Collection[str] = ()


def make_app(settings: PageSettings) -> ASGIApp:
    """The page as an ASGI application; connects to nothing before it is asked."""
    page = _Page(settings)
    addresses: dict[str, Callable[[Request], Response]] = {
        "/": page.topics,
        "/topic": page.topic,
        "/records": page.records,
        "/value": page.value,
        "/groups": page.groups,
        "/group": page.group,
        "/brokers": page.brokers,
        "/loads": page.loads,
    }

    @asynccontextmanager
    async def lifespan(_: Starlette) -> Any:
        anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
        yield
        page.close()

    app = Starlette(
        routes=[
            *(Route(path, function, methods=["GET"]) for path, function in addresses.items()),
            Mount("/static", StaticFiles(directory=_HERE / "static")),
        ],
        exception_handlers=dict.fromkeys((*ERRORS, HTTPException), page.trouble),
        lifespan=lifespan,
    )
    return Guard(app, settings.hosts)


class _Page:
    """What all addresses share, and a method for each."""

    def __init__(self, settings: PageSettings) -> None:
        self._brokers = Brokers(settings.client)
        self._measure = Measure(self._brokers)
        self._readers = Readers(settings.client)
        self._targets = [Target(place) for place in settings.targets]
        self._registry = Registry(settings.registry) if settings.registry else None
        self._downloads: WeakSet[_Download] = WeakSet()
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(formats.FILTERS, visible=visible)
        self._templates.globals.update(
            url=_url, servers=settings.client.servers, has_loads=bool(settings.targets)
        )

    def close(self) -> None:
        self._brokers.close()
        self._readers.close()

    def topics(self, request: Request) -> Response:
        seen = self._brokers.seen()
        shows_internal = _flag(request, "internal")
        found = request.query_params.get("q", "").strip()
        names = [
            name
            for name in seen.overview.topics
            if found.lower() in name.lower()
            and (shows_internal or name not in seen.overview.internal)
        ]
        rows = [TopicRow(name, seen.overview.topics[name]) for name in names]
        count = sum(len(row.partitions) for row in rows)
        sorting = _sorting(request, tables.TOPICS, count <= _MOST_SORTED_PARTITIONS)

        def ask(some: Sequence[TopicRow]) -> tuple[list[TopicRow], list[str]]:
            figures, missing = self._measure.look(seen, {row.name: row.partitions for row in some})
            return [
                replace(
                    row,
                    figures=total(
                        figures.get(TopicPartition(row.name, each.partition))
                        for each in row.partitions
                    ),
                )
                for row in some
            ], missing

        paged, missing = tables.paged(rows, sorting, ask, _number(request, "page", 1))
        return self._answer(
            request, "topics", seen, missing, paged=paged, sorting=sorting, q=found,
            internal=shows_internal, health=formats.health(_all_partitions(seen)),
        )  # fmt: skip

    def topic(self, request: Request) -> Response:
        name = _needed(request, "name")
        seen = self._brokers.seen(name)
        partitions = _partitions(seen, name)
        unwell = [each for each in partitions if formats.is_unwell(each)]
        only_unwell = _flag(request, "unwell")
        wanted = unwell if only_unwell else partitions
        sorting = _sorting(request, tables.PARTITIONS, len(wanted) <= _MOST_SORTED_PARTITIONS)
        number = _number(request, "page", 1)
        if (at := request.query_params.get("partition", "").strip()) and at.isdecimal():
            number = int(at[:10]) // _PARTITIONS_A_PAGE + 1
            sorting = Sorting(tables.PARTITIONS, "", is_bounded=True)

        def ask(some: Sequence[PartitionRow]) -> tuple[list[PartitionRow], list[str]]:
            found, missing = self._measure.look(seen, {name: [row.at for row in some]})
            nothing = Figures()
            return [
                replace(row, figures=found.get(TopicPartition(name, row.at.partition), nothing))
                for row in some
            ], missing

        rows = [PartitionRow(each) for each in wanted]
        paged, missing = tables.paged(rows, sorting, ask, number, _PARTITIONS_A_PAGE)
        return self._answer(
            request, "topic", seen, missing, name=name, partitions=partitions, paged=paged,
            sorting=sorting, total=total(row.figures for row in paged.rows), unwell=only_unwell,
            health=formats.health(partitions), configs=self._configs(request, name),
        )  # fmt: skip

    def records(self, request: Request) -> Response:
        topic, partition = _needed(request, "topic"), _number(request, "partition", 0)
        seen = self._brokers.seen(topic)
        partitions = _partitions(seen, topic)
        if partition >= len(partitions):
            raise UnknownTopicError(f"Topic {topic} has no partition {partition}.")
        figures, missing = self._measure.look(seen, {topic: [partitions[partition]]})
        at = request.query_params.get("at", "").strip()
        find = request.query_params.get("find", "")
        page, trouble = None, ""
        if not _flag(request, "live"):
            page, trouble = self._read(request, TopicPartition(topic, partition), at, find)
        return self._answer(
            request, "records", seen, missing, topic=topic, partition=partition, page=page, at=at,
            find=find, trouble=trouble, count=len(partitions), newest=_NEWEST,
            figures=figures.get(TopicPartition(topic, partition)), metadata=partitions[partition],
        )  # fmt: skip

    def _read(
        self, request: Request, topic_partition: TopicPartition, at: str, find: str
    ) -> tuple[RecordPage | None, str]:
        """The records that are asked for, or why there are none: the form stays in either case."""
        place, before = parse_place(at or _NEWEST), _number(request, "before", -1)
        if place is None:
            return None, f"{at[:80]!r} is no place in a partition: write one as the field says."
        try:
            with self._readers.reader(topic_partition) as reader:
                if not find and (before >= 0 or at in ("", _NEWEST)):
                    return reader.page_before(before if before >= 0 else reader.end, self._show), ""
                begin = reader.begin if find and not at else reader.offset_of(place)
                return reader.page(begin, self._show, _needle(find)), ""
        except ERRORS as error:
            return None, sentence(error)

    def value(self, request: Request) -> Response:
        """A whole key or value, to be saved: as large as a batch that a broker sends may be."""
        topic, partition = _needed(request, "topic"), _number(request, "partition", 0)
        offset, part = _number(request, "offset", 0), request.query_params.get("part", "value")
        if part not in ("key", "value"):
            raise HTTPException(400, "part is key or value.")
        _partitions(self._brokers.seen(topic), topic)
        if len(self._downloads) >= _DOWNLOADS:
            raise BusyError("Others save records at the moment: try again.")
        with self._readers.reader(TopicPartition(topic, partition)) as reader:
            if not reader.begin <= offset < reader.end:
                raise HTTPException(404, f"There is no offset {offset}.")
            data = reader.bytes_of(offset, part)
        if data is None:
            raise HTTPException(404, f"There is no {part} at offset {offset}.")
        name = quote(f"{topic}-{partition}-{offset}.{part}", safe="")
        download = _Download(data)
        self._downloads.add(download)
        return StreamingResponse(
            download,
            media_type="application/octet-stream",
            headers={
                "content-disposition": f"attachment; filename*=utf-8''{name}",
                "content-length": str(len(data)),
            },
        )

    def groups(self, request: Request) -> Response:
        seen = self._brokers.seen()
        found = request.query_params.get("q", "").strip()
        listed, missing = groups.listed(self._brokers, seen)
        rows = [
            groups.Group(listed[name][1], None, ())
            for name in sorted(listed)
            if found.lower() in name.lower()
        ]
        sorting = _sorting(request, tables.GROUPS, len(rows) <= _MOST_SORTED_GROUPS)

        def ask(some: Sequence[groups.Group]) -> tuple[list[groups.Group], list[str]]:
            return groups.describe(self._brokers, seen, [listed[row.listed.name] for row in some])

        paged, silent = tables.paged(rows, sorting, ask, _number(request, "page", 1))
        missing += [each for each in silent if each not in missing]
        return self._answer(request, "groups", seen, missing, paged=paged, sorting=sorting, q=found)

    def group(self, request: Request) -> Response:
        name = _needed(request, "name")
        seen = self._brokers.seen()
        listed, missing = groups.listed(self._brokers, seen)
        if name not in listed:
            hint = f" {missing[0]}" if missing else ""
            raise UnknownGroupError(f"No broker told of a group {name}.{hint}")
        (group,), silent = groups.describe(self._brokers, seen, [listed[name]])
        missing += [each for each in silent if each not in missing]
        paged = Paged(group.rows, _number(request, "page", 1), _PARTITIONS_A_PAGE)
        members = group.described.members if group.described else ()
        return self._answer(
            request, "group", seen, missing, group=group, paged=paged,
            members=members[:_PARTITIONS_A_PAGE], member_count=len(members),
        )  # fmt: skip

    def brokers(self, request: Request) -> Response:
        seen = self._brokers.seen()
        addresses = {each.broker_id: each for each in seen.overview.brokers}
        found, missing = self._brokers.each(addresses, dict.fromkeys(addresses, _described))
        partitions = _all_partitions(seen)
        away = (BrokerAddress(broker_id, "", 0, None) for broker_id in seen.overview.brokers_away)
        rows = [
            {
                "at": broker,
                "described": found.get(broker.broker_id),
                "leads": sum(each.leader == broker.broker_id for each in partitions),
                "replicas": sum(broker.broker_id in each.replicas for each in partitions),
                "behind": sum(
                    broker.broker_id in each.replicas and broker.broker_id not in each.isr
                    for each in partitions
                ),
            }
            for broker in (*seen.overview.brokers, *away)
        ]
        features = next((each.features for each in found.values() if each.apis), {})
        return self._answer(
            request, "brokers", seen, missing, rows=rows, features=features,
            health=formats.health(partitions),
        )  # fmt: skip

    def loads(self, request: Request) -> Response:
        seen, missing = None, []
        try:
            seen = self._brokers.seen()
        except ERRORS as error:
            missing = [sentence(error)]
        rows, silent = loads_of(self._brokers, seen, self._targets)
        return self._answer(request, "loads", seen, [*missing, *silent], rows=rows)

    def trouble(self, request: Request, error: Exception) -> Response:
        status = 503
        if isinstance(error, HTTPException):
            status = error.status_code
        elif isinstance(error, UnknownTopicError | UnknownGroupError):
            status = 404
        elif isinstance(error, InvalidOptionError):
            status = 400
        said = error.detail if isinstance(error, HTTPException) else sentence(error)
        return self._answer(request, "trouble", None, [], said=said, status=status)

    def _answer(
        self,
        request: Request,
        page_name: str,
        seen: Seen | None,
        missing: Sequence[str],
        status: int = 200,
        **shown: Any,
    ) -> Response:
        query = {key: value for key, value in request.query_params.items() if key != "live"}
        text = self._templates.get_template(f"{page_name}.html").render(
            shown,
            page_name=page_name,
            is_live=_flag(request, "live"),
            here=request.url.path,
            query=query,
            seen=seen,
            missing=[*([seen.trouble] if seen and seen.trouble else []), *missing],
        )
        return HTMLResponse(text.encode(errors="replace"), status)

    def _show(self, data: memoryview | None) -> Shown:
        return show(data, self._registry)

    def _configs(self, request: Request, name: str) -> dict[str, str] | None:
        """What is set for a topic; None where nobody says, or only figures are asked for."""
        if _flag(request, "live"):
            return None
        try:
            with self._readers.cluster() as cluster:
                return dict(describe_topics(cluster, [name])[0].configs)
        except ERRORS:
            return None


class _Download:
    """Bytes in pieces. Gone when nobody takes them any more, however that came."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._data), _CHUNK_BYTES):
            yield bytes(self._data[start : start + _CHUNK_BYTES])


def _described(cluster: Cluster, broker: BrokerAddress) -> BrokerDescription:
    return describe_brokers(cluster, [broker])[0]


def _partitions(seen: Seen, topic: str) -> Sequence[PartitionMetadata]:
    if topic not in seen.overview.topics:
        raise UnknownTopicError(f"Topic {topic} does not exist.")
    return seen.overview.topics[topic]


def _all_partitions(seen: Seen) -> list[PartitionMetadata]:
    return [each for partitions in seen.overview.topics.values() for each in partitions]


def _sorting(request: Request, columns: Sequence[Column[T]], is_bounded: bool) -> Sorting[T]:
    return Sorting(columns, request.query_params.get("sort", ""), is_bounded)


def _needle(found: str) -> bytes:
    """What is searched for; bytes where it is written as 0x and hex digits."""
    if found.startswith("0x"):
        try:
            return bytes.fromhex(found[2:])
        except ValueError:
            pass
    return found.encode(errors="replace")


def _url(path: str, **query: Any) -> str:
    given = {key: value for key, value in query.items() if value not in (None, "", False)}
    return f"{path}?{urlencode(given, errors='replace')}" if given else path


def _needed(request: Request, name: str) -> str:
    value: str | None = request.query_params.get(name)
    if not value:
        raise HTTPException(400, f"The address lacks {name}=.")
    return value


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise HTTPException(400, f"{name} is a number.")
    return int(text)


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name) == "1"
