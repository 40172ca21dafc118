"""Where replicas of new partitions go."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import InvalidReplicationFactorError

from broker.cluster.metadata import PartitionMetadata
from broker.controller.placement import place, place_more

node_ids = st.lists(st.integers(0, 1000), min_size=1, max_size=12, unique=True)


@given(nodes=node_ids, partitions=st.integers(1, 60), data=st.data())
def test_each_broker_has_its_share(nodes: list[int], partitions: int, data: st.DataObject) -> None:
    replication_factor = data.draw(st.integers(1, len(nodes)))
    placed = place(dict.fromkeys(nodes), partitions, replication_factor)
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == replication_factor
        assert set(replicas) <= set(nodes)
    led = Counter(replicas[0] for replicas in placed)
    assert max(led.values()) - min(led[node] for node in nodes) <= 1


def test_as_apache_kafka_places_them() -> None:
    """The example of AdminUtils: 10 partitions with 3 replicas on 5 brokers, from the first on."""
    assert place(dict.fromkeys(range(5)), 10, 3, first_broker=0) == [
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


def test_more_replicas_than_brokers() -> None:
    with pytest.raises(InvalidReplicationFactorError, match="only 2 broker"):
        place({1: None, 2: None}, 1, 3)


def test_partitions_that_are_added_go_on_where_the_others_end() -> None:
    racks = dict.fromkeys((1, 2, 3))
    whole = place(racks, 7, 2, first_broker=1)
    present = [PartitionMetadata(replicas, replicas[0], 0, replicas, 0) for replicas in whole[:4]]
    added = place_more(racks, present, 3)
    assert [replicas[0] for replicas in added] == [replicas[0] for replicas in whole[4:]]
    assert {len(set(replicas)) for replicas in added} == {2}


@st.composite
def racks_of(draw: st.DrawFn) -> dict[Any, Any]:
    """Some brokers, of one rack or several."""
    nodes = draw(node_ids)
    return {node: draw(st.sampled_from("abc")) for node in nodes}


@given(racks=racks_of(), partitions=st.integers(1, 60), data=st.data())
def test_no_rack_has_a_second_replica_before_each_has_one(
    racks: Any, partitions: int, data: st.DataObject
) -> None:
    replication_factor = data.draw(st.integers(1, len(racks)))
    placed = place(racks, partitions, replication_factor)
    rack_count = len(set(racks.values()))
    for replicas in placed:
        assert len(set(replicas)) == replication_factor
        used = {racks[replica] for replica in replicas}
        assert len(used) == min(rack_count, replication_factor)
    led = Counter(replicas[0] for replicas in placed)
    assert max(led.values()) - min(led[node] for node in racks) <= 1


@pytest.mark.parametrize(
    ("racks", "factor", "first_broker", "first_partition", "placed"),
    [
        (
            {0: "1", 1: "3", 2: "3", 3: "2", 4: "2", 5: "1"},
            *(3, 0, 0),
            "031 315 154 542 420 203 042",
        ),
        (
            {0: "1", 1: "2", 2: "2", 3: "3", 4: "3", 5: "1"},
            *(2, 2, 0),
            "32 54 20 41 03 15 31 53 25 42 04 10",
        ),
        ({1: "a", 2: "a", 3: "b"}, 3, 1, 4, "231 132 321 231 132 321"),
        ({1: "a", 2: "a", 3: "a", 4: "b"}, 4, 3, 0, "3421 1423 4231 2431 3421 1423 4123 2431"),
        (
            {1: "a", 2: "b", 3: "c", 4: "d", 5: "e"},
            *(3, 4, 3),
            "345 451 523 134 245 351 412 534 145 251 312",
        ),
        ({7: "z", 8: "z"}, 2, 1, 1, "78 87 78"),
        ({1: "b", 5: "a", 8: "c", 9: "a"}, 2, 0, 0, "51 18 89 91 51"),
    ],
)
def test_as_apache_kafka_places_them_over_racks(
    racks: dict[int, str], factor: int, first_broker: int, first_partition: int, placed: str
) -> None:
    """Kafka 3.9's AdminUtils, asked the same."""
    expected = [tuple(map(int, replicas)) for replicas in placed.split()]
    assert place(racks, len(expected), factor, first_partition, first_broker) == expected


def test_racks_count_only_where_all_brokers_have_one() -> None:
    nodes = dict.fromkeys(range(5))
    mixed = {**nodes, 3: "a"}
    assert place(mixed, 10, 3, first_broker=0) == place(nodes, 10, 3, first_broker=0)
