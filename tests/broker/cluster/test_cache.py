"""What requests are answered from."""

import uuid

from broker.cluster.cache import MetadataCache
from broker.cluster.metadata import BrokerNode, new_topic


def test_the_copy_in_memory():
    metadata = MetadataCache("cluster", BrokerNode(1, "host", 9092))
    later, sooner = (new_topic(name, 1, 1) for name in ("b", "a"))
    metadata.put(later)
    metadata.put(sooner)
    assert metadata.topics() == [sooner, later]
    assert metadata.topic("a") is sooner
    assert metadata.topic_by_id(later.topic_id) is later
    assert metadata.topic_by_id(uuid.uuid4()) is None
    metadata.remove("b")
    metadata.remove("b")
    assert metadata.topic("b") is None
    assert metadata.topic_by_id(later.topic_id) is None
