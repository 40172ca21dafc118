"""Topics and groups of the cluster, as a shell completes them. Where no cluster is named, or none
answers soon, there are none: whoever presses a key waits, and wants no error in the line. Nor are
names offered that would do something else to the line than to stand in it."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from pyspark_kafkalog.cli.arguments import Client
from pyspark_kafkalog.cli.output import without_controls

if TYPE_CHECKING:
    from pyspark_kafkalog.client.cluster import Cluster

_PATIENCE_MS = "1500"


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return _completed(ctx, param, incomplete, lambda cluster: cluster.topics())


def complete_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    def names(cluster: "Cluster") -> list[str]:
        from pyspark_kafkalog.client.groups import list_groups

        return [group.name for group in list_groups(cluster)]

    return _completed(ctx, param, incomplete, names)


def _completed(
    ctx: click.Context,
    param: click.Parameter,
    incomplete: str,
    ask: "Callable[[Cluster], Iterable[str]]",
) -> list[str]:
    given = ctx.params
    client = Client(
        given.get("bootstrap_servers"),
        given.get("property") or (),
        given.get("command_config"),
    )
    try:
        from pyspark_kafkalog.client.cluster import Cluster

        config = client.config(request_timeout_ms=_PATIENCE_MS)
        with Cluster(config, fails_fast=True) as cluster:
            names = sorted(ask(cluster))
    except Exception:
        return []
    there = given.get(param.name or "") or ()
    return [
        name
        for name in names
        if name.startswith(incomplete) and name not in there and name == without_controls(name)
    ]
