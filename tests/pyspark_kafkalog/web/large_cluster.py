"""A broker that tells of more, and of stranger things, than a real one would in a test's time."""

from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from tests.pyspark_kafkalog.client.scripted import LIST_OFFSETS, Request, ScriptedBroker

PARTITIONS = 10_000
HOSTILE_TOPIC = "<script>document.title='taken'</script>/../\"onerror='x"
END = 1_234_567


def large_cluster() -> ScriptedBroker:
    """With a topic `many` of PARTITIONS, and one whose name no real broker would allow."""
    topics = {"many": PARTITIONS, HOSTILE_TOPIC: 1}
    return ScriptedBroker({LIST_OFFSETS: _list_offsets}, topics)


def _list_offsets(request: Request) -> bytes:
    asked = ListOffsetsRequest.decode(bytes(request.body), version=request.version)
    of_topic = ListOffsetsResponse.ListOffsetsTopicResponse
    return bytes(
        ListOffsetsResponse(
            throttle_time_ms=0,
            topics=[
                of_topic(
                    name=topic.name,
                    partitions=[
                        of_topic.ListOffsetsPartitionResponse(
                            partition_index=each.partition_index,
                            error_code=0,
                            timestamp=-1,
                            offset=END if each.timestamp == -1 and topic.name == "many" else 0,
                            leader_epoch=0,
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in asked.topics
            ],
        ).encode(version=request.version)
    )
