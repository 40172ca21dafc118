"""`pyspark_kafkalog.loaded_offsets`: where a load goes on, as an option of a read.

What a warehouse lacks is then a read or a stream away: `startingOffsets` begins where the last
commit ended. Runs on the driver, without Spark and without a broker; changes nothing.
"""

import json

from pyspark_kafkalog.source.log_identity import LogIdentity, with_identity
from pyspark_kafkalog.source.offsets import to_json
from pyspark_kafkalog.warehouse.targets.target import open_target


def loaded_offsets(target: str, name: str) -> str:
    """The next offsets of the load `name` into `target`, both as for `load`, in the form of the
    option startingOffsets: JSON such as {"orders":{"0":5000}}, or `earliest` where there is no
    commit of that name.

    Where brokers say ids of topics and epochs of leaders, these are in it, too, as the name of a
    topic without partitions (`__kafkalog-of-logs ...`), so that a read which is given it refuses a
    topic that was deleted and created again meanwhile, and a log that was cut off.

    Partitions that are new since the last commit are not in it, nor are topics that were deleted
    and that the load goes on without. Raises InvalidOptionError, TargetError.
    """
    at = open_target(target).position(name, read_only=True).without_deleted()
    if not at.offsets:
        return "earliest"
    logs = LogIdentity(at.topic_ids, at.epochs).of(at.offsets)
    return json.dumps(with_identity(to_json(at.offsets), logs), separators=(",", ":"))
