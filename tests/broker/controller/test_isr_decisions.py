"""What a leader is told that asks for another ISR."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from kafka.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    NotControllerError,
)

from broker.cluster.control import IsrChange
from broker.cluster.metadata import PartitionMetadata
from broker.controller.isr_decisions import decide

STATE = PartitionMetadata((1, 2, 3), 1, 5, (1, 2), 7)
ASKED = IsrChange(UUID(int=1), 0, 5, (1, 2, 3), 7)


def decided(
    asker: int = 1, live: tuple[int, int, int] = (1, 2, 3), **changed: Any
) -> PartitionMetadata | None:
    return decide(replace(ASKED, **changed), asker, STATE, lambda node_id: node_id in live)


def test_a_leader_gets_what_it_asks_for() -> None:
    assert decided() == replace(STATE, isr=(1, 2, 3))
    assert decided(isr=(1,)) == replace(STATE, isr=(1,))


def test_a_question_that_comes_again_is_answered_as_the_first() -> None:
    assert decided(isr=(1, 2), partition_epoch=6) is None


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"leader_epoch": 6}, NotControllerError),
        ({"partition_epoch": 8}, NotControllerError),
        ({"leader_epoch": 4}, FencedLeaderEpochError),
        ({"leader_epoch": 4, "isr": (1, 2)}, FencedLeaderEpochError),
        ({"partition_epoch": 6}, InvalidUpdateVersionError),
        ({"asker": 2}, InvalidRequestError),
        ({"isr": (2, 3)}, InvalidRequestError),
        ({"isr": (1, 2, 4)}, IneligibleReplicaError),
        ({"live": (1, 2)}, IneligibleReplicaError),
    ],
)
def test_what_is_refused(changed: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        decided(**changed)
