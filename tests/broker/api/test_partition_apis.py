"""CreatePartitions, DeleteRecords, DescribeLogDirs, DescribeTopicPartitions, DescribeProducers,
OffsetForLeaderEpoch, ElectLeaders and reassignments: asked of this broker or of Apache Kafka."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol import admin
from kafka.protocol.consumer import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from pyspark_kafkalog.protocol.fetch import FetchedPartition, FetchPartition, FetchRequest
from tests.broker.api.conftest import wait_until_served
from tests.broker.api.group_client import GroupClient
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.patience import wait_until
from tests.support.records import batch_of, values_of

INVALID_PARTITIONS, INVALID_ASSIGNMENT, INVALID_REQUEST, UNKNOWN_PARTITION = 37, 39, 42, 3
OUT_OF_RANGE, INVALID_TOPIC, POLICY_VIOLATION = 1, 17, 44
INTERNAL = "__consumer_offsets"


class TestCreatePartitions:
    TOPIC = admin.CreatePartitionsRequest.CreatePartitionsTopic

    def ask(
        self,
        client: RawClient,
        *wanted: tuple[Any, ...],
        version: int = 3,
        validate_only: bool = False,
    ) -> dict[Any, Any]:
        """`wanted`: (name, count) or (name, count, assignments); (code, message) of each."""
        topics = [
            self.TOPIC(
                name=name,
                count=count,
                assignments=[
                    self.TOPIC.CreatePartitionsAssignment(broker_ids=nodes)
                    for nodes in assignments[0]
                ]
                if assignments
                else None,
            )
            for name, count, *assignments in wanted
        ]
        request = admin.CreatePartitionsRequest(
            topics=topics, timeout_ms=60_000, validate_only=validate_only
        )
        response = client.call(request, admin.CreatePartitionsResponse, version)
        return {found.name: (found.error_code, found.error_message) for found in response.results}

    @pytest.mark.parametrize("version", range(4))
    def test_in_every_version(
        self, client: RawClient, create: Callable[..., str], version: int
    ) -> None:
        name = create(1, **{"retention.ms": "5000000"})
        client.produce(name, 0, batch_of(2))
        before = client.metadata_of(name)
        assert self.ask(client, (name, 3), version=version) == {name: (0, None)}
        # Apache Kafka answers before all its parts know; this broker after.
        wait_until(lambda: len(client.metadata_of(name).partitions) == 3, "three partitions")
        wait_until_served(client, name)
        assert client.metadata_of(name).topic_id == before.topic_id
        assert client.produce(name, 2, batch_of(1)).base_offset == 0
        assert client.produce(name, 0, batch_of(1)).base_offset == 2

    def test_what_is_refused(self, client: RawClient, create: Callable[..., str]) -> None:
        name = create(2)
        refusals: list[tuple[tuple[Any, ...], int, str | None]] = [
            ((name, 2), INVALID_PARTITIONS, "Topic already has 2 partition(s)."),
            (
                (name, 1),
                INVALID_PARTITIONS,
                f"The topic {name} currently has 2 partition(s); 1 would not be an increase.",
            ),
            (
                (name, -1),
                INVALID_PARTITIONS,
                f"The topic {name} currently has 2 partition(s); -1 would not be an increase.",
            ),
            (("missing-topic", 3), UNKNOWN_PARTITION, None),
            (
                (name, 4, [[1]]),
                INVALID_ASSIGNMENT,
                "Attempted to add 2 additional partition(s), but only 1 assignment(s) were "
                "specified.",
            ),
            (
                (name, 3, [[9]]),
                INVALID_ASSIGNMENT,
                "The manual partition assignment includes broker 9, but no such broker is "
                "registered.",
            ),
            (
                (name, 3, [[1, 1]]),
                INVALID_ASSIGNMENT,
                "The manual partition assignment includes the broker 1 more than once.",
            ),
            (
                (name, 3, [[]]),
                INVALID_ASSIGNMENT,
                "The manual partition assignment includes an empty replica list.",
            ),
        ]
        for wanted, code, message in refusals:
            assert self.ask(client, wanted) == {wanted[0]: (code, message)}
        assert self.ask(client, (name, 3), (name, 4)) == {
            name: (INVALID_REQUEST, "Duplicate topic name.")
        }
        assert len(client.metadata_of(name).partitions) == 2

    def test_only_validated(self, client: RawClient, create: Callable[..., str]) -> None:
        name = create(1)
        assert self.ask(client, (name, 3), validate_only=True) == {name: (0, None)}
        assert self.ask(client, (name, 1), validate_only=True)[name][0] == INVALID_PARTITIONS
        assert len(client.metadata_of(name).partitions) == 1
        assert self.ask(client, (name, 2, [[1]])) == {name: (0, None)}

    def test_too_many_at_once(self, client: RawClient, topic: str, only_ours: None) -> None:
        assert self.ask(client, (topic, 20_000), validate_only=True)[topic][0] == POLICY_VIOLATION

    def test_they_are_there_after_a_crash(self, tmp_path: Path) -> None:
        with BrokerChild(tmp_path) as child, RawClient(child.host, child.port) as client:
            wanted = MetadataRequest.MetadataRequestTopic(name="grown")
            client.call(MetadataRequest(topics=[wanted]), MetadataResponse, 9)
            assert self.ask(client, ("grown", 4)) == {"grown": (0, None)}
            assert client.produce("grown", 3, batch_of(2)).error_code == 0
            child.kill()
        with BrokerChild(tmp_path) as child, RawClient(child.host, child.port) as client:
            assert len(client.metadata_of("grown").partitions) == 4
            assert client.produce("grown", 3, batch_of(1)).base_offset == 2
            assert child.stop() == 0


class TestDeleteRecords:
    TOPIC = admin.DeleteRecordsRequest.DeleteRecordsTopic

    def ask(
        self, client: RawClient, *wanted: tuple[str, int, int], version: int = 2
    ) -> dict[Any, Any]:
        """`wanted`: (name, partition, offset); (low watermark, code) of each partition."""
        topics = [
            self.TOPIC(
                name=name,
                partitions=[
                    self.TOPIC.DeleteRecordsPartition(partition_index=partition, offset=offset)
                ],
            )
            for name, partition, offset in wanted
        ]
        request = admin.DeleteRecordsRequest(topics=topics, timeout_ms=5000)
        response = client.call(request, admin.DeleteRecordsResponse, version)
        return {
            (topic.name, found.partition_index): (found.low_watermark, found.error_code)
            for topic in response.topics
            for found in topic.partitions
        }

    def earliest(self, client: RawClient, name: str) -> Any:
        topic = ListOffsetsRequest.ListOffsetsTopic
        ask = topic.ListOffsetsPartition(partition_index=0, timestamp=-2)
        request = ListOffsetsRequest(replica_id=-1, topics=[topic(name=name, partitions=[ask])])
        return client.call(request, ListOffsetsResponse, 5).topics[0].partitions[0].offset

    def fetch(self, client: RawClient, name: str, offset: int) -> FetchedPartition:
        request = FetchRequest(11, 0, 1, [FetchPartition(name, 0, offset, 1 << 20)])
        return client.fetch(request).partitions[0]

    @pytest.mark.parametrize("version", range(3))
    def test_below_an_offset(self, client: RawClient, topic: str, version: int) -> None:
        for _ in range(3):
            client.produce(topic, 0, batch_of(2))
        assert self.ask(client, (topic, 0, 3), version=version) == {(topic, 0): (3, 0)}
        assert self.earliest(client, topic) == 3
        assert self.fetch(client, topic, 2).error_code == OUT_OF_RANGE
        found = self.fetch(client, topic, 3)
        assert (found.error_code, found.log_start_offset) == (0, 3)
        assert [offset for offset, _ in values_of(found.records)][-1] == 5

    def test_never_back(self, client: RawClient, topic: str) -> None:
        client.produce(topic, 0, batch_of(6))
        for offset, start in ((3, 3), (2, 3), (0, 3), (-1, 6), (-1, 6)):
            assert self.ask(client, (topic, 0, offset)) == {(topic, 0): (start, 0)}
        assert client.produce(topic, 0, batch_of(1)).base_offset == 6

    def test_what_is_refused(
        self, client: RawClient, create: Callable[..., str], topic_name: str
    ) -> None:
        name = create(1)
        client.produce(name, 0, batch_of(2))
        assert self.ask(client, (name, 0, 3), (name, 9, 0), ("missing-topic", 0, 1)) == {
            (name, 0): (-1, OUT_OF_RANGE),
            (name, 9): (-1, UNKNOWN_PARTITION),
            ("missing-topic", 0): (-1, UNKNOWN_PARTITION),
        }
        assert self.ask(client, (name, 0, -2)) == {(name, 0): (-1, OUT_OF_RANGE)}

    def test_a_compacted_topic_keeps_its_records(
        self, client: RawClient, create: Callable[..., str]
    ) -> None:
        name = create(**{"cleanup.policy": "compact"})
        assert self.ask(client, (name, 0, 0)) == {(name, 0): (-1, POLICY_VIOLATION)}

    def test_internal_topics_keep_their_records(
        self, client: RawClient, group: GroupClient
    ) -> None:
        place = (INTERNAL, 0)
        assert self.ask(client, (*place, 0)) == {place: (-1, INVALID_TOPIC)}

    def test_a_waiting_consumer_is_told(self, connect: Callable[[], RawClient], topic: str) -> None:
        """Its session hears of the new start without an append."""
        client, consumer = connect(), connect()
        client.produce(topic, 0, batch_of(4))
        request = FetchRequest(11, 0, 1, [FetchPartition(topic, 0, 4, 1 << 20)], session_epoch=0)
        session_id = consumer.fetch(request).session_id
        self.ask(client, (topic, 0, 2))
        request = FetchRequest(11, 0, 1, [], session_id=session_id, session_epoch=1)
        (found,) = consumer.fetch(request).partitions
        assert (found.error_code, found.log_start_offset, found.records) == (0, 2, None)

    def test_deleted_records_stay_deleted_after_a_crash(self, tmp_path: Path) -> None:
        with BrokerChild(tmp_path) as child, RawClient(child.host, child.port) as client:
            wanted = MetadataRequest.MetadataRequestTopic(name="cut")
            client.call(MetadataRequest(topics=[wanted]), MetadataResponse, 9)
            client.produce("cut", 0, batch_of(5))
            assert self.ask(client, ("cut", 0, 4)) == {("cut", 0): (4, 0)}
            child.kill()
        assert "cut 0 4" in (tmp_path / "log-start-offset-checkpoint").read_text()
        with BrokerChild(tmp_path) as child, RawClient(child.host, child.port) as client:
            assert self.earliest(client, "cut") == 4
            assert self.fetch(client, "cut", 3).error_code == OUT_OF_RANGE
            assert child.stop() == 0


class TestDescribeLogDirs:
    def ask(self, client: RawClient, topics: list[Any] | None, version: int = 5) -> Any:
        topic = admin.DescribeLogDirsRequest.DescribableLogDirTopic
        request = admin.DescribeLogDirsRequest(
            topics=None
            if topics is None
            else [topic(topic=name, partitions=partitions) for name, partitions in topics]
        )
        response = client.call(request, admin.DescribeLogDirsResponse, version)
        (directory,) = response.results
        assert directory.error_code == 0
        return directory

    @pytest.mark.parametrize("version", range(1, 6))
    def test_sizes(self, client: RawClient, create: Callable[..., str], version: int) -> None:
        name = create(3)
        batch = batch_of(5)
        client.produce(name, 1, batch)
        directory = self.ask(client, [(name, [0, 1, 77]), ("missing-topic", [0])], version)
        assert directory.log_dir.startswith("/")
        (topic,) = directory.topics
        sizes = {found.partition_index: found.partition_size for found in topic.partitions}
        assert (topic.name, sizes) == (name, {0: 0, 1: len(batch)})
        assert {(found.offset_lag, found.is_future_key) for found in topic.partitions} == {
            (0, False)
        }
        if version >= 4:
            assert directory.total_bytes > directory.usable_bytes > 0

    def test_all_and_none(self, client: RawClient, create: Callable[..., str]) -> None:
        name = create(2)
        assert name in [topic.name for topic in self.ask(client, None).topics]
        assert list(self.ask(client, []).topics) == []
        assert list(self.ask(client, [(name, [])]).topics) == []


class TestDescribeTopicPartitions:
    REQUEST = admin.DescribeTopicPartitionsRequest

    def ask(
        self,
        client: RawClient,
        *names: str,
        limit: int = 2000,
        cursor: tuple[str, int] | Any | None = None,
    ) -> tuple[list[tuple[Any, Any, list[Any]]], Any]:
        """([(name, code, partition indexes)], where the next page begins)."""
        request = self.REQUEST(
            topics=[self.REQUEST.TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=cursor and self.REQUEST.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
        )
        response = client.call(request, admin.DescribeTopicPartitionsResponse, 0)
        following = response.next_cursor
        return (
            [
                (topic.name, topic.error_code, [part.partition_index for part in topic.partitions])
                for topic in response.topics
            ],
            following and (following.topic_name, following.partition_index),
        )

    @pytest.fixture
    def two(
        self, client: RawClient, create: Callable[..., str], topic_name: str
    ) -> tuple[str, str]:
        """A topic of five partitions, and (after it) one of one."""
        name = create(5)
        other = f"{name}-b"
        topic = admin.CreateTopicsRequest.CreatableTopic(
            name=other, num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        request = admin.CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
        client.call(request, admin.CreateTopicsResponse, 7)
        wait_until_served(client, other)
        return name, other

    def test_pages(self, client: RawClient, two: tuple[str, str]) -> None:
        first, second = two
        names, everything = (second, first), [0, 1, 2, 3, 4]
        assert self.ask(client, *names) == ([(first, 0, everything), (second, 0, [0])], None)
        assert self.ask(client, *names, limit=2) == ([(first, 0, [0, 1])], (first, 2))
        assert self.ask(client, *names, limit=2, cursor=(first, 2)) == (
            [(first, 0, [2, 3])],
            (first, 4),
        )
        assert self.ask(client, *names, limit=2, cursor=(first, 4)) == (
            [(first, 0, [4]), (second, 0, [0])],
            None,
        )
        assert self.ask(client, *names, limit=5) == ([(first, 0, everything)], (second, 0))
        assert self.ask(client, *names, cursor=(second, 0)) == ([(second, 0, [0])], None)
        assert self.ask(client, *names, cursor=(first, 9)) == (
            [(first, 0, []), (second, 0, [0])],
            None,
        )
        for limit in (0, -5):
            assert self.ask(client, first, limit=limit) == ([(first, 0, [0])], (first, 1))

    def test_every_topic_by_pages(self, client: RawClient, two: tuple[str, str]) -> None:
        seen, cursor = [], None
        while True:
            topics, cursor = self.ask(client, limit=3, cursor=cursor)
            seen += [(name, index) for name, _, indexes in topics for index in indexes]
            if cursor is None:
                break
        first, second = two
        mine = [each for each in seen if each[0] in two]
        assert mine == [*((first, index) for index in range(5)), (second, 0)]

    def test_what_a_partition_is(self, client: RawClient, topic: str) -> None:
        request = self.REQUEST(topics=[self.REQUEST.TopicRequest(name=topic)])
        (found,) = client.call(request, admin.DescribeTopicPartitionsResponse, 0).topics
        assert found.topic_id == client.metadata_of(topic).topic_id
        assert found.topic_authorized_operations == 3576
        (partition,) = found.partitions
        assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, 1, 0)
        assert list(partition.replica_nodes) == list(partition.isr_nodes) == [1]
        assert list(partition.eligible_leader_replicas) == list(partition.last_known_elr) == []

    def test_what_is_refused(self, client: RawClient, topic: str) -> None:
        assert self.ask(client, "missing-topic") == ([("missing-topic", 3, [])], None)
        assert self.ask(client, "bad name") == ([("bad name", 17, [])], None)
        for cursor in ((topic, -1), ("zzz", 0), ("aaa", 0)):
            assert self.ask(client, topic, cursor=cursor) == ([(topic, INVALID_REQUEST, [])], None)

    def test_which_are_internal(self, client: RawClient, group: GroupClient, topic: str) -> None:
        request = self.REQUEST(
            topics=[self.REQUEST.TopicRequest(name=name) for name in (INTERNAL, topic)]
        )
        found = client.call(request, admin.DescribeTopicPartitionsResponse, 0).topics
        assert {each.name: each.is_internal for each in found} == {INTERNAL: True, topic: False}


def test_the_producers_of_a_partition(client: RawClient, create: Callable[..., str]) -> None:
    name = create(2)
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    producer = client.call(request, InitProducerIdResponse, 4)
    client.produce(name, 0, batch_of(1))
    now_ms = int(time.time() * 1000)  # Apache Kafka forgets producers by their timestamps
    for base_sequence in (0, 3):
        numbers = (producer.producer_id, producer.producer_epoch, base_sequence)
        batch = batch_of(3, producer=numbers, timestamp_ms=now_ms)
        assert client.produce(name, 0, batch).error_code == 0
    topic = admin.DescribeProducersRequest.TopicRequest
    request = admin.DescribeProducersRequest(
        topics=[
            topic(name=name, partition_indexes=[0, 1, 99]),
            topic(name="missing-topic", partition_indexes=[0]),
            topic(name="bad name", partition_indexes=[0]),
        ]
    )
    response = client.call(request, admin.DescribeProducersResponse, 0)
    found = {
        (topic.name, part.partition_index): part
        for topic in response.topics
        for part in topic.partitions
    }
    codes = {key: part.error_code for key, part in found.items()}
    assert codes == {
        (name, 0): 0,
        (name, 1): 0,
        (name, 99): UNKNOWN_PARTITION,
        ("missing-topic", 0): UNKNOWN_PARTITION,
        ("bad name", 0): 17,
    }
    (state,) = found[name, 0].active_producers
    assert (state.producer_id, state.producer_epoch) == (producer.producer_id, 0)
    assert (state.last_sequence, state.current_txn_start_offset) == (5, -1)
    assert state.coordinator_epoch == -1
    assert state.last_timestamp == now_ms + 2
    assert list(found[name, 1].active_producers) == []


class TestOffsetForLeaderEpoch:
    TOPIC = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

    def ask(
        self,
        client: RawClient,
        name: str,
        epoch: int,
        *,
        partition: int = 0,
        current: int = -1,
        version: int = 4,
    ) -> tuple[Any, Any, Any]:
        ask = self.TOPIC.OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=current, leader_epoch=epoch
        )
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[self.TOPIC(topic=name, partitions=[ask])]
        )
        response = client.call(request, OffsetForLeaderEpochResponse, version)
        (found,) = response.topics[0].partitions
        return found.error_code, found.leader_epoch, found.end_offset

    @pytest.mark.parametrize("version", range(2, 5))
    def test_the_current_epoch(self, client: RawClient, topic: str, version: int) -> None:
        assert self.ask(client, topic, 0, version=version) == (0, 0, 0)
        client.produce(topic, 0, batch_of(3))
        assert self.ask(client, topic, 0, version=version) == (0, 0, 3)

    @pytest.mark.parametrize("version", [0, 1])
    def test_versions_that_kafka_has_dropped(
        self, client: RawClient, topic: str, version: int, only_ours: None
    ) -> None:
        client.produce(topic, 0, batch_of(3))
        code, epoch, end_offset = self.ask(client, topic, 0, version=version)
        assert (code, end_offset) == (0, 3)
        assert epoch == (-1 if version == 0 else 0)

    def test_what_is_not_known(self, client: RawClient, topic: str) -> None:
        client.produce(topic, 0, batch_of(3))
        assert self.ask(client, topic, 7) == (0, -1, -1)
        assert self.ask(client, topic, -1) == (0, -1, -1)
        assert self.ask(client, topic, 0, current=9) == (75, -1, -1)
        assert self.ask(client, topic, 0, partition=5) == (UNKNOWN_PARTITION, -1, -1)
        assert self.ask(client, "missing-topic", 0) == (UNKNOWN_PARTITION, -1, -1)

    def test_epochs_of_earlier_starts(self, tmp_path: Path) -> None:
        """The first and the third start wrote records, the second and the last one did not."""
        epochs = []
        for run in range(4):
            with BrokerChild(tmp_path) as child, RawClient(child.host, child.port) as client:
                wanted = MetadataRequest.MetadataRequestTopic(name="led")
                told = client.call(MetadataRequest(topics=[wanted]), MetadataResponse, 9)
                epochs.append(told.topics[0].partitions[0].leader_epoch)
                if run in (0, 2):
                    client.produce("led", 0, batch_of(5))
                if run == 3:
                    later = epochs[-1] + 1
                    answers = [self.ask(client, "led", epoch) for epoch in (*epochs, later)]
                    assert self.ask(client, "led", 0, current=epochs[2]) == (74, -1, -1)
                assert child.stop() == 0
        first, _, third, last = epochs
        assert first < third < last
        assert answers == [(0, 0, 5), (0, 0, 5), (0, third, 10), (0, last, 10), (0, -1, -1)]


class TestElectLeaders:
    TOPIC = admin.ElectLeadersRequest.TopicPartitions

    def ask(
        self, client: RawClient, topics: list[Any] | None, election_type: int = 0, version: int = 2
    ) -> tuple[int, dict[tuple[Any, Any], tuple[Any, Any]]]:
        request = admin.ElectLeadersRequest(
            election_type=election_type,
            topic_partitions=None
            if topics is None
            else [self.TOPIC(topic=name, partitions=indexes) for name, indexes in topics],
            timeout_ms=5000,
        )
        response = client.call(request, admin.ElectLeadersResponse, version)
        return (0 if version == 0 else response.error_code), {
            (topic.topic, found.partition_id): (found.error_code, found.error_message)
            for topic in response.replica_election_results
            for found in topic.partition_result
        }

    @pytest.mark.parametrize("version", range(3))
    @pytest.mark.parametrize("election_type", [0, 1])
    def test_nothing_to_elect(
        self, client: RawClient, topic: str, version: int, election_type: int
    ) -> None:
        assert self.ask(
            client, [(topic, [0, 99]), ("missing-topic", [0])], election_type, version
        ) == (
            0,
            {
                (topic, 0): (84, "Leader election not needed for topic partition."),
                (topic, 99): (UNKNOWN_PARTITION, f"No such partition as {topic}-99"),
                ("missing-topic", 0): (UNKNOWN_PARTITION, "No such topic as missing-topic"),
            },
        )

    def test_of_all_partitions(self, client: RawClient, topic: str) -> None:
        assert self.ask(client, None) == (0, {})

    def test_of_an_unknown_kind(self, client: RawClient, topic: str) -> None:
        refused = (INVALID_REQUEST, "Unknown election type 9")
        assert self.ask(client, [(topic, [0])], 9) == (INVALID_REQUEST, {(topic, 0): refused})


def test_no_reassignments(client: RawClient, create: Callable[..., str]) -> None:
    name = create(5)
    request = admin.ListPartitionReassignmentsRequest(timeout_ms=1000, topics=None)
    response = client.call(request, admin.ListPartitionReassignmentsResponse, 0)
    assert (response.error_code, list(response.topics)) == (0, [])
    topic = admin.AlterPartitionReassignmentsRequest.ReassignableTopic
    wanted = {0: None, 1: [1], 2: [9], 3: [], 99: [1]}
    request = admin.AlterPartitionReassignmentsRequest(
        timeout_ms=1000,
        topics=[
            topic(
                name=name,
                partitions=[
                    topic.ReassignablePartition(partition_index=index, replicas=replicas)
                    for index, replicas in wanted.items()
                ],
            )
        ],
    )
    response = client.call(request, admin.AlterPartitionReassignmentsResponse, 0)
    (found,) = response.responses
    codes = {part.partition_index: part.error_code for part in found.partitions}
    assert codes == {
        0: 85,
        1: 0,
        2: INVALID_ASSIGNMENT,
        3: INVALID_ASSIGNMENT,
        99: UNKNOWN_PARTITION,
    }
