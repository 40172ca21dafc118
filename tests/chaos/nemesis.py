"""Does harm to a cluster, as a random generator says, and undoes it."""

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from kafka.errors import KafkaError

from tests.chaos.workloads import PARTITIONS, TOPIC, TRANSACTIONS
from tests.support.broker_child import BrokerChild
from tests.support.cluster import SESSION_S, Cluster
from tests.support.full_disk import limit_files_to
from tests.support.links import CLIENTS
from tests.support.patience import at_random
from tests.support.zookeeper import ZooKeeperServer, expire

TOPICS = (TOPIC, TRANSACTIONS, "__consumer_offsets", "__transaction_state")
KINDS = os.environ.get("KAFKALOG_CHAOS_KINDS")
NOT_NOW = (KafkaError, RuntimeError)
"""What kafka-python raises where it is refused, or finds no controller."""
_CHANCES = {
    "kill": 6,
    "stop": 4,
    "freeze": 6,
    "pair": 2,
    "all": 1,
    "last_in_sync": 2,
    "zookeeper": 2,
    "zookeeper_leader": 3,
    "disk_full": 3,
    "twice": 2,
    "isolate": 4,
    "one_way": 4,
    "no_clients": 2,
    "no_zookeeper": 4,
    "slow": 4,
    "slow_zookeeper": 2,
    "expire": 3,
    "cut": 3,
    "move": 4,
    "take_back": 3,
    "elect": 2,
    "both": 6,
}
_STORE_HARMS = ("zookeeper", "zookeeper_leader", "no_zookeeper", "slow_zookeeper")


