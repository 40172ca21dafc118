"""`kafkalog serve`: runs the loads of a file when they are due."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from pyspark_kafkalog.cli.arguments import SERVERS_VARIABLE, host_and_port, takes_output
from pyspark_kafkalog.cli.output import Output, say_error
from pyspark_kafkalog.errors import KafkalogError, counted

_CLIENT = "kafka."
_SERVERS = f"{_CLIENT}bootstrap.servers"

if TYPE_CHECKING:
    from pyspark_kafkalog.warehouse.service.jobs import Jobs
    from pyspark_kafkalog.warehouse.service.runner import Said, Service


@click.command
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Run nothing, but say what is wrong with the file.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Answer /metrics and /healthz here; a PORT alone is this machine's own (127.0.0.1).",
)
@click.option(
    "--ui",
    metavar="HOST:PORT",
    help="Show the loads, and the cluster of the first of them, on a page (extra ui).",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="The most processes that land records (default: what FILE says, or one for each "
    "processor).",
)
@click.option(
    "--most-at-once",
    type=click.IntRange(min=1),
    metavar="N",
    help="The most loads at work at a time (default: what FILE says, or 4).",
)
@click.option(
    "--lock",
    type=click.Path(path_type=Path),
    metavar="LOCKFILE",
    help="Which file keeps a second service from running the same loads (default: .FILE.lock, "
    "beside FILE).",
)
@takes_output
def command(file: Path, check: bool, output: Output, **options: Any) -> None:
    """Run the loads of FILE when they are due, until SIGTERM or Ctrl-C.

    FILE is TOML: a table [[load]] for each load, with the options of `kafkalog load` as keys, and
    `every = "5 minutes"` or `cron = "0 3 * * *"`. SIGHUP reads it anew. SIGTERM or Ctrl-C ends with
    the commit at work, a second one at once.
    """
    if not check:
        # One that comes while the service starts is heard when its handler is there.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    from pyspark_kafkalog.warehouse.service.jobs import read_jobs

    def read() -> "Jobs":
        return read_jobs(file, os.environ.get(SERVERS_VARIABLE))

    if check:
        jobs = read()
        for job in jobs.jobs:
            output.row(f"{job.name}: into {job.place}", name=job.name, target=job.place)
        return
    from pyspark_kafkalog.warehouse.service.lock import lock_path, locked
    from pyspark_kafkalog.warehouse.service.runner import Service

    tell = _Teller(output)
    with locked(options["lock"] or lock_path(file)):
        service = Service(read, tell, options["workers"], options["most_at_once"])
        with _signals(service) as received, ExitStack() as stack:
            if options["listen"]:
                _listen(options["listen"], service, stack, output)
            if options["ui"]:
                page = stack.enter_context(_page(service, options["ui"]))
                output.row(page, page=page)
            tell.row(f"Serving {counted(len(service.jobs), 'load')}.", serving=len(service.jobs))
            was_stopped = service.run()
        if not was_stopped:
            sys.stdout.flush()
            # At once: a load may still wait for what hangs, and has been given up.
            os._exit(128 + received[-1])
    tell.row("Stopped.", serving=0)


class _Teller:
    """Prints what the service says, whole lines whoever says it. Loads go on where nobody hears it
    any more."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._lock = threading.Lock()

    def __call__(self, said: "Said") -> None:
        # Nobody to tell, or a disk that is full, is no reason to land nothing.
        with suppress(OSError):
            self._tell(said)

    def _tell(self, said: "Said") -> None:
        if said.is_error:
            with self._lock:
                say_error(said.text)
            return
        document: dict[str, Any] = {"said": said.text}
        if said.job is not None and said.result is not None:
            result = said.result
            document = {
                "name": said.job.name,
                "target": said.job.place,
                "topic": said.topic,
                "commit": result.commit_id,
                "commits": result.commits,
                "records": result.records,
                "bytes": result.bytes,
                "offsets_gone": sum(gap.offset_count for gap in result.gaps),
                "bad_records": result.bad_records,
            }
        self.row(said.text, **document)

    def row(self, text: str, **document: Any) -> None:
        with self._lock, suppress(OSError):
            self._output.say(text, **document)
            sys.stdout.flush()


def _listen(at: str, service: "Service", stack: ExitStack, output: Output) -> None:
    from pyspark_kafkalog.warehouse.service.endpoint import endpoint
    from pyspark_kafkalog.warehouse.service.lag_watch import LagWatch
    from pyspark_kafkalog.warehouse.service.metrics import LoadCollector

    host, port = host_and_port("--listen", at)
    try:
        collector = LoadCollector(service.figures)
        address = stack.enter_context(endpoint(host, port, collector, service.unwell))
    except OSError as error:
        raise KafkalogError(f"--listen {at} cannot be: {error.strerror or error}.") from error
    stack.enter_context(LagWatch(lambda: service.jobs, service.figures).watching())
    output.row(f"http://{address}/metrics", metrics=f"http://{address}/metrics")


def _page(service: "Service", at: str) -> AbstractContextManager[str]:
    """Of the cluster of the first load, and of all loads that are of that cluster."""
    from pyspark_kafkalog.cli.ui import page_within

    jobs = list(service.jobs.values())
    shown = jobs[0].options[_SERVERS]
    targets = {job.target: None for job in jobs if job.options[_SERVERS] == shown}
    client = {
        name.removeprefix(_CLIENT): value
        for name, value in jobs[0].options.items()
        if name.startswith(_CLIENT)
    }
    return page_within(client, list(targets), at)


@contextmanager
def _signals(service: "Service") -> Iterator[list[int]]:
    """SIGTERM and Ctrl-C stop the service, SIGHUP has it read its file anew; yields the
    numbers of those that came to stop it."""
    from pyspark_kafkalog.warehouse.service.runner import Asked

    received: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        service.ask(Asked.STOP)

    def reload(_number: int, _frame: FrameType | None) -> None:
        service.ask(Asked.RELOAD)

    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: reload}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
