"""The state machine: what wire tests cannot reach, which is above all the last epoch.

What every request is answered in every state is in tests/broker/api/test_txn_protocol.py, which
Apache Kafka passes too.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kafka.errors import ConcurrentTransactionsError, ProducerFencedError
from kafka.structs import TopicPartition

from broker.coordinator.state_records import ProducerIdAndEpoch
from broker.coordinator.transaction_metadata import TransactionMetadata, TransactionState

LAST = 32_766
PLACE = frozenset((TopicPartition("t", 0),))


@pytest.fixture
def take_id() -> Callable[[], int]:
    return itertools.count(100).__next__


def at_epoch(epoch: int, **fields: Any) -> TransactionMetadata:
    return replace(TransactionMetadata(7, 1000, 5, producer_epoch=epoch), **fields)


def test_the_last_epoch_is_followed_by_a_new_id(take_id: Callable[[], int]) -> None:
    exhausted = at_epoch(LAST - 1).initialized(None, 1000, 6, take_id)
    assert exhausted.producer == (7, LAST)
    renewed = exhausted.initialized(None, 1000, 7, take_id)
    assert renewed.producer == (100, 0)
    assert renewed.previous_producer_id == 7


def test_who_goes_on_at_the_last_epoch_may_ask_twice(take_id: Callable[[], int]) -> None:
    """KIP-360: the answer with the new id may have been lost."""
    old = ProducerIdAndEpoch(7, LAST)
    renewed = at_epoch(LAST).initialized(old, 1000, 6, take_id)
    assert renewed.producer == (100, 0)
    renewed.check_expected(old)
    assert renewed.initialized(old, 1000, 7, take_id).producer == (100, 0)
    again = renewed.initialized(None, 1000, 8, take_id)
    with pytest.raises(ProducerFencedError):
        again.initialized(old, 1000, 9, take_id)


def test_who_goes_on_after_an_error_may_ask_until_it_is_answered(
    take_id: Callable[[], int],
) -> None:
    """KIP-360: each retry is of the one request that gave the new epoch."""
    old = ProducerIdAndEpoch(7, 5)
    transaction = at_epoch(5)
    for now_ms in range(6, 10):
        transaction.check_expected(old)
        transaction = transaction.initialized(old, 1000, now_ms, take_id)
        assert transaction.producer == (7, 6)
    with pytest.raises(ProducerFencedError):
        transaction.initialized(ProducerIdAndEpoch(7, 4), 1000, 10, take_id)
    other = transaction.initialized(None, 1000, 11, take_id)
    with pytest.raises(ProducerFencedError):  # somebody has come between
        other.initialized(old, 1000, 12, take_id)


def test_who_is_behind_the_last_epoch_is_fenced(take_id: Callable[[], int]) -> None:
    with pytest.raises(ProducerFencedError):
        at_epoch(LAST).initialized(ProducerIdAndEpoch(7, 3), 1000, 6, take_id)


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_at_the_last_epoch_gives_a_new_id(
    take_id: Callable[[], int], is_commit: bool
) -> None:
    ongoing = at_epoch(LAST).added(PLACE, 2, 6)
    producer = ongoing.producer
    prepared = ongoing.ended(producer, 2, 7, take_id, is_commit=is_commit)
    assert prepared is not None
    # The markers need an epoch of their own.
    assert prepared.producer == (7, LAST + 1)
    with pytest.raises(ConcurrentTransactionsError):
        prepared.check_may_add(ProducerIdAndEpoch(100, 0))
    complete = prepared.completed(8)
    assert complete.producer == (100, 0)
    assert complete.partitions == frozenset()
    assert complete.ended(producer, 2, 9, take_id, is_commit=is_commit) is None
    complete.check_may_add(ProducerIdAndEpoch(100, 0))


def test_an_abort_by_the_coordinator_at_the_last_epoch(take_id: Callable[[], int]) -> None:
    aborted = at_epoch(LAST).added(PLACE, 0, 6).aborted_by_coordinator(7, take_id)
    assert aborted.producer == (7, LAST + 1)
    assert aborted.completed(8).producer == (100, 0)


def test_what_was_added_already_changes_nothing() -> None:
    ongoing = at_epoch(0).added(PLACE, 0, 6)
    assert ongoing.added(PLACE, 0, 7) is ongoing
    more = ongoing.added(frozenset((TopicPartition("t", 1),)), 0, 8)
    assert (len(more.partitions), more.start_ms, more.last_update_ms) == (2, 6, 8)


def test_an_empty_transaction_may_be_aborted_by_version_2(take_id: Callable[[], int]) -> None:
    prepared = at_epoch(4).ended(ProducerIdAndEpoch(7, 4), 2, 9, take_id, is_commit=False)
    assert prepared is not None
    assert prepared.state is TransactionState.PREPARE_ABORT
    assert (prepared.start_ms, prepared.producer_epoch, prepared.last_producer_epoch) == (9, 5, 4)
