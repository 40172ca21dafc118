"""The id of a cluster over ZooKeeper: one, whoever begins it."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kafka.errors import InconsistentClusterIdError

from broker.boot.cluster_id import cluster_id_of_member
from broker.cluster.records import MetadataRecords
from broker.cluster.zookeeper_store import ZooKeeperStore
from broker.config.broker import BrokerConfig
from broker.log.files import DiskFiles
from broker.log.meta_properties import claim
from tests.broker.cluster.conftest import Events
from tests.support.zookeeper import ZooKeeperServer


def config(*directories: Path) -> BrokerConfig:
    return BrokerConfig.from_properties(
        {
            "log.dirs": ",".join(map(str, directories)),
            "zookeeper.connect": "127.0.0.1:1/kafka",
        }
    )


def test_brokers_that_begin_it_at_once_are_of_one_cluster(
    zookeeper: ZooKeeperServer,
    open_store: Callable[..., tuple[ZooKeeperStore, Events]],
    tmp_path: Path,
) -> None:
    both_looked = threading.Barrier(2)

    class LooksFirst(MetadataRecords):
        looks = 0

        def cluster_id(self) -> str | None:
            found = super().cluster_id()
            self.looks += 1
            if self.looks == 1:
                both_looked.wait(30)
            return found

    stores = [open_store(zookeeper.address)[0] for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(
            lambda store: cluster_id_of_member(config(tmp_path), LooksFirst(store)), stores
        )
    assert first == second == MetadataRecords(stores[0]).cluster_id()


def test_logs_of_a_cluster_begin_none_elsewhere(
    zookeeper: ZooKeeperServer,
    open_store: Callable[..., tuple[ZooKeeperStore, Events]],
    tmp_path: Path,
) -> None:
    (tmp_path / "second").mkdir()
    claim(tmp_path / "second", 1, "theirs", DiskFiles())
    records = MetadataRecords(open_store(zookeeper.address)[0])
    given = config(tmp_path / "first", tmp_path / "second")
    with pytest.raises(
        InconsistentClusterIdError, match=r"second belongs to cluster theirs.*:1/kafka: check"
    ):
        cluster_id_of_member(given, records)
    assert records.cluster_id() is None
    records.set_cluster_id("another")
    assert cluster_id_of_member(given, records) == "another"  # the logs refuse it
