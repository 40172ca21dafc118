"""`kafkalog compile-pyspark`: lets Spark's Python processes start sooner."""

import click

from pyspark_kafkalog.cli.arguments import takes_output
from pyspark_kafkalog.cli.output import Output


@click.command
@takes_output
def command(output: Output) -> None:
    """Let Spark's Python processes start sooner.

    Compiles the modules that each of them imports out of PySpark's archives. Run it once after
    PySpark was installed, while no Spark runs here.
    """
    from pyspark_kafkalog.compile_pyspark import compile_archive, imported_archives

    for archive in imported_archives():
        compiled = compile_archive(archive)
        output.say(f"{archive}: {compiled} modules compiled", archive=archive, modules=compiled)
