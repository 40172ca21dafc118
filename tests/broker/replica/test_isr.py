"""Who is in sync, and up to where the log is committed: against a plain model of the rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replica.isr import InSyncReplicas, ReplicaHost

LAG_MS = 30_000
ME, A, B = 1, 2, 3


class World:
    """A leader with two followers, at a time that the test says."""

    def __init__(self, isr: tuple[int, ...] = (ME, A, B)) -> None:
        self.now_ms = 1_000_000
        self.live = {ME, A, B}
        self.racks = {ME: "here", A: "there", B: "there"}
        host = ReplicaHost(
            ME,
            LAG_MS,
            lambda node_id: node_id in self.live,
            lambda _: True,
            lambda: self.now_ms,
            self.racks.get,
        )
        self.isr = InSyncReplicas(host)
        self.isr.begin((ME, A, B), isr, is_new_epoch=True)

    def fetched(self, node_id: int, offset: int, end_offset: int) -> None:
        self.isr.followers[node_id].fetched(offset, 0, end_offset, self.now_ms)


@pytest.fixture
def world() -> World:
    return World()


def test_nothing_is_committed_before_every_one_in_sync_has_asked_for_more(world: World) -> None:
    world.fetched(A, 10, 10)
    assert world.isr.committed_end(10) == -1
    world.fetched(B, 7, 10)
    assert world.isr.committed_end(10) == 7


def test_one_that_is_about_to_join_is_waited_for() -> None:
    world = World(isr=(ME, A))
    world.fetched(A, 10, 10)
    world.fetched(B, 9, 10)
    assert world.isr.committed_end(10) == 10
    world.fetched(B, 10, 10)  # it has caught up
    assert world.isr.committed_end(12) == 10
    world.live.discard(B)
    world.fetched(A, 12, 12)
    assert world.isr.committed_end(12) == 12


def test_while_a_change_is_asked_for_the_larger_isr_counts(world: World) -> None:
    world.fetched(A, 10, 10)
    world.fetched(B, 4, 10)
    world.isr.propose((ME, A))
    world.now_ms += 2 * LAG_MS
    assert world.isr.committed_end(10) == 4
    world.isr.settle((ME, A))
    assert world.isr.committed_end(10) == 10


def test_who_joins_has_what_is_committed_and_what_the_epoch_began_with() -> None:
    world = World(isr=(ME, A))
    world.fetched(B, 8, 10)
    assert world.isr.with_follower(B, 9, 0) is None
    assert world.isr.with_follower(B, 8, 9) is None
    assert world.isr.with_follower(B, 8, 8) == (ME, A, B)
    world.live.discard(B)
    assert world.isr.with_follower(B, 8, 8) is None


def test_there_is_one_change_at_a_time(world: World) -> None:
    world.isr.propose((ME, A))
    world.now_ms += 2 * LAG_MS
    assert world.isr.without_laggards(10) is None
    world.isr.give_up()
    assert world.isr.without_laggards(10) == (ME,)


def test_who_has_all_that_there_is_stays_however_long_ago_it_asked(world: World) -> None:
    world.fetched(A, 10, 10)
    world.fetched(B, 9, 10)
    world.now_ms += 2 * LAG_MS
    assert world.isr.without_laggards(10) == (ME, A)
    assert world.isr.without_laggards(11) == (ME,)


def test_who_reaches_where_the_leader_was_at_its_last_fetch_was_caught_up_then(
    world: World,
) -> None:
    """A busy partition is never quite caught up with."""
    for _ in range(5):
        world.now_ms += LAG_MS
        for node_id in (A, B):
            follower = world.isr.followers[node_id]
            end_offset = follower.end_offset + 100
            world.fetched(node_id, max(0, end_offset - 100), end_offset)
            world.fetched(node_id, end_offset, end_offset + 50)
    assert world.isr.without_laggards(10_000) is None


def test_who_had_all_has_as_long_as_the_rule_says_to_fetch_more(world: World) -> None:
    world.now_ms += LAG_MS
    for node_id in (A, B):
        world.fetched(node_id, 10, 10)
    world.now_ms += LAG_MS
    assert world.isr.without_laggards(11) is None
    world.now_ms += 1
    assert world.isr.without_laggards(11) == (ME,)


def test_the_same_epoch_resets_no_follower(world: World) -> None:
    world.fetched(A, 5, 9)
    world.isr.begin((ME, A), (ME, A), is_new_epoch=False)
    assert world.isr.committed_end(9) == 5
    world.isr.begin((ME, A), (ME, A), is_new_epoch=True)
    assert world.isr.committed_end(9) == -1


def test_a_consumer_is_sent_to_who_has_most_of_those_in_sync_in_its_rack(world: World) -> None:
    assert world.isr.nearest("there", 0) is None  # nobody has said what it has
    world.fetched(A, 5, 10)
    world.fetched(B, 7, 10)
    assert [world.isr.nearest("there", offset) for offset in (0, 5, 6, 7, 8)] == [B, B, B, B, None]
    assert world.isr.nearest("here", 0) is world.isr.nearest("elsewhere", 0) is None
    world.isr.settle((ME, A))
    assert [world.isr.nearest("there", offset) for offset in (5, 6)] == [A, None]
    world.isr.settle((ME, A, B))
    world.isr.followers[B].fetched(7, 3, 10, world.now_ms)
    assert [world.isr.nearest("there", offset) for offset in (2, 3)] == [A, B]
    world.now_ms += 1
    world.fetched(A, 7, 7)
    assert world.isr.nearest("there", 3) == A  # of two who have as much, who had all
    del world.racks[A]
    assert world.isr.nearest("there", 3) == B
    world.racks[ME] = "there"
    assert world.isr.nearest("there", 3) is None


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B]), st.integers(0, 20), st.integers(0, LAG_MS)), max_size=30
    )
)
def test_what_is_committed_is_in_every_replica_in_sync(steps: list[tuple[int, int, int]]) -> None:
    """Whatever joins and leaves: below the committed end nobody in the ISR lacks anything."""
    world = World(isr=(ME,))
    end_offset, high_watermark = 20, 0
    has = {ME: end_offset, A: 0, B: 0}
    for node_id, offset, pause_ms in steps:
        world.now_ms += pause_ms
        world.fetched(node_id, offset, end_offset)
        has[node_id] = offset
        for isr in (
            world.isr.without_laggards(end_offset),
            world.isr.with_follower(node_id, high_watermark, 0),
        ):
            if isr is not None:
                world.isr.propose(isr)
                world.isr.settle(isr)
        now = world.isr.committed_end(end_offset)
        assert now <= min(has[each] for each in world.isr.committed)
        high_watermark = max(high_watermark, now)
