"""loads.toml: which loads there are and when they run, read and checked as a whole.

    workers = 4                     # processes that land records, of all loads
    [defaults]                      # for all loads
    bootstrap-servers = "..."
    [[load]]
    name = "nightly"
    topics = ["orders"]
    to = "delta:/lake/orders"
    every = "5 minutes"

Every mistake is found at once, each with its line. Values that may be secrets are in no message.
Reads files that the loads name; asks no broker, target or registry.
"""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timezone
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from pyspark_kafkalog.client import properties
from pyspark_kafkalog.errors import InvalidOptionError, KafkalogError, MissingExtraError, sentence
from pyspark_kafkalog.protocol.properties_text import parse_properties
from pyspark_kafkalog.warehouse.each_topic import AT_ONCE, EachTopic
from pyspark_kafkalog.warehouse.named_function import function_named
from pyspark_kafkalog.warehouse.options import LoadArguments, LoadOptions, load_options
from pyspark_kafkalog.warehouse.rows.transformation import takes_batches
from pyspark_kafkalog.warehouse.service.agenda import Retry
from pyspark_kafkalog.warehouse.service.keys import (
    ARGUMENTS,
    INSTEAD,
    LOAD_KEYS,
    SERVICE_KEYS,
    Kind,
)
from pyspark_kafkalog.warehouse.service.schedule import Every, Schedule, cron
from pyspark_kafkalog.warehouse.service.settings_text import Expansion
from pyspark_kafkalog.warehouse.service.toml_lines import TableLines, table_lines
from pyspark_kafkalog.warehouse.targets.target import open_target
from pyspark_kafkalog.warehouse.topic_places import TOPIC, names_topic, target_of

