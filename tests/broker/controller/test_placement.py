"""Where replicas of new partitions go."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import InvalidReplicationFactorError

from broker.cluster.metadata import PartitionMetadata
from broker.controller.placement import place, place_more

node_ids = st.lists(st.integers(0, 1000), min_size=1, max_size=12, unique=True)


@given(nodes=node_ids, partitions=st.integers(1, 60), data=st.data())
def test_each_broker_has_its_share(nodes, partitions, data):
    replication_factor = data.draw(st.integers(1, len(nodes)))
    placed = place(nodes, partitions, replication_factor)
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == replication_factor
        assert set(replicas) <= set(nodes)
    led = Counter(replicas[0] for replicas in placed)
    assert max(led.values()) - min(led[node] for node in nodes) <= 1


def test_as_apache_kafka_places_them():
    """The example of AdminUtils: 10 partitions with 3 replicas on 5 brokers, from the first on."""
    assert place([0, 1, 2, 3, 4], 10, 3, first_broker=0) == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 4),
        (3, 4, 0),
        (4, 0, 1),
        (0, 2, 3),
        (1, 3, 4),
        (2, 4, 0),
        (3, 0, 1),
        (4, 1, 2),
    ]


def test_more_replicas_than_brokers():
    with pytest.raises(InvalidReplicationFactorError, match="only 2 broker"):
        place([1, 2], 1, 3)


def test_partitions_that_are_added_go_on_where_the_others_end():
    whole = place([1, 2, 3], 7, 2, first_broker=1)
    present = [PartitionMetadata(replicas, replicas[0], 0, replicas, 0) for replicas in whole[:4]]
    added = place_more([1, 2, 3], present, 3)
    assert [replicas[0] for replicas in added] == [replicas[0] for replicas in whole[4:]]
    assert {len(set(replicas)) for replicas in added} == {2}
