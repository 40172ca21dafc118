"""`kafkalog quickstart`: real flights through every part."""

from dataclasses import asdict

import click

from pyspark_kafkalog.cli.arguments import PORT, let_spark_workers_be_this_python, takes_output
from pyspark_kafkalog.cli.output import Output


@click.command
@click.option(
    "--dir", metavar="DIR", help="Keep log and warehouse in this new folder (default: neither)."
)
@click.option(
    "--port", type=PORT, default=0, metavar="PORT", help="The broker's port (default: a free one)."
)
@takes_output
def command(output: Output, dir: str | None, port: int) -> None:
    """Run real flights through every part: broker, DataFrame, stream and warehouse."""
    from rich.console import Console

    from pyspark_kafkalog.quickstart import run_quickstart

    let_spark_workers_be_this_python()
    steps = run_quickstart(dir, port, Console(quiet=output.is_quiet or output.as_json))
    if output.as_json:
        for step in steps:
            output.say(step.name, **asdict(step))
