"""Which offset may be committed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import commits
from worker.queue import commit_tracker


def next_offset(tracker: commit_tracker.Tracker, position: int = 100) -> int | None:
    commit = tracker.next_commit(position)
    return None if commit is None else commit.offset


def test_nothing_is_committed_before_a_request_was_read() -> None:
    assert commit_tracker.Tracker().next_commit(5) is None
    assert commit_tracker.Tracker(start=7).next_commit(5) is None


def test_committable_stays_at_the_first_unfinished_request_whatever_is_finished_behind_it() -> None:
    tracker = commit_tracker.Tracker(start=10)
    for offset in range(10, 15):
        tracker.begin(offset)
    for offset in (11, 12, 14):
        tracker.finish(offset)
    assert tracker.committable == 10
    assert tracker.next_commit(100) is None  # where it stood at the assignment: nothing new to say
    tracker.finish(10)
    assert next_offset(tracker) == 13
    tracker.finish(13)
    assert next_offset(tracker) == 15


def test_the_metadata_names_the_lowest_claim_above_finished_ones_included() -> None:
    tracker = commit_tracker.Tracker()
    for offset, claim in ((0, 50), (1, 40), (2, 60)):
        tracker.begin(offset)
        tracker.note_claim(offset, claim)
    tracker.finish(1)
    assert tracker.next_commit(100) == commit_tracker.Commit(0, 40)
    tracker.finish(0)
    assert tracker.next_commit(100) == commit_tracker.Commit(2, 60)


def test_without_claims_the_metadata_is_where_the_tail_stands() -> None:
    tracker = commit_tracker.Tracker()
    tracker.begin(3)
    assert tracker.next_commit(77) == commit_tracker.Commit(3, 77)


def test_an_acknowledged_commit_is_not_due_again_until_something_changes() -> None:
    tracker = commit_tracker.Tracker()
    tracker.begin(0)
    tracker.note_claim(0, 9)
    first = tracker.next_commit(100)
    assert first is not None
    tracker.note_commit(first)
    assert tracker.next_commit(200) is None
    tracker.finish(0)
    assert tracker.next_commit(200) == commit_tracker.Commit(1, 200)


def test_a_claim_known_later_is_committed_although_committable_did_not_move() -> None:
    tracker = commit_tracker.Tracker()
    tracker.begin(0)
    before = tracker.next_commit(5)
    assert before is not None
    tracker.note_commit(before)
    tracker.note_claim(0, 5)
    assert tracker.next_commit(9) == commit_tracker.Commit(0, 5)


def test_garbage_is_passed_but_never_what_lies_before_it() -> None:
    tracker = commit_tracker.Tracker()
    tracker.begin(0)
    tracker.skip(1)
    assert next_offset(tracker) == 0
    tracker.finish(0)
    assert next_offset(tracker) == 2


def test_a_claim_for_a_finished_request_changes_nothing() -> None:
    tracker = commit_tracker.Tracker()
    tracker.begin(0)
    tracker.finish(0)
    tracker.note_claim(0, 1)
    assert tracker.next_commit(50) == commit_tracker.Commit(1, 50)


def test_a_commit_without_a_worker_s_metadata_says_nothing_of_requests() -> None:
    assert [commits.finished_below(each) for each in (None, (9, ""), (9, "4"))] == [0, 0, 9]


def test_metadata_of_another_program_says_nothing() -> None:
    assert commits.token_offset("12") == 12
    for foreign in ("", "abc", "-1", "٣", "1.5"):
        assert commits.token_offset(foreign) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "finish", "commit"]), st.integers(0, 30)), max_size=60
    )
)
def test_no_history_commits_past_an_unfinished_request_or_back(
    history: list[tuple[str, int]],
) -> None:
    tracker, following, unfinished, committed = commit_tracker.Tracker(), 0, set(), -1
    for action, value in history:
        if action == "take":
            tracker.begin(following)
            unfinished.add(following)
            following += 1
        elif action == "finish" and unfinished:
            chosen = sorted(unfinished)[value % len(unfinished)]
            unfinished.discard(chosen)
            tracker.finish(chosen)
        elif (commit := tracker.next_commit(1000)) is not None:
            assert commit.offset <= min(unfinished, default=following)
            assert commit.offset >= committed
            committed = commit.offset
            tracker.note_commit(commit)