class Nemesis:
    """Of a cluster with links."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self._cluster = cluster
        self._chance = chance
        self.done: Counter[str] = Counter()
        self._meanwhile: Callable[[], None] | None = None
        """To be done in the middle of the next pause."""

    def strike(self) -> str:
        """One fault; what it was."""
        names = KINDS.split(",") if KINDS else list(_CHANCES)
        [name] = self._chance.choices(names, [_CHANCES[name] for name in names])
        self.done[name] += 1
        harm: Callable[[], str] = getattr(self, name)
        return f"{name}: {harm()}"

    # Processes.

    def kill(self) -> str:
        victim = self._victim()
        self._cluster.kill(victim)
        pause_s = self._pause(1.5)
        self._cluster.start(victim)
        return f"{victim} for {pause_s:.1f} s"

    def stop(self) -> str:
        victim = self._victim()
        self._cluster.stop(victim)
        pause_s = self._pause(0.5)
        self._cluster.start(victim)
        return f"{victim} for {pause_s:.1f} s"

    def freeze(self) -> str:
        victim = self._victim()
        self._signal(victim, signal.SIGSTOP)
        pause_s = self._pause(2)
        self._signal(victim, signal.SIGCONT)
        return f"{victim} for {pause_s:.1f} s"

    def pair(self) -> str:
        return self._kill_together(2)

    def all(self) -> str:
        return self._kill_together(len(self._cluster.brokers))

    def last_in_sync(self) -> str:
        """The replicas in sync of a partition one after the other, mostly so that the last is alone
        when it is killed; they come back in any order, where only the last may lead."""
        topic, partition = self._chance.choice(TOPICS), self._chance.randrange(PARTITIONS)
        in_sync = set(self._cluster.partitions(topic)[partition]["isr_nodes"])
        victims = sorted(in_sync & self._cluster.brokers.keys())
        self._chance.shuffle(victims)
        for victim in victims:
            self._cluster.kill(victim)
            self._pause(1.5)
        back = self._chance.sample(victims, len(victims))
        for victim in back:
            self._cluster.start(victim)
        return f"{victims} of {topic}-{partition}, back {back}"

    def twice(self) -> str:
        """Killed again while it comes back."""
        victim = self._victim()
        self._cluster.kill(victim)
        self._pause(1)
        self._cluster.start(victim)
        self._pause(0.2)
        self._cluster.kill(victim)
        self._cluster.start(victim)
        return str(victim)

    def zookeeper(self) -> str:
        self._cluster.zookeeper.kill()
        pause_s = self._pause(2)
        self._cluster.zookeeper.start()
        return f"for {pause_s:.1f} s"

    def zookeeper_leader(self) -> str:
        """Of an ensemble; alone it is all that there is."""
        zookeeper = self._cluster.zookeeper
        if isinstance(zookeeper, ZooKeeperServer):
            return self.zookeeper()
        zookeeper.leader.kill()
        pause_s = self._pause(1)
        zookeeper.start()
        return f"leader of ZooKeeper for {pause_s:.1f} s"

    def disk_full(self) -> str:
        """No file grows, or only some; when there is room again, the broker is started anew."""
        victim = self._victim()
        broker = self._cluster.brokers[victim]
        assert isinstance(broker, BrokerChild)
        logs = self._cluster.data_dir(victim).glob("*/*.log")
        sizes = sorted(log.stat().st_size for log in logs)
        limit = self._chance.choice(sizes) + self._chance.randrange(4096)
        limit_files_to(broker, limit)
        pause_s = self._pause(1)
        self._cluster.kill(victim)
        self._cluster.start(victim)
        return f"of {victim} at {limit} bytes for {pause_s:.1f} s"

    def both(self) -> str:
        """While ZooKeeper is harmed, a broker is lost, which comes back after that."""
        store_harm = self._chance.choice(_STORE_HARMS)
        harm: Callable[[], str] = getattr(self, store_harm)
        victim = self._victim()
        if self._chance.random() < 0.5:
            self._meanwhile = partial(self._cluster.kill, victim)
            what = harm()
            self._cluster.start(victim)
            return f"{store_harm} {what}, {victim} killed meanwhile"
        self._meanwhile = partial(self._signal, victim, signal.SIGSTOP)
        what = harm()
        self._signal(victim, signal.SIGCONT)
        return f"{store_harm} {what}, {victim} frozen meanwhile"

    # Links.

    def slow(self) -> str:
        """Each piece of what one asks another, or a client a broker, takes long."""
        receiver = self._victim()
        sender = self._chance.choice(sorted({CLIENTS, *self._cluster.doors} - {receiver}))
        delay_s = self._chance.uniform(0.01, 0.5)
        self._cluster.doors[receiver].slow_for = {sender: delay_s}
        pause_s = self._pause(2)
        self._cluster.doors[receiver].slow_for = {}
        return f"{sender} to {receiver}, {delay_s:.2f} s for {pause_s:.1f} s"

    def slow_zookeeper(self) -> str:
        victim = self._victim()
        delay_s = self._chance.uniform(0.01, 0.5) * SESSION_S
        self._cluster.ways[victim].delay(delay_s)
        pause_s = self._pause(2)
        self._cluster.ways[victim].delay(0)
        return f"for {victim}, {delay_s:.2f} s for {pause_s:.1f} s"

    def isolate(self) -> str:
        """From all other brokers; clients and ZooKeeper reach it."""
        victim = self._victim()
        others = self._cluster.doors.keys() - {victim}
        links = [link for other in others for link in ((other, victim), (victim, other))]
        pause_s = self._lose(links)
        return f"{victim} for {pause_s:.1f} s"

    def one_way(self) -> str:
        """What one asks another is lost; not what that one asks."""
        sender, receiver = self._chance.sample(sorted(self._cluster.doors), 2)
        pause_s = self._lose([(sender, receiver)])
        return f"{sender} to {receiver} for {pause_s:.1f} s"

    def no_clients(self) -> str:
        victim = self._victim()
        pause_s = self._lose([(CLIENTS, victim)])
        return f"of {victim} for {pause_s:.1f} s"

    def no_zookeeper(self) -> str:
        """For a broker that all others and all clients reach."""
        victim = self._victim()
        way = self._cluster.ways[victim]
        way.lose(requests=True, answers=True)
        pause_s = self._pause(2)
        way.lose()
        if self._chance.random() < 0.5:
            way.cut_lossy()
        return f"for {victim} for {pause_s:.1f} s"

    def expire(self) -> str:
        """Ends its session under it."""
        victim = self._victim()
        expire(self._cluster.zookeeper.address, self._cluster.ways[victim].session)
        return f"session of {victim}"

    def cut(self) -> str:
        """All connections to a broker, at once."""
        victim = self._victim()
        self._cluster.doors[victim].cut()
        return f"connections to {victim}"

    # Requests.

    def move(self) -> str:
        """Other replicas, or others first; it goes on while the next faults come."""
        return f"{self._begin_to_move()}"

    def take_back(self) -> str:
        """A move, also of what is just catching up. Half of the time its controller is killed then;
        the next one finds who keeps a partition changed, and perhaps not who leads it."""
        moves = dict.fromkeys(self._begin_to_move())
        victim = self._victim("controller")
        after_s = at_random(self._chance, 0.2)
        if self._chance.random() < 0.5:
            self._try_to_move(moves)
            return f"{len(moves)} after {after_s:.2f} s"
        with ThreadPoolExecutor(1) as thread:
            back = thread.submit(self._try_to_move, moves)
            at_random(self._chance, 0.02)
            self._cluster.kill(victim)
            pause_s = self._pause(1.5)
            self._cluster.start(victim)
            back.result()
        return f"{len(moves)} after {after_s:.2f} s, {victim} killed for {pause_s:.1f} s"

    def elect(self) -> str:
        with suppress(*NOT_NOW):
            self._cluster.elect_preferred()
        return "preferred leaders"

    # Their parts.

    def _begin_to_move(self) -> dict[tuple[str, int], list[int]]:
        moves = {
            (topic, partition): self._chance.sample(sorted(self._cluster.doors), 3)
            for topic in TOPICS
            for partition in range(PARTITIONS)
            if self._chance.random() < 0.3
        }
        self._try_to_move(moves)
        return moves

    def _try_to_move(self, moves: Mapping[tuple[str, int], Sequence[int] | None]) -> None:
        with suppress(*NOT_NOW):  # one may be under way, or its controller away
            self._cluster.move(moves)

    def _victim(self, kind: str = "") -> int:
        """More often one that matters."""
        kind = kind or self._chance.choice(["any", "leader", "controller"])
        with suppress(AssertionError, *NOT_NOW):
            if kind == "leader":
                topic = self._chance.choice(TOPICS)
                leader = self._cluster.leader(topic, self._chance.randrange(PARTITIONS))
                return leader if leader in self._cluster.brokers else 1
            if kind == "controller":
                controller = self._cluster.controller_id
                return controller if controller in self._cluster.brokers else 1
        return self._chance.choice(sorted(self._cluster.brokers))

    def _pause(self, most_sessions: float) -> float:
        longest_s = most_sessions * SESSION_S
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is None:
            return at_random(self._chance, longest_s)
        before_s = at_random(self._chance, longest_s / 2)
        meanwhile()
        return before_s + at_random(self._chance, longest_s / 2)

    def _signal(self, victim: int, number: int) -> None:
        broker = self._cluster.brokers[victim]
        assert isinstance(broker, BrokerChild)
        os.kill(broker.process.pid, number)

    def _kill_together(self, count: int) -> str:
        victims = self._chance.sample(sorted(self._cluster.brokers), count)
        for victim in victims:
            self._cluster.kill(victim)
        pause_s = self._pause(1.5)
        with ThreadPoolExecutor(count) as threads:
            list(threads.map(self._cluster.start, victims))
        return f"{victims} for {pause_s:.1f} s"

    def _lose(self, links: list[tuple[int, int]]) -> float:
        """What the first of each pair sends to the second is lost, for the time that is returned.
        Then half of the time connections that lost something are closed; else they stay, and say
        nothing, until somebody gives them up."""
        doors = self._cluster.doors
        for sender, receiver in links:
            doors[receiver].deaf_to |= {sender}
        pause_s = self._pause(2)
        for sender, receiver in links:
            doors[receiver].deaf_to -= {sender}
        if self._chance.random() < 0.5:
            for _, receiver in links:
                doors[receiver].cut_lossy()
        return pause_s