_SERVERS = "bootstrap.servers"
_A_TOPIC = "any--topic"
_LINE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_TABLES = ("defaults", "load")
_TOPICS = ("subscribe", "subscribePattern")
_WRONG = (KafkalogError, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong, and on which line."""

    line: int
    what: str


class InvalidJobsError(InvalidOptionError):
    """A file of loads has mistakes; the message has a line for each of them."""

    def __init__(self, path: str, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = sorted(set(mistakes), key=lambda each: (each.line, each.what))
        super().__init__("\n".join(f"{path}:{each.line}: {each.what}" for each in self.mistakes))


@dataclass(frozen=True, slots=True)
class Key:
    """What tells a load from others: its name and its target."""

    name: str
    target: str


@dataclass(frozen=True, slots=True)
class Job:
    """One load and when it runs. `place` is its target as people may see it."""

    name: str
    target: str
    place: str
    options: Mapping[str, str]
    arguments: LoadArguments
    schedule: Schedule
    retry: Retry
    at_once: int
    maintain_every_s: float | None
    line: int

    @property
    def key(self) -> Key:
        return Key(self.name, self.target)

    @property
    def is_for_each_topic(self) -> bool:
        return names_topic(self.target)

    def wanted(self) -> LoadOptions:
        """For a run of it; raises what `load_options` does."""
        return load_options(self.name, self.target, self.options, **self.arguments)

    def each(self) -> EachTopic:
        """The same where the target says {topic}."""
        return EachTopic(self.name, self.target, self.options, self.arguments)


@dataclass(frozen=True, slots=True)
class Jobs:
    """What a file says; None is for the service to choose."""

    jobs: tuple[Job, ...]
    workers: int | None = None
    most_at_once: int | None = None


def read_jobs(path: Path, environment_servers: str | None = None) -> Jobs:
    """The file's loads; `environment_servers` count where it names no brokers.

    Raises InvalidJobsError for all mistakes in it, InvalidOptionError where it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidOptionError(f"{path} is not valid UTF-8: save it as UTF-8.") from None
    return _Reader(path, text, environment_servers).jobs()


class _Reader:
    """Reads one file, and notes what is wrong on the way."""

    def __init__(self, path: Path, text: str, environment_servers: str | None) -> None:
        self._path = path
        self._text = text
        self._servers = environment_servers
        self._lines: Mapping[str, list[TableLines]] = {}
        self._expansion = Expansion(path.parent)
        self._mistakes: list[Mistake] = []

    def jobs(self) -> Jobs:
        document = self._document()
        self._lines = table_lines(self._text)
        top = self._lines[""][0]
        given = {name: value for name, value in document.items() if name not in _TABLES}
        service = self._checked(given, top, {**SERVICE_KEYS, **dict.fromkeys(_TABLES, _any)})
        defaults = self._defaults(document.get("defaults", {}))
        loads = document.get("load", [])
        if not isinstance(loads, list) or not all(isinstance(each, dict) for each in loads):
            self._note(top.of("load"), "write each load under a line [[load]]")
            loads = []
        elif not loads:
            self._note(1, "there is no load: write each one under a line [[load]]")
        found = []
        for number, load in enumerate(loads):
            lines = self._table("load", number)
            job = self._job(load, lines, defaults)
            if job is not None:
                found.append(job)
        self._refuse_twice(found)
        if self._mistakes:
            raise InvalidJobsError(str(self._path), self._mistakes)
        return Jobs(tuple(found), service.get("workers"), service.get("most-at-once"))

    def _document(self) -> dict[str, Any]:
        toml = _toml()
        try:
            document: dict[str, Any] = toml.loads(self._text)
        except RecursionError:
            what = "its arrays and tables stand in one another too deep"
            raise InvalidJobsError(str(self._path), [Mistake(1, what)]) from None
        except toml.TOMLDecodeError as error:
            found = _LINE.search(str(error))
            last = self._text.count("\n") + 1
            line = int(found[1]) if found and found[1] else last
            what = f"this is no TOML: {_LINE.sub('', str(error))}"
            raise InvalidJobsError(str(self._path), [Mistake(line, what)]) from None
        return document

    def _table(self, name: str, number: int) -> TableLines:
        tables = self._lines.get(name, [])
        # Tables may be written in a way whose lines are not known: load = [{...}].
        return tables[number] if number < len(tables) else TableLines(self._lines[""][0].of(name))

    def _defaults(self, given: Any) -> dict[str, Any]:
        lines = self._table("defaults", 0)
        if not isinstance(given, dict):
            self._note(lines.line, "defaults are a table: write [defaults]")
            return {}
        kinds = {name: kind for name, kind in LOAD_KEYS.items() if name != "name"}
        return self._checked(given, lines, kinds)

    def _job(
        self, given: dict[str, Any], lines: TableLines, defaults: dict[str, Any]
    ) -> Job | None:
        count = len(self._mistakes)
        own = self._checked(given, lines, LOAD_KEYS)
        said = {name for key in given if (name := INSTEAD.get(_dashed(key)))}
        merged = {name: value for name, value in defaults.items() if name not in said} | own
        for name in ("property", "option", "registry-option"):
            if name in defaults and name in own:
                merged[name] = {**defaults[name], **own[name]}
        for one, other in (("every", "cron"), ("topics", "pattern")):
            if one in merged and other in merged:
                self._note(lines.of(other), f"{one} and {other} exclude each other")
            elif (
                one not in merged and other not in merged and not self._was_said(given, one, other)
            ):
                self._note(lines.line, f"this load has no {one}, and no {other}")
        for name in ("name", "to"):
            if name not in merged and not self._was_said(given, name):
                self._note(lines.line, f"this load has no {name}")
        if len(self._mistakes) > count:
            return None
        return self._built(merged, lines)

    @staticmethod
    def _was_said(given: dict[str, Any], *names: str) -> bool:
        return any(_dashed(key) in names for key in given)

    def _checked(
        self, given: dict[str, Any], lines: TableLines, kinds: Mapping[str, Kind]
    ) -> dict[str, Any]:
        """The values of known keys, as their kinds have them; notes what is wrong."""
        found: dict[str, Any] = {}
        for key, value in given.items():
            name = _dashed(key)
            line = lines.of(key)
            if name not in kinds:
                near = get_close_matches(name, kinds, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                self._note(line, f"there is no key {key} here{hint}")
                continue
            try:
                found[name] = kinds[name](self._expansion.expanded(value))
            except InvalidOptionError as error:
                self._note(line, f"{key}: {sentence(error)}")
        return found

    def _built(self, merged: dict[str, Any], lines: TableLines) -> Job | None:
        """The job, checked as `load` checks what it is given; None where it noted a mistake."""
        schedule = self._tried(lines, "cron", lambda: _schedule(merged))
        options = self._tried(lines, "property", lambda: self._options(merged))
        schema = self._tried(lines, "value-schema", lambda: self._schema(merged))
        transform = self._tried(lines, "transform", lambda: _transform(merged))
        target = merged["to"]
        place = self._tried(lines, "to", lambda: _place(target))
        if None in (schedule, options, schema, transform, place):
            return None
        arguments = _arguments(merged) | schema | transform
        retry = Retry(merged.get("retry-first", 1.0), merged.get("retry-most", 300.0))
        at_once = merged.get("at-once", AT_ONCE)
        name, line = merged["name"], lines.line
        kept = cast(LoadArguments, arguments)
        every = merged.get("maintain-every")
        job = Job(name, target, place, options, kept, schedule, retry, at_once, every, line)
        try:
            _check(job)
        except _WRONG as error:
            self._note(lines.of(_culprit(job, lines.keys)), sentence(error))
            return None
        return job

    def _tried(self, lines: TableLines, key: str, make: Callable[[], Any]) -> Any:
        """What is made; None where that raised an error, which is noted at the line of `key`."""
        try:
            return make()
        except _WRONG as error:
            self._note(lines.of(key), sentence(error))
            return None

    def _options(self, merged: dict[str, Any]) -> dict[str, str]:
        """The options of the read, with the client's properties."""
        given: dict[str, str] = {}
        if "command-config" in merged:
            text = (self._path.parent / merged["command-config"]).read_text(encoding="utf-8")
            given |= parse_properties(text)
        if self._servers and _SERVERS not in given:
            given[_SERVERS] = self._servers
        given |= merged.get("property", {})
        given = {name.removeprefix("kafka."): value for name, value in given.items()}
        if "bootstrap-servers" in merged:
            given[_SERVERS] = merged["bootstrap-servers"]
        properties.refuse_unknown(given)
        if _SERVERS not in given:
            raise InvalidOptionError("no brokers are named: write bootstrap-servers")
        options = {f"kafka.{name}": value for name, value in given.items()}
        options |= merged.get("option", {})
        if "pattern" in merged:
            return options | {"subscribePattern": merged["pattern"]}
        return options | {"subscribe": ",".join(merged["topics"])}

    def _schema(self, merged: dict[str, Any]) -> dict[str, Any]:
        if "value-schema" not in merged:
            return {}
        path = self._path.parent / merged["value-schema"]
        return {"value_schema": path.read_text(encoding="utf-8")}

    def _refuse_twice(self, jobs: Iterable[Job]) -> None:
        known: dict[Key, Job] = {}
        for job in jobs:
            first = known.setdefault(job.key, job)
            if first is not job:
                self._note(
                    job.line, f"load {job.name} into {job.place} is that of line {first.line}"
                )

    def _note(self, line: int, what: str) -> None:
        self._mistakes.append(Mistake(line, self._expansion.hidden(what)))


def _toml() -> Any:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"a file of loads needs {name}, which is not installed: "
            "pip install 'pyspark-kafkalog[serve]'"
        ) from error


def _any(value: Any) -> Any:
    return value


def _dashed(key: str) -> str:
    return key.replace("_", "-")


def _schedule(merged: dict[str, Any]) -> Schedule:
    if "every" in merged:
        return Every(merged["every"])
    return cron(merged["cron"], merged.get("time-zone", timezone.utc))


def _place(target: str) -> str:
    """As people may see it; raises InvalidOptionError where it cannot be."""
    if not names_topic(target):
        return str(open_target(target))
    return str(open_target(target_of(target, _A_TOPIC))).replace(_A_TOPIC, TOPIC)


def _arguments(merged: dict[str, Any]) -> dict[str, Any]:
    """Those of `load` that stand in the file themselves."""
    found = {ARGUMENTS[name]: merged[name] for name in ARGUMENTS if name in merged}
    registry = dict(merged.get("registry-option", {}))
    if "registry" in merged:
        registry["schema.registry.url"] = merged["registry"]
    return found | ({"registry": registry} if registry else {})


def _transform(merged: dict[str, Any]) -> dict[str, Any]:
    if "transform" not in merged:
        return {}
    function = function_named(merged["transform"])
    if not takes_batches(function):
        raise InvalidOptionError(
            "transform is a function of DataFrames, which are Spark's: annotate its parameter as "
            "pyarrow.RecordBatch, or run it by kafkalog load"
        )
    return {"transform": function}


def _check(job: Job) -> None:
    """Raises InvalidOptionError and others for what `load` would refuse before it asks anybody."""
    arguments: dict[str, Any] = dict(job.arguments)
    if arguments.get("value_schema") is None and "registry" in arguments:
        # A registry is asked when the load runs; columns are not known before.
        for name in ("registry", "value_format", "partition_by", "sort_by"):
            arguments.pop(name, None)
    kept = cast(LoadArguments, arguments)
    if job.is_for_each_topic:
        EachTopic(job.name, job.target, job.options, kept).of(_A_TOPIC)
    else:
        load_options(job.name, job.target, job.options, **kept)


def _culprit(job: Job, keys: Iterable[str]) -> str:
    """The key without which a job that is wrong would not be; "" where there is none."""
    client = {name: value for name, value in job.options.items() if name.startswith("kafka.")}
    client |= {name: job.options[name] for name in _TOPICS if name in job.options}
    for key in keys:
        name = _dashed(key)
        kept = {n: v for n, v in job.arguments.items() if n != ARGUMENTS.get(name)}
        without = replace(job, arguments=cast(LoadArguments, kept))
        if name == "option":
            without = replace(without, options=client)
        try:
            _check(without)
        except _WRONG:
            continue
        return key
    return ""
