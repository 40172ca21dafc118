"""Logs that lost their tail after a load had read it, and have other records at its offsets now.

Neither a topic's id nor the ends of its log tell that: an election of a replica that was not in
sync, or a power loss, takes the last records, and the next ones get their offsets. So a commit
keeps the leader epoch of each partition when it was planned, and the next load asks a leader of
another one where that epoch ended (client/epoch_ends.py). A cluster that was restored may begin an
epoch again; then the marks of what was read last tell (marks.py).

Runs on the driver, with a Cluster handed in.
"""

from dataclasses import replace

from kafka.structs import TopicPartition

from pyspark_kafkalog.client.cluster import Cluster
from pyspark_kafkalog.client.epoch_ends import epoch_ends
from pyspark_kafkalog.source.offsets import LogBounds, Offsets, describe, report_data_loss
from pyspark_kafkalog.warehouse.commit import Position
from pyspark_kafkalog.warehouse.marks import replaced


def truncated(
    cluster: Cluster, at: Position, bounds: LogBounds, name: str, fail_on_data_loss: bool
) -> Offsets:
    """Of the partitions in `bounds` those whose logs were cut off before the place where load
    `name` goes on, `at` a position: each with the offset at which other records begin. Its topics'
    ids are those of now. Epochs only grow: of a leader that is in an earlier one, a restored
    broker, or that has another record than was read, nobody can tell where that is, and the
    partition stays where it is.

    Raises DataLossError for them, unless `fail_on_data_loss` is false.
    """
    last, epochs = at.offsets, at.epochs
    later = {
        each: epochs[each]
        for each in bounds.latest.keys() & last.keys() & epochs.keys()
        if last[each] and bounds.epochs.get(each) != epochs[each]
    }
    cut = {each: end for each, end in epoch_ends(cluster, later).items() if end < last[each]}
    if cut:
        first = min(cut)
        report_data_loss(
            f"Partition {describe([first])} lost records that load {name!r} has read: its leader "
            f"has none of them from offset {cut[first]} on, where others are written now, and the "
            f"load goes on at offset {last[first]}.{_others(cut, first)}",
            fail_on_data_loss,
        )
    back = {
        each: last[each] for each, epoch in later.items() if bounds.epochs.get(each, epoch) < epoch
    }
    if back:
        first = min(back)
        report_data_loss(
            f"Partition {describe([first])} has a leader of epoch {bounds.epochs[first]}, earlier "
            f"than the epoch {epochs[first]} in which load {name!r} came to offset {last[first]}: "
            "its broker was restored from an earlier state (or the topic was created again), and "
            "others may be at the offsets of records that it lost. The load cannot tell which; it "
            f"goes on at offset {last[first]}.{_others(back, first)}",
            fail_on_data_loss,
        )
    found = {**back, **cut}
    others = {each: offset for each, offset in last.items() if each not in found}
    left = replace(at, offsets=others)
    return {**found, **replaced(cluster.config, left, bounds, name, fail_on_data_loss)}


def _others(cut: Offsets, first: TopicPartition) -> str:
    others = cut.keys() - {first}
    return f" The same holds for {describe(others)}." if others else ""
