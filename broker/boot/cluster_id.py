"""Which cluster a broker over ZooKeeper is a member of.

The id is the tree's, as Apache Kafka has it; the first broker makes it up, however many start at
once. Logs that know one already belong to a tree that has it: where the tree has none, it is
another one than they were written in (a wrong address, a wrong path behind it), and their topics
would seem to be gone. Blocks.
"""

from contextlib import suppress

from kafka.errors import InconsistentClusterIdError

from broker.cluster.records import MetadataRecords
from broker.config.broker import BrokerConfig
from broker.log.files import DiskFiles
from broker.log.meta_properties import new_id, read_cluster_id


def cluster_id_of_member(config: BrokerConfig, records: MetadataRecords) -> str:
    """Raises InconsistentClusterIdError where the logs are of a cluster, and the tree of none."""
    known = records.cluster_id()
    if known is not None:
        return known
    for directory in config.data_dirs:
        ours = None
        with suppress(OSError):  # whether it can do without is told when its logs are opened
            ours = read_cluster_id(directory, DiskFiles())
        if ours is not None:
            raise InconsistentClusterIdError(
                f"{directory} belongs to cluster {ours}, and there is none at "
                f"zookeeper.connect={config.zookeeper_connect}: check the address and its path"
            )
    # Another broker may be faster: then the id is its.
    with suppress(InconsistentClusterIdError):
        records.set_cluster_id(config.cluster_id or new_id())
    made = records.cluster_id()
    assert made is not None
    return made
