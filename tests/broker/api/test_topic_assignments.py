"""What may be wrong with an assignment of replicas that a client names, where there are others."""

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import InvalidReplicationAssignmentError

from broker.api.topic_assignments import check_assignment
from tests.support.replicated_broker import ReplicatedBroker


def test_all_partitions_of_a_topic_have_as_many_replicas() -> None:
    context: Any = SimpleNamespace(metadata=ReplicatedBroker().metadata)
    for broker_ids, count in (([2], None), ([2, 1], None), ([2, 1], 2)):
        check_assignment(broker_ids, context, count)
    expected = "a partition with 1 replica.s., but .* previous partitions, which have 2 replica"
    with pytest.raises(InvalidReplicationAssignmentError, match=expected):
        check_assignment([1], context, 2)
