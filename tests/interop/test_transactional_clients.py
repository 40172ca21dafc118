"""Transactional producers of real clients, and Kafka's own tools for transactions, unmodified."""

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaProducer

from tests.broker.api.transaction_client import (
    TransactionClient,
    describe_producers,
    read,
    stable_offset,
)
from tests.support.broker_child import BrokerChild, RawClient
from tests.support.jvm import PEERS, peer_java

JARS = PEERS / "kafka"
# Transactions that nobody added a partition to hang, as before KIP-890: for the tools to find.
PROPERTIES = {"transaction.partition.verification.enable": "false"}
COMMITS = (True, False, True)

pytestmark = pytest.mark.interop
needs_java = pytest.mark.skipif(
    not shutil.which("java") or not list(JARS.glob("kafka-tools-*.jar")),
    reason=f"needs java and Kafka's jars in {JARS}",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerChild]:
    with BrokerChild(tmp_path_factory.mktemp("broker"), PROPERTIES) as child:
        yield child
        log = child.stderr()
        assert "level=error" not in log, log


@pytest.fixture
def client(broker: BrokerChild) -> Iterator[RawClient]:
    with RawClient(broker.host, broker.port) as client:
        yield client


def java(main_class: str, *arguments: str) -> str:
    command = [*peer_java("kafka"), f"org.apache.kafka.tools.{main_class}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def by_confluent(address: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": address, "transactional.id": topic})
    producer.init_transactions(20)
    for number, is_commit in enumerate(COMMITS):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        assert producer.flush(20) == 0
        if is_commit:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)


def by_kafka_python(address: str, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=address, transactional_id=topic)
    producer.init_transactions()
    for number, is_commit in enumerate(COMMITS):
        producer.begin_transaction()
        producer.send(topic, b"%d" % number, partition=0).get(20)
        if is_commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()


def by_aiokafka(address: str, topic: str) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=address, transactional_id=topic)
        await producer.start()
        for number, is_commit in enumerate(COMMITS):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"%d" % number, partition=0)
            if is_commit:
                await producer.commit_transaction()
            else:
                await producer.abort_transaction()
        await producer.stop()

    asyncio.run(run())


@pytest.mark.parametrize("use", [by_confluent, by_kafka_python, by_aiokafka])
def test_what_is_committed_is_read(
    broker: BrokerChild, client: RawClient, use: Callable[[str, str], None]
) -> None:
    topic = use.__name__
    use(broker.address, topic)
    assert read(client, topic) == [b"0", b"2"]
    assert read(client, topic, committed=False) == [b"0", b"1", b"2"]


def test_a_replaced_producer_is_fenced(broker: BrokerChild, client: RawClient) -> None:
    options = {"bootstrap.servers": broker.address, "transactional.id": "replaced"}
    old = Producer(options)
    old.init_transactions(20)
    old.begin_transaction()
    old.produce("replaced", b"old", partition=0)
    assert old.flush(20) == 0
    new = Producer(options)
    new.init_transactions(20)
    with pytest.raises(KafkaException, match="fenced"):
        old.commit_transaction(20)
    new.begin_transaction()
    new.produce("replaced", b"new", partition=0)
    new.commit_transaction(20)
    assert read(client, "replaced") == [b"new"]


@pytest.mark.slow
def test_a_consumer_transforms_and_commits_in_the_transaction(
    broker: BrokerChild, client: RawClient
) -> None:
    source = Producer({"bootstrap.servers": broker.address})
    for number in range(20):
        source.produce("source", b"%d" % number, partition=0)
    assert source.flush(20) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "transforming",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["source"])
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "transform"})
    producer.init_transactions(20)
    done = 0
    while done < 20:
        messages = consumer.consume(7, timeout=20)
        producer.begin_transaction()
        for message in messages:
            value = message.value()
            assert value is not None
            producer.produce("sink", b"<" + value + b">", partition=0)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 20
        )
        producer.commit_transaction(20)
        done += len(messages)
    (committed,) = consumer.committed([TopicPartition("source", 0)], timeout=20)
    assert committed.offset == 20
    consumer.close()
    assert read(client, "sink") == [b"<%d>" % number for number in range(20)]


@needs_java
@pytest.mark.slow
def test_javas_producer_uses_version_2(broker: BrokerChild, client: RawClient) -> None:
    """Its epoch grows with each of its transactions, and it adds no partitions itself."""
    java(
        "ProducerPerformance",
        *("--topic", "java", "--num-records", "2000", "--record-size", "10"),
        *("--throughput", "2000", "--transactional-id", "java"),
        *("--transaction-duration-ms", "100", "--bootstrap-server", broker.address),
    )
    assert len(read(client, "java")) == 2000
    state = TransactionClient(client, "java").describe()
    assert state.transaction_state == "CompleteCommit"
    assert state.producer_epoch > 2
    (log,) = (
        path
        for path in broker.data_dir.glob("__transaction_state-*/*.log")
        if b"java" in path.read_bytes()
    )
    dumped = java("DumpLogSegments", "--transaction-log-decoder", "--files", str(log))
    assert "isvalid: false" not in dumped
    lines = [line for line in dumped.splitlines() if '"transactionalId":"java"' in line]
    # Empty, then Ongoing, PrepareCommit and CompleteCommit of each transaction.
    states = [line.partition('"transactionStatus":')[2][0] for line in lines]
    assert states == ["0", *("1", "2", "4") * state.producer_epoch]
    assert '"topic":"java","partitionIds":[0]' in lines[1]
    assert '"clientTransactionVersion":2' in lines[-1]


@needs_java
@pytest.mark.slow
def test_the_tools_find_and_end_transactions(broker: BrokerChild, client: RawClient) -> None:
    def tool(*arguments: str) -> list[list[str]]:
        output = java("TransactionsCommand", "--bootstrap-server", broker.address, *arguments)
        return [line.split() for line in output.splitlines() if line.strip()]

    producer = TransactionClient(client, "hanging")
    producer.init()
    by_confluent(broker.address, "hangs")
    end_offset = stable_offset(client, "hangs")
    assert producer.produce("hangs", b"nobody knows").error_code == 0  # never added
    assert ["hanging", "1", str(producer.producer_id), "Empty"] in tool("list")
    described = tool("describe", "--transactional-id", "hanging")[-1]
    assert described[1:5] == ["hanging", str(producer.producer_id), "0", "Empty"]
    (open_here,) = (
        line
        for line in tool("describe-producers", "--topic", "hangs", "--partition", "0")
        if line[0] == str(producer.producer_id)
    )
    assert open_here[-1] == str(end_offset)
    place = ("--topic", "hangs", "--partition", "0")
    tool("abort", *place, "--start-offset", str(end_offset))
    assert stable_offset(client, "hangs") == end_offset + 2
    assert read(client, "hangs") == [b"0", b"2"]
    assert all(each.current_txn_start_offset == -1 for each in describe_producers(client, "hangs"))
