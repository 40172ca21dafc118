"""`kafkalog cluster`: which brokers a cluster has, and how its partitions are."""

from typing import TYPE_CHECKING

import click

from pyspark_kafkalog.cli.arguments import Client, takes_client, takes_output
from pyspark_kafkalog.cli.output import Output

if TYPE_CHECKING:
    from pyspark_kafkalog.client.brokers import BrokerDescription
    from pyspark_kafkalog.client.cluster import ClusterOverview


@click.group
def command() -> None:
    """Describe the cluster and its brokers."""


@command.command
@takes_client
@takes_output
def describe(client: Client, output: Output) -> None:
    """Show brokers, controller, features and lost replicas.

    Partitions with missing replicas (under_replicated), or with no leader (offline), are counted.
    """
    from pyspark_kafkalog.client.brokers import describe_brokers

    with client.cluster() as cluster:
        overview = cluster.overview()
        brokers = describe_brokers(cluster, overview.brokers)
    _tell(output, overview, brokers)


def _tell(output: Output, overview: "ClusterOverview", brokers: "list[BrokerDescription]") -> None:
    partitions = [each for topic in overview.topics.values() for each in topic]
    offline = sum(each.leader < 0 for each in partitions)
    under = sum(len(each.isr) < len(each.replicas) for each in partitions)
    features = next((broker.features for broker in brokers if broker.apis), {})
    lines = [
        f"cluster={overview.cluster_id or '-'} controller={overview.controller}"
        f" brokers={len(brokers)} topics={len(overview.topics)} partitions={len(partitions)}"
        f" under_replicated={under} offline={offline}",
        *(f"  feature {name}={level}" for name, level in sorted(features.items())),
        *(
            f"  broker={broker.at.broker_id} host={broker.at.host} port={broker.at.port}"
            f" rack={broker.at.rack or '-'} {_state(broker)}"
            for broker in brokers
        ),
        *(f"  broker={broker_id} host=- port=- rack=- away" for broker_id in overview.brokers_away),
    ]
    output.row(
        *lines,
        cluster_id=overview.cluster_id,
        controller=overview.controller,
        topics=len(overview.topics),
        partitions=len(partitions),
        under_replicated=under,
        offline=offline,
        features=features,
        brokers=[
            {
                "broker": broker.at.broker_id,
                "host": broker.at.host,
                "port": broker.at.port,
                "rack": broker.at.rack,
                "reachable": bool(broker.apis),
                "protocol_version": broker.version,
                "apis": {str(key): list(versions) for key, versions in broker.apis.items()},
            }
            for broker in brokers
        ],
        away=overview.brokers_away,
    )


def _state(broker: "BrokerDescription") -> str:
    return (
        f"speaks=Kafka-{broker.version} apis={len(broker.apis)}" if broker.apis else "unreachable"
    )
