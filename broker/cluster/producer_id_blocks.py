"""Blocks of producer ids, counted in `/latest_producer_id_block` as Apache Kafka does.

A block is written down before anybody has an id of it, so a crash loses ids but never repeats one.
Blocks; safe against other brokers that do the same.
"""

import logging

from kafka.errors import CoordinatorLoadInProgressError

from broker.cluster import znodes
from broker.cluster.store import (
    BadVersionError,
    Create,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    NonsenseError,
    Operation,
    Set,
)

_log = logging.getLogger(__name__)

BLOCK_SIZE = 1000
_MAX_PRODUCER_ID = 2**63 - 1
_ATTEMPTS = 5


def claim_block(store: MetadataStore, node_id: int, first_id: int = 0) -> range:
    """Claims the next block for a broker. `first_id`: below it all are taken, whatever the store
    says. Raises CoordinatorLoadInProgressError and MetadataStoreError."""
    for _ in range(_ATTEMPTS):
        block, operation = _following_block(store, node_id, first_id)
        try:
            store.commit([operation])
        except (BadVersionError, NodeExistsError):
            continue
        _log.info(
            "producer_ids.claimed first=%d count=%d broker=%d", block.start, len(block), node_id
        )
        return block
    raise CoordinatorLoadInProgressError("producer ids are being claimed by other brokers")


def _following_block(store: MetadataStore, node_id: int, first_id: int) -> tuple[range, Operation]:
    try:
        node = store.get(znodes.PRODUCER_ID_BLOCK)
    except NoNodeError:
        block = range(first_id, first_id + BLOCK_SIZE)
        return block, Create(znodes.PRODUCER_ID_BLOCK, _dump(block, node_id))
    # Apache Kafka makes the node before there is a block.
    try:
        next_id = int(znodes.load(node.value)["block_end"]) + 1 if node.value else 0
    except (LookupError, TypeError, ValueError) as error:
        # A guess might give away ids that are somebody's.
        raise NonsenseError(f"{znodes.PRODUCER_ID_BLOCK} holds nonsense: {error!r}") from error
    first = max(next_id, first_id)
    block = range(first, min(first + BLOCK_SIZE, _MAX_PRODUCER_ID))
    return block, Set(znodes.PRODUCER_ID_BLOCK, _dump(block, node_id), node.version)


def _dump(block: range, node_id: int) -> bytes:
    return znodes.dump(
        {
            "version": 1,
            "broker": node_id,
            "block_start": str(block.start),
            "block_end": str(block.stop - 1),
        }
    )
