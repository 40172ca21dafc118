"""A disk that refuses: the partition says so, the process stays, goes on when there is space."""

from pathlib import Path

import pytest
from kafka.errors import KafkaStorageError, NoError
from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse

from pyspark_kafkalog.protocol.fetch import FetchPartition, FetchRequest
from tests.broker.log.batches import batch, values_in
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.full_disk import lift_limit, limit_files_to

STORAGE_ERROR = KafkaStorageError.errno


def create_topic(client: RawClient, name: str) -> int:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000, validate_only=False)
    answer = client.call(request, CreateTopicsResponse, version=4)
    return int(answer.topics[0].error_code)


def stored(client: RawClient) -> list[bytes]:
    """Every value of the partition, fetched until its end."""
    found: list[bytes] = []
    while True:
        wanted = FetchPartition("t", 0, len(found), 1 << 20)
        (answer,) = client.fetch(FetchRequest(12, 10, 1, [wanted])).partitions
        assert answer.error_code == 0
        if len(found) >= answer.high_watermark:
            return found
        assert isinstance(answer.records, memoryview)
        found += values_in(bytes(answer.records)).values()


@pytest.mark.parametrize("value_bytes", [2_000, 60_000])
def test_a_disk_that_fills_up_costs_no_record_and_no_process(
    tmp_path: Path, value_bytes: int
) -> None:
    """With the larger values a log rolls in each turn, or would."""
    acknowledged: list[bytes] = []
    with BrokerChild(tmp_path, {"log.segment.bytes": str(1 << 20)}) as broker:
        with RawClient(broker.host, broker.port) as client:
            assert create_topic(client, "t") == NoError.errno
            for turn, limit_bytes in enumerate((50_000, 100_000, 0, 300_000, 0)):
                limit_files_to(broker, limit_bytes)
                refused = 0
                for number in range(60):
                    value = b"%d-%d" % (turn, number) + b"." * value_bytes
                    produced = client.produce("t", 0, bytes(batch([value])))
                    if produced.error_code:
                        assert produced.error_code == STORAGE_ERROR
                        refused += 1
                    else:
                        assert produced.base_offset == len(acknowledged)
                        acknowledged.append(value)
                assert refused or limit_bytes == 300_000
                assert stored(client) == acknowledged
                lift_limit(broker)
                for _ in range(10):
                    value = b"again" + b"." * value_bytes
                    assert client.produce("t", 0, bytes(batch([value]))).error_code == 0
                    acknowledged.append(value)
        broker.kill()
        log = broker.stderr()
        assert log.count("event=log.failed") <= 2 * 5
        assert log.count("event=log.goes_on") >= 3
    with BrokerChild(tmp_path) as broker, RawClient(broker.host, broker.port) as client:
        assert stored(client) == acknowledged


def test_a_topic_that_the_disk_refuses_is_no_topic(tmp_path: Path) -> None:
    with BrokerChild(tmp_path) as broker, RawClient(broker.host, broker.port) as client:
        assert create_topic(client, "before") == NoError.errno
        limit_files_to(broker, 0)
        assert create_topic(client, "refused") not in (NoError.errno, -1)
        lift_limit(broker)
        assert create_topic(client, "refused") == NoError.errno
        assert create_topic(client, "after") == NoError.errno
        assert broker.stop() == 0
