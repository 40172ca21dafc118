"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69), which `kafka.protocol` has not.

The messages are described in `pyspark_kafkalog/protocol/schemas`, in the form of Kafka's own
schemas, and made into classes by kafka-python like all others: what checks those checks these.
"""

from kafka.protocol.api_message import ApiMessage

_SCHEMAS = "pyspark_kafkalog.protocol.schemas"


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc,call-arg]
    """A member joins, stays or leaves, and says what it owns."""


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc,call-arg]
    """The member's epoch, and what it may own."""


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc,call-arg]
    """Asks for groups of the consumer protocol."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[misc,call-arg]
    """Groups with their members, what those have and what they are to have."""
