"""`kafkalog broker`: runs a broker, or a cluster of them."""

import signal
import sys
from contextlib import ExitStack, suppress

import click

from pyspark_kafkalog.cli.arguments import LOOPBACK, PORT, read_settings, takes_output
from pyspark_kafkalog.cli.output import Output
from pyspark_kafkalog.cli.ui import page_beside
from pyspark_kafkalog.errors import KafkalogError


@click.command
@click.option(
    "--data-dir", metavar="DIR", help="Keep topics there (default: a folder that is deleted)."
)
@click.option(
    "--cluster",
    type=click.IntRange(min=1),
    metavar="BROKERS",
    help="Run so many brokers and a ZooKeeper, which needs Java, instead of one broker alone.",
)
@click.option(
    "--port", type=PORT, default=0, metavar="PORT", help="Of one broker (default: a free one)."
)
@click.option(
    "--override",
    multiple=True,
    metavar="PROPERTY=VALUE",
    help="A broker property under Kafka's name; may be repeated.",
)
@click.option(
    "--ui",
    is_flag=False,
    flag_value=f"{LOOPBACK}:0",
    metavar="[HOST:PORT]",
    help="Show the brokers on a page, too (see `kafkalog ui`); without HOST:PORT on a free port.",
)
@takes_output
def command(
    output: Output,
    data_dir: str | None,
    cluster: int | None,
    port: int,
    override: tuple[str, ...],
    ui: str | None,
) -> None:
    """Run a broker, or a cluster of them, until SIGTERM or Ctrl-C.

    Prints its address when clients may connect, and that of the page. Fails where no broker is
    left.
    """
    from pyspark_kafkalog.embedded import EmbeddedBroker
    from pyspark_kafkalog.embedded_cluster import EmbeddedCluster

    if cluster is not None and port:
        raise click.UsageError("--port is for a broker alone: those of a cluster take free ports")
    config = read_settings("--override", override)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = (
        EmbeddedBroker(data_dir, port, config)
        if cluster is None
        else EmbeddedCluster(cluster, data_dir, config)
    )
    with suppress(KeyboardInterrupt), started, ExitStack() as beside:
        servers = started.bootstrap_servers
        addresses = {"bootstrap_servers": servers}
        if ui is not None:
            addresses["page"] = beside.enter_context(page_beside(servers, ui))
        output.row(*addresses.values(), **addresses)
        sys.stdout.flush()
        # Held back, so that an end between the two is not missed.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        while started.is_running:
            signal.sigwaitinfo([signal.SIGCHLD])
        what = "The broker" if cluster is None else "Each broker of the cluster"
        raise KafkalogError(f"{what} has ended, and nobody stopped it.")
