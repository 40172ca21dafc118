"""Where a follower's log has to be cut, so that it is a beginning of its leader's again.

Pure functions of the two logs' leader epochs (KIP-101, KIP-279). Never of the high watermark, but
for a log that knows no epochs: after a restart that is an old one.
"""

from broker.log.leader_epoch import UNDEFINED_EPOCH, UNDEFINED_OFFSET
from broker.log.log import Log
from pyspark_kafkalog.protocol.fetch import EpochEndOffset


def truncation_offset(log: Log, high_watermark: int, leader: EpochEndOffset) -> int:
    """The offset to cut at. `leader`: the largest epoch of the leader's that is not above our last
    one, and where it ends there. Where that epoch is none of ours, the cut is at the end of the
    largest below it, and the leader is to be asked again."""
    end_offset = log.log_end_offset
    if leader.end_offset == UNDEFINED_OFFSET:
        return min(high_watermark, end_offset)
    if leader.epoch == UNDEFINED_EPOCH:
        return min(leader.end_offset, end_offset)
    _, own_end_offset = log.leader_epochs.end_offset_for(leader.epoch, end_offset)
    if own_end_offset == UNDEFINED_OFFSET:
        return min(leader.end_offset, end_offset)
    return min(own_end_offset, leader.end_offset, end_offset)
