"""`kafkalog maintain`: compacts the small files of a load target and removes what is old in it."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from pyspark_kafkalog.cli.arguments import takes_output
from pyspark_kafkalog.cli.output import Output
from pyspark_kafkalog.cli.sigterm import end_on_sigterm
from pyspark_kafkalog.errors import counted

if TYPE_CHECKING:
    from pyspark_kafkalog.warehouse.maintain import MaintainResult


@click.command
@click.argument("target")
@click.option(
    "--target-file-size",
    metavar="SIZE",
    help="About how large files become, such as 256m (default: what the table's properties say, or "
    "512m).",
)
@click.option(
    "--retention-hours",
    type=float,
    metavar="HOURS",
    help="How long old versions of the table stay (default: what its properties say), and what "
    "killed loads left (default: 24).",
)
@click.option(
    "--force",
    is_flag=True,
    help="Let --retention-hours be less than 24, or than the table's properties say.",
)
@click.option("--no-compact", is_flag=True, help="Leave small files as they are.")
@click.option("--no-expire", is_flag=True, help="Leave old versions of the table.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing.")
@takes_output
def command(
    output: Output,
    target: str,
    target_file_size: str | None,
    retention_hours: float | None,
    no_compact: bool,
    no_expire: bool,
    **flags: bool,
) -> None:
    """Compact small files, and remove old versions and what killed loads left, beside loads.

    TARGET is named as for `kafkalog load --to`. With --no-compact --no-expire only what killed
    loads left is removed.
    """
    from pyspark_kafkalog.warehouse.maintain import maintain

    end_on_sigterm()
    result = maintain(
        target,
        target_file_bytes=target_file_size,
        retention_hours=retention_hours,
        compact=not no_compact,
        expire=not no_expire,
        **flags,
    )
    if output.as_json:
        output.row("", **asdict(result))
        return
    for path in result.removed:
        output.row(path)
    for reason in result.left:
        output.say(f"Left as it is, {reason}.")
    output.say(_summary(result))


def _summary(result: "MaintainResult") -> str:
    would = "would be " if result.dry_run else ""
    into = "" if result.dry_run else f" with {counted(result.written_bytes, 'byte')}"
    return (
        f"{counted(result.compacted_files, 'file')} with {counted(result.compacted_bytes, 'byte')} "
        f"{would}compacted into {result.written_files:,}{into}; "
        f"{counted(result.expired, 'old version')} and {counted(len(result.removed), 'path')} "
        f"{would}removed."
    )
