"""Producer ids: never twice, whoever else claims blocks meanwhile."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from kafka.errors import CoordinatorLoadInProgressError

from broker.cluster import znodes
from broker.cluster.local_store import LocalStore
from broker.cluster.producer_id_blocks import BLOCK_SIZE, claim_block
from broker.cluster.store import BadVersionError, Create, Operation, Result
from broker.coordinator.producer_ids import ProducerIds


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    opened = LocalStore(tmp_path)
    yield opened
    opened.close()


def make(store: LocalStore, node_id: int = 1) -> ProducerIds:
    async def claim() -> range:
        return await asyncio.to_thread(claim_block, store, node_id)

    return ProducerIds(claim)


async def take(ids: ProducerIds, count: int) -> list[int]:
    return [await ids.next_id() for _ in range(count)]


def test_ids_count_up_over_blocks(store: LocalStore) -> None:
    assert asyncio.run(take(make(store), BLOCK_SIZE + 5)) == list(range(BLOCK_SIZE + 5))


def test_a_restart_goes_on_after_the_claimed_block(store: LocalStore) -> None:
    assert asyncio.run(take(make(store), 3)) == [0, 1, 2]
    assert asyncio.run(take(make(store), 3)) == [BLOCK_SIZE + n for n in range(3)]


def test_two_brokers_have_different_ids(store: LocalStore) -> None:
    async def both() -> list[list[int]]:
        first, second = make(store, 1), make(store, 2)
        return await asyncio.gather(*(take(ids, BLOCK_SIZE * 2) for ids in (first, second)))

    one, two = asyncio.run(both())
    assert len({*one, *two}) == BLOCK_SIZE * 4


def test_many_waiting_at_once_have_different_ids(store: LocalStore) -> None:
    async def many() -> list[int]:
        ids = make(store)
        return await asyncio.gather(*(ids.next_id() for _ in range(50)))

    assert len(set(asyncio.run(many()))) == 50


def test_a_block_that_is_always_taken_by_others_is_given_up(tmp_path: Path) -> None:
    class Contended(LocalStore):
        def commit(self, operations: Sequence[Operation]) -> list[Result]:
            raise BadVersionError("taken")

    (tmp_path / "contended").mkdir()
    contended = Contended(tmp_path / "contended")
    with pytest.raises(CoordinatorLoadInProgressError):
        claim_block(contended, 1)
    contended.close()


def test_the_first_block_of_a_node_that_apache_kafka_has_made(store: LocalStore) -> None:
    store.commit([Create(znodes.PRODUCER_ID_BLOCK)])
    assert claim_block(store, 1) == range(BLOCK_SIZE)
    assert claim_block(store, 2) == range(BLOCK_SIZE, 2 * BLOCK_SIZE)


def test_no_block_begins_below_ids_that_are_known_to_be_taken(store: LocalStore) -> None:
    assert claim_block(store, 1, 5) == range(5, 5 + BLOCK_SIZE)
    assert claim_block(store, 1, 5) == range(5 + BLOCK_SIZE, 5 + 2 * BLOCK_SIZE)
