"""DescribeLogDirs (key 35), versions 0-5: the data directories, their logs and their volumes.

Left out: logs on their way to another directory (there are none), and cordoned directories.
"""

import asyncio
import shutil
from pathlib import Path

from kafka.errors import KafkaStorageError
from kafka.protocol.admin import DescribeLogDirsRequest, DescribeLogDirsResponse
from kafka.structs import TopicPartition

from broker.api.contexts import RecordContext
from broker.api.request import Api, Request
from broker.api.response import Response

_DIRECTORY = DescribeLogDirsResponse.DescribeLogDirsResult
_TOPIC = _DIRECTORY.DescribeLogDirsTopic
_PARTITION = _TOPIC.DescribeLogDirsPartition


async def handle(request: Request, context: RecordContext) -> Response:
    wanted = request.decode(DescribeLogDirsRequest)
    only = None
    if wanted.topics is not None:
        only = {(topic.topic, index) for topic in wanted.topics for index in topic.partitions or ()}
    sizes = context.replicas.log_sizes()
    loop = asyncio.get_running_loop()
    volumes = await loop.run_in_executor(None, lambda: {path: _volume(path) for path in sizes})
    results = []
    for directory, logs in sizes.items():
        volume = None if logs is None else volumes[directory]
        kept = {
            topic_partition: size
            for topic_partition, size in (logs or {}).items()
            if only is None or topic_partition in only
        }
        results.append(
            _DIRECTORY(
                error_code=KafkaStorageError.errno if volume is None else 0,
                log_dir=str(directory.absolute()),
                topics=[] if volume is None else _topics(kept),
                total_bytes=-1 if volume is None else volume[0],
                usable_bytes=-1 if volume is None else volume[1],
                is_cordoned=False,
            )
        )
    return DescribeLogDirsResponse(error_code=0, results=results)


def _volume(directory: Path) -> tuple[int, int] | None:
    """(total, usable) bytes of the volume; None when it cannot be asked. Blocks."""
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return None
    return usage.total, usage.free


def _topics(logs: dict[TopicPartition, int]) -> list[object]:
    by_topic: dict[str, list[object]] = {}
    for (topic, partition), size_bytes in logs.items():
        by_topic.setdefault(topic, []).append(
            _PARTITION(
                partition_index=partition,
                partition_size=size_bytes,
                offset_lag=0,  # one replica: everything is committed
                is_future_key=False,
            )
        )
    return [_TOPIC(name=name, partitions=found) for name, found in by_topic.items()]


API = Api(key=35, min_version=0, max_version=5, handle=handle, context=RecordContext)
