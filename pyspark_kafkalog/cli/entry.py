"""Runs one command line. Each word is a module beside this one with a click command `command`.

What a command raises as one of the connector's, Kafka's or the system's errors is printed as a
sentence on stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM. A word's
module is imported when the word is used, and what is slow to import inside of it where it is
needed: help and completion take a tenth of a second.
"""

import io
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from pyspark_kafkalog import __version__
from pyspark_kafkalog.cli.output import is_stdout_closed, say_error
from pyspark_kafkalog.errors import InvalidOptionError, KafkalogError, sentence
from pyspark_kafkalog.protocol.kafka_package import leave_unopened

WORDS = {
    "quickstart": "Run real flights through every part.",
    "broker": "Run a broker, or a cluster of them.",
    "topics": "Create, list, describe and delete topics.",
    "produce": "Write the lines of stdin as records.",
    "consume": "Print a topic's records.",
    "groups": "List, describe, reset and delete consumer groups.",
    "lag": "Show how far a consumer group is behind.",
    "cluster": "Describe the cluster and its brokers.",
    "load": "Land what is new in topics in a warehouse.",
    "serve": "Run many loads when they are due.",
    "maintain": "Compact small files, remove what is old.",
    "status": "Show where loads are and how far behind.",
    "ui": "Show topics, records, groups and loads in a browser.",
    "compile-pyspark": "Let Spark's Python processes start sooner.",
    "completion": "Print a script that lets a shell complete words.",
}
"""Each word and what its help says first, so that the list of words imports none of them."""


class _Kafkalog(click.Group):
    """The words, imported when they are used, and what all of them share at their end."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(WORDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in WORDS:
            return None
        word: click.Command = import_module(
            f"pyspark_kafkalog.cli.{cmd_name.replace('-', '_')}"
        ).command
        word.name = cmd_name  # for those who make a reference of the tree
        return word

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in WORDS and not word.startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            found = get_close_matches(word, WORDS, n=1)
            hint = f" Did you mean {found[0]!r}?" if found else ""
            ctx.fail(f"No such command {word!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(WORDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:
            ctx.exit(130)
        except BrokenPipeError as error:
            # Whoever read our output has seen enough; nothing may be written to it at exit either.
            # A connection to a server that broke is another thing.
            if not is_stdout_closed():
                _fail(ctx, error)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except UnicodeEncodeError:
            # Not shown, as it may be a secret.
            _fail(ctx, InvalidOptionError("An argument is no UTF-8: names in Kafka are."))
        except Exception as error:
            if not _is_for_people(error):
                raise
            _fail(ctx, error)


_kafkalog = _Kafkalog(
    "kafkalog",
    help="""Kafka-protocol topics from a shell: brokers, topics, records, groups, and loads into a
    warehouse.

    Commands that talk to a cluster find it by --bootstrap-servers, by the environment variable
    KAFKALOG_BOOTSTRAP_SERVERS, or by bootstrap.servers in the file that --command-config or
    KAFKALOG_COMMAND_CONFIG names.

    Exit codes: 0 done, 1 failed (a sentence on stderr says why), 2 wrong usage, 130 Ctrl-C,
    143 SIGTERM.""",
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            help="Show the version and exit.",
            callback=lambda ctx, _, is_asked: _tell_version(ctx) if is_asked else None,
        )
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line; returns the exit code. Without `arguments` it is the process's own,
    which words may suit to themselves: it is the context's `obj`."""
    _open_what_is_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of groups, and of files, may have what a terminal, or UTF-8, has not.
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.getLogger().addFilter(_is_no_interrupt)
    if arguments is None:
        leave_unopened()
    given = None if arguments is None else list(arguments)
    try:
        code = _kafkalog.main(
            given, prog_name="kafkalog", standalone_mode=False, obj=arguments is None
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    except OSError as error:  # of help, which no word prints
        _say(error)
        return 1
    return code or 0


def _open_what_is_closed() -> None:
    """Whoever started us may have closed one of them; what is meant for stderr would go to stdout
    then."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def command_tree() -> click.Group:
    """All words, for what is made from them: a shell's completion, a reference."""
    return _kafkalog


def _tell_version(ctx: click.Context) -> None:
    click.echo(__version__)
    ctx.exit()


def _fail(ctx: click.Context, error: Exception) -> None:
    _say(error)
    ctx.exit(1)


def _say(error: Exception) -> None:
    say_error(sentence(error))


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Spark's bridge to its JVM logs a traceback for each call that Ctrl-C cuts short."""
    error = record.exc_info and record.exc_info[1]
    while error:
        # PySpark's handler of Ctrl-C asks the JVM, maybe in the middle of another answer.
        if isinstance(error, KeyboardInterrupt) or "reentrant call" in str(error):
            return False
        error = error.__context__
    return True


def _is_for_people(error: Exception) -> bool:
    """Whether what an error says is enough. An error of Kafka's comes with its module."""
    kafka_errors = sys.modules.get("kafka.errors")
    return isinstance(error, KafkalogError | OSError) or (
        kafka_errors is not None and isinstance(error, kafka_errors.KafkaError)
    )
