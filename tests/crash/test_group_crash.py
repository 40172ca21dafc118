"""Idempotent producers and a group of plain consumers, through SIGKILLs of all and of the broker.

The checker judges what every client saw: nothing acknowledged is lost, nothing is doubled or out of
order, no committed offset goes back, no member skips. And the group has read everything.

KAFKALOG_CRASH_KILLS says how often (8), KAFKALOG_CRASH_SEED replays the choices of a run.
"""

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.crash.checker import check
from tests.crash.history import OK, read_history
from tests.crash.recorded import RECONNECT, high_watermarks, read_to_end
from tests.crash.servers import Server, make_server
from tests.crash.supervised import Supervised
from tests.support.patience import at_random, wait_until

pytestmark = pytest.mark.crash

KILLS = int(os.environ.get("KAFKALOG_CRASH_KILLS", "8"))
SEED = int(os.environ.get("KAFKALOG_CRASH_SEED", random.SystemRandom().randrange(1_000_000)))
TOPIC = "events"
GROUP = "readers"
PARTITIONS = 3
CLIENTS = ("produce-0", "produce-1", "consume-0", "consume-1")
TIMEOUT_S = 180.0


class Run:
    def __init__(self, server: Server, directory: Path) -> None:
        self.server = server
        self.history = directory / "history"
        self.history.mkdir()
        admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        self.clients = {
            name: Supervised(name, directory / f"{name}.log", self._command) for name in CLIENTS
        }

    def _command(self, client: str) -> list[str]:
        role = client.partition("-")[0]
        return [
            *(sys.executable, "-m", "tests.crash.member", role, str(self.history), client),
            *(self.server.bootstrap_servers, TOPIC),
            str(PARTITIONS) if role == "produce" else GROUP,
        ]

    def written(self, name: str) -> int:
        """How much the client's present life has written of its history."""
        path = self.history / f"{self.clients[name].client}.jsonl"
        return path.stat().st_size if path.exists() else 0

    def kill(self, victim: str, chance: random.Random) -> str:
        watched = chance.choice(CLIENTS) if victim == "broker" else victim
        if chance.random() < 0.7:
            before = self.written(watched) + 2000
            self.until(lambda: self.written(watched) > before, f"{watched} at work")
        delay_s = at_random(chance, 0.4)
        if victim == "broker":
            self.server.kill()
            self.server.start()
        else:
            self.clients[victim].kill()
            self.clients[victim].start()
        return f"{victim} after {delay_s * 1000:.0f} ms"

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            for client in self.clients.values():
                client.revive()
            return condition()

        wait_until(holds, what, TIMEOUT_S)

    def finish(self) -> None:
        """The producers stop, the group reads to the end; then all is read once more."""
        for name in CLIENTS[:2]:
            self.clients.pop(name).retire()
        ends = high_watermarks(self.server.bootstrap_servers, TOPIC, PARTITIONS)
        self.until(lambda: self.committed() == ends, f"the group commits {ends}")
        for client in self.clients.values():
            client.retire()
        servers = self.server.bootstrap_servers
        read_to_end(self.history, "end", servers, TOPIC, PARTITIONS, "read_committed")

    def committed(self) -> dict[int, int]:
        settings = {"bootstrap.servers": self.server.bootstrap_servers, "group.id": GROUP}
        consumer = Consumer(RECONNECT | settings)
        try:
            asked = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
            return {each.partition: each.offset for each in consumer.committed(asked, 5)}
        except KafkaException:
            return {}
        finally:
            consumer.close()

    def close(self) -> None:
        for client in self.clients.values():
            client.kill()


def test_all_that_was_acknowledged_is_read_after_kills_at_random_instants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    server = make_server("kafkalog", tmp_path / "server")
    server.start()
    run = Run(server, tmp_path)
    try:
        with capsys.disabled():
            print(f"\n{KILLS} kills, KAFKALOG_CRASH_SEED={SEED}")
            began = time.monotonic()
            for number in range(KILLS):
                victim = chance.choice(["broker", "broker", *CLIENTS])
                done = run.kill(victim, chance)
                print(f"  {time.monotonic() - began:.1f} s, kill {number + 1}: {done}", flush=True)
            run.finish()
        history = read_history(run.history)
        found = check(history)
        assert not found, "\n".join(map(str, found[:20]))
        sent = {each.fields["value"] for each in history if each.kind == "send"}
        acknowledged = {
            each.fields["value"] for each in history if each.kind == "send" and each.outcome == OK
        }
        read_by_group = {
            record[4]
            for each in history
            if each.client.startswith("consume")
            for record in each.fields.get("records", ())
        }
        assert acknowledged
        assert acknowledged <= read_by_group <= sent
    finally:
        run.close()
        server.stop()
