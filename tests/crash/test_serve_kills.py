"""`kafkalog serve` under kills of itself, of the broker and of PostgreSQL, while records come in.

Whoever writes knows which records were acknowledged: these are in each table once at the end, and
none is there twice, whatever was killed. KAFKALOG_SERVE_SECONDS says for how long (20; `make serve`
asks for 30 minutes), KAFKALOG_CRASH_SEED which kills.
"""

import os
import random
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import pytest
from confluent_kafka import KafkaError, Message, Producer
from deltalake import DeltaTable

from tests.crash.servers import Kafkalog
from tests.pyspark_kafkalog.warehouse.topic_filler import TopicFiller
from tests.support.patience import at_random, for_seconds, wait_until
from tests.support.postgres import postgres
from tests.support.serving import Serving

pytestmark = pytest.mark.crash

SECONDS = float(os.environ.get("KAFKALOG_SERVE_SECONDS", "20"))
SEED = int(os.environ.get("KAFKALOG_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
TOPICS = ("shop-eu", "shop-us", "shop-cn", "orders")
PARTITIONS = 2
CAUGHT_UP_S = 180.0 + SECONDS / 2
"""What came while a load was killed over and over takes it many small commits afterwards."""

LOADS = """
workers = 2
most-at-once = 3
[defaults]
bootstrap-servers = "{servers}"
every = "1 second"
retry-most = "2 seconds"
chunk-bytes = "30k"
group = "warehouse"

[[load]]
name = "shops"
pattern = "^shop"
to = "sql:{database}#{schema}.{{topic}}"

[[load]]
name = "orders"
topics = "orders"
to = "parquet:orders"

[[load]]
name = "all"
pattern = "^(shop|orders)"
to = "delta:all"
"""


class Writer:
    """Writes to all topics until it is closed; `acknowledged` are the values that are there."""

    def __init__(self, servers: str) -> None:
        self.acknowledged: Counter[bytes] = Counter()
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 20,
                "message.timeout.ms": 120_000,
                "log_level": 0,
            }
        )
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(CAUGHT_UP_S) == 0

    def _write(self) -> None:
        number = 0
        while not self._is_over.wait(0.02):
            for topic in TOPICS:
                value, partition = f"{topic} {number}", number // len(TOPICS) % PARTITIONS
                self._producer.produce(topic, value, partition=partition, callback=self._told)
                number += 1
            self._producer.poll(0)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            value = message.value()
            assert value is not None
            self.acknowledged[value] += 1


class World:
    """What is killed, and started again."""

    def __init__(self, folder: Path, broker: Kafkalog) -> None:
        self._folder = folder
        self._broker = broker
        self.service = Serving(folder)

    def kill_service(self) -> None:
        self.service.process.kill()
        self._again()

    def stop_service(self) -> None:
        self.service.ask(signal.SIGTERM)
        assert self.service.ends() == 0, self.service.said
        self._again()

    def reload(self) -> None:
        self.service.ask(signal.SIGHUP)

    def kill_broker(self) -> None:
        self._broker.kill()
        self._broker.start()

    def kill_database(self) -> None:
        """Any of PostgreSQL's processes: the others end then, and it recovers."""
        number = Path(postgres().directory, "data", "postmaster.pid").read_text().split("\n")[0]
        children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
        os.kill(int(random.choice(children)), signal.SIGKILL)

    def _again(self) -> None:
        self.service.__exit__(None, None, None)
        self.service = Serving(self._folder)
        self.service.says("Serving ")


@contextmanager
def at_work(folder: Path, broker: Kafkalog) -> Iterator[World]:
    world = World(folder, broker)
    try:
        world.service.says("Serving ")
        yield world
    finally:
        world.service.__exit__(None, None, None)


def of_database(schema: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for topic in TOPICS:
        if topic.startswith("shop"):
            rows = postgres().query(f"SELECT convert_from(value, 'UTF8') FROM {schema}.\"{topic}\"")
            found.update(row[0].encode() for row in rows)
    return found


@pytest.mark.slow
def test_no_record_is_lost_or_doubled_whatever_is_killed(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    print(f"KAFKALOG_CRASH_SEED={SEED}")
    broker = Kafkalog(tmp_path / "broker")
    (tmp_path / "broker").mkdir()
    broker.start()
    schema = f"s{uuid.uuid4().hex[:12]}"
    postgres().query(f"CREATE SCHEMA {schema}")
    TopicFiller(broker.bootstrap_servers).make(*TOPICS, partitions=PARTITIONS)
    servers, database = broker.bootstrap_servers, postgres().url
    text = LOADS.format(servers=servers, database=database, schema=schema)
    (tmp_path / "loads.toml").write_text(text)
    writer = Writer(servers)
    kills: Counter[str] = Counter()
    with at_work(tmp_path, broker) as world:
        steps: list[Callable[[], None]] = [
            world.kill_service,
            world.stop_service,
            world.reload,
            world.kill_broker,
            world.kill_database,
        ]
        for _ in for_seconds(SECONDS):
            at_random(chance, 2.5, 0.2)
            step = chance.choice(steps)
            step()
            kills[step.__name__] += 1
        writer.close()
        expected = writer.acknowledged
        of_shops = Counter({v: n for v, n in expected.items() if v.startswith(b"shop")})
        of_orders = expected - of_shops

        def found() -> tuple[Counter[bytes], Counter[bytes], Counter[bytes]]:
            return (
                of_database(schema),
                Counter(pq.read_table(tmp_path / "orders")["value"].to_pylist()),
                Counter(DeltaTable(tmp_path / "all").to_pyarrow_table()["value"].to_pylist()),
            )

        def is_all_there() -> bool:
            try:
                shops, orders, all_of_them = found()
            except (AssertionError, OSError, psycopg.OperationalError):
                return False  # while PostgreSQL recovers, or before a first commit
            counts = [*shops.values(), *orders.values(), *all_of_them.values()]
            # More than there may be will not be less.
            return max(counts) > 1 or (
                shops.total() >= of_shops.total()
                and orders.total() >= of_orders.total()
                and all_of_them.total() >= expected.total()
            )

        def what_is_there() -> str:
            counts = [one.total() for one in found()]
            wanted = [of_shops.total(), of_orders.total(), expected.total()]
            return f"{counts} of {wanted}; {world.service.said[-4000:]}"

        wait_until(is_all_there, what_is_there, CAUGHT_UP_S, pause_s=0.5)
        shops, orders, all_of_them = found()
        print(f"{expected.total()} records, {dict(kills)}")
        assert (shops, orders, all_of_them) == (of_shops, of_orders, expected)
        assert "is held" not in world.service.said
    broker.stop()
