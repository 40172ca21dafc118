"""The APIs that brokers of a cluster speak with each other, beside those that clients speak too."""

from typing import Any

from broker.api import (
    allocate_producer_ids,
    alter_partition,
    controlled_shutdown,
    leader_and_isr,
    stop_replica,
    update_metadata,
)
from broker.api.request import Api

CLUSTER_APIS: tuple[Api[Any], ...] = (
    leader_and_isr.API,
    stop_replica.API,
    update_metadata.API,
    controlled_shutdown.API,
    alter_partition.API,
    allocate_producer_ids.API,
)
