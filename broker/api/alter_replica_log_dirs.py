"""AlterReplicaLogDirs (key 34), versions 0-2: where a partition's log is to be.

A log stays in the directory where it was made: to ask for that one succeeds. Left out: moving it to
another of `log.dirs`, which is refused with KAFKA_STORAGE_ERROR.
"""

from pathlib import Path

from kafka.errors import (
    BrokerResponseError,
    KafkaStorageError,
    LogDirNotFoundError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.admin import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from kafka.structs import TopicPartition

from broker.api.contexts import RecordContext
from broker.api.errors import code_of
from broker.api.request import Api, Request
from broker.api.response import Response

_TOPIC = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
_PARTITION = _TOPIC.AlterReplicaLogDirPartitionResult


def handle(request: Request, context: RecordContext) -> Response:
    wanted = request.decode(AlterReplicaLogDirsRequest)
    directories = {
        directory.absolute(): set(logs or ())
        for directory, logs in context.replicas.log_sizes().items()
    }
    by_topic: dict[str, list[object]] = {}
    for ask in wanted.dirs or ():
        for topic in ask.topics or ():
            for index in topic.partitions or ():
                error = _error(ask.path, TopicPartition(topic.name, index), directories)
                answer = _PARTITION(partition_index=index, error_code=code_of(error))
                by_topic.setdefault(topic.name, []).append(answer)
    results = [_TOPIC(topic_name=name, partitions=found) for name, found in by_topic.items()]
    return AlterReplicaLogDirsResponse(results=results)


def _error(
    path: str, topic_partition: TopicPartition, directories: dict[Path, set[TopicPartition]]
) -> BrokerResponseError | None:
    wanted = Path(path)
    if not wanted.is_absolute() or wanted not in directories:
        return LogDirNotFoundError(f"{path} is none of this broker's data directories")
    for directory, logs in directories.items():
        if topic_partition in logs:
            if directory == wanted:
                return None
            return KafkaStorageError("this broker moves no log to another directory")
    return UnknownTopicOrPartitionError()


API = Api(key=34, min_version=0, max_version=2, handle=handle, context=RecordContext)
