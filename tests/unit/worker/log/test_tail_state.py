"""What the tail knows of one partition: entries, and what may be forgotten."""

from __future__ import annotations

import asyncio
import tracemalloc

import msgspec

from tailrace.protocol import fold, history, ids, records
from worker.log import finished, tail_state
from worker.log.tail_state import Entry, Partition

OWNER = records.Owner("i", "s")


def rid(n: int) -> str:
    return ids.mint(ids.Address(b"abcd", 0, n), n.to_bytes(11, "big"))


def claim(name: str, own: str, prev: str | None = None) -> records.Claim:
    return records.Claim(name, own, prev, OWNER, "w", "t", 0, "m", "t")


def test_the_first_effective_record_is_remembered_and_lost_claims_differ_from_won_ones() -> None:
    entry = Entry(0)
    entry.apply(claim("r", "late", prev="none"), 5, 0)
    assert entry.first == -1
    entry.apply(claim("r", "a"), 6, 0)
    entry.apply(claim("r", "b"), 7, 0)
    assert (entry.first_offset, entry.first) == (5, 6)
    assert entry.claim_effects == {"late": False, "a": True, "b": False}


def test_a_listener_hears_of_ownership_and_ends_but_not_of_every_token() -> None:
    entry, heard = Entry(0), []
    entry.listener = lambda: heard.append(entry.fold.next)
    entry.apply(claim("r", "a"), 0, 0)
    for seq in range(3):
        entry.apply(records.Tok("r", "a", seq, [1], "x", entry.fold.h), 1 + seq, 0)
    assert heard == [0]
    entry.apply(records.Yield("r", "a", 3), 4, 0)
    entry.apply(records.Cancel("r", OWNER), 5, 0)
    assert heard == [0, 3, 3]


async def test_a_waiter_returns_at_the_next_change() -> None:
    entry = Entry(0)
    waiting = asyncio.ensure_future(entry.changed())
    await asyncio.sleep(0)
    assert not waiting.done()
    entry.apply(claim("r", "a"), 0, 0)
    await waiting


def test_records_read_twice_change_nothing() -> None:
    entry = Entry(0)
    for _ in range(2):
        entry.apply(claim("r", "a"), 0, 0)
        entry.apply(records.Tok("r", "a", 0, [7], "x", "0" * 16), 1, 0)
    assert entry.fold.ids == [7]
    assert entry.fold.ignored == {}
    assert entry.claim_effects == {"a": True}


def test_a_second_copy_of_a_claim_does_not_make_it_lost() -> None:
    """A worker stood down because its own claim came a second time."""
    entry = Entry(0)
    entry.apply(claim("r", "a"), 0, 1)
    entry.apply(claim("r", "a"), 1, 2)
    assert entry.claim_effects == {"a": True}
    assert entry.fold.owner == "a"


def test_a_copy_of_a_claim_that_takes_effect_after_the_first_did_not_counts() -> None:
    entry = Entry(0)
    entry.apply(claim("r", "c", "b"), 0, 1)
    assert entry.claim_effects == {"c": False}
    entry.apply(claim("r", "a"), 1, 2)
    entry.apply(claim("r", "b", "a"), 2, 3)
    entry.apply(claim("r", "c", "b"), 3, 4)
    assert entry.claim_effects == {"a": True, "b": True, "c": True}


def test_forgetting_raises_the_start_so_that_nothing_forgotten_can_look_new() -> None:
    state = Partition(start=0, position=10, target=0)
    for n in range(4):
        state.apply(claim(rid(n), f"own{n}"), n, 0)
    state.entries[rid(0)].holds = 1

    state.forget(2 * tail_state.ENTRY_BYTES)

    assert list(state.entries) == [rid(0), rid(3)]
    assert state.start == 3
    again = state.entry(rid(2))
    assert ids.parse(rid(2)).offset < again.complete  # so `Tail.known` reads it back
    assert ids.parse(rid(3)).offset >= state.entries[rid(3)].complete


USAGE = records.Usage(9, 50, 3, 7)


def ended(state: Partition, n: int, tokens: int = 50) -> None:
    """Response `n`, from its CLAIM to its END."""
    made = list(range(1 << 28, (1 << 28) + tokens))
    story: tuple[records.TokenRecord, ...] = (
        claim(rid(n), f"own{n}"),
        records.Tok(rid(n), f"own{n}", 0, made, "x", fold.H0),
        records.End(rid(n), f"own{n}", tokens, "stop", fold.roll(fold.H0, made), usage=USAGE),
    )
    for at, record in enumerate(story):
        state.apply(record, 3 * n + at, 5 + at)


def test_what_is_kept_of_an_ended_response_says_what_its_fold_said() -> None:
    state, kept = Partition(0, 0, 0), Entry(0)
    ended(state, 1)
    assert (list(state.entries), list(state.ended)) == ([], [rid(1)])
    kept.fold.apply(claim(rid(1), "own1"), 3, 5)
    made = list(range(1 << 28, (1 << 28) + 50))
    kept.fold.apply(records.Tok(rid(1), "own1", 0, made, "x", fold.H0), 4, 6)
    h = fold.roll(fold.H0, made)
    kept.fold.apply(records.End(rid(1), "own1", 50, "stop", h, usage=USAGE), 5, 7)
    kept.fold.ids, kept.fold.text, kept.fold.topic = [], bytearray(), ""
    kept.fold.model = ("", "", "")

    again = state.entry(rid(1))

    assert again.fold == kept.fold
    assert (again.complete, again.first_offset, again.first, again.claim_effects) == (
        0,
        3,
        3,
        {"own1": True},
    )
    again.holds += 1
    state.release(rid(1))
    assert (list(state.entries), list(state.ended)) == ([], [rid(1)])


def test_it_says_too_which_claims_were_hedged() -> None:
    """A dead letter that is written again counts attempts (log rule §26)."""
    state, second = Partition(0, 0, 0), "own2"
    state.apply(claim(rid(1), "own1"), 3, 5)
    hedged = msgspec.structs.replace(claim(rid(1), second, "own1"), hedged=True)
    state.apply(hedged, 4, 6)
    state.apply(records.End(rid(1), second, 0, "stop", fold.H0, usage=USAGE), 5, 7)
    assert list(state.ended) == [rid(1)]
    assert state.entry(rid(1)).fold.hedged == {second}


def test_what_is_kept_of_a_continued_response_has_its_segments() -> None:
    """Symptom: the usage record that the next owner of the partition wrote had the cost of all
    tokens at the last model's price."""
    former = [fold.Former(6, 20, ""), fold.Former(9, 30, "small")]
    over = fold.Ended("stop", "completed", "", USAGE, None, 7)
    state = fold.Fold(phase=fold.Phase.DONE, ended=over, served="large", former=former)
    assert finished.unpack(rid(1), finished.pack(state)).former == former


def test_what_is_kept_of_a_failed_response_has_its_error() -> None:
    error = ("invalid_value", "Too many.")
    over = fold.Ended("failed", "failed", "", USAGE, error, 7, param="dimensions")
    state = fold.Fold(phase=fold.Phase.DONE, ended=over)
    assert finished.unpack(rid(1), finished.pack(state)).ended == over


def test_what_is_kept_of_a_response_has_the_times_of_its_tokens() -> None:
    """So the usage record that is written again says the same times."""
    state, own = Partition(0, 0, 0), "own1"
    state.apply(claim(rid(1), own), 3, 5)
    frame = records.Tok(rid(1), own, 0, [7], "x", fold.H0)
    state.apply(frame, 4, 60)
    behind = fold.roll(fold.H0, [7])
    state.apply(records.Tok(rid(1), own, 1, [8, 9], "yz", behind), 5, 80)
    whole = fold.roll(behind, [8, 9])
    state.apply(records.End(rid(1), own, 3, "stop", whole, usage=USAGE), 6, 90)
    assert list(state.ended) == [rid(1)]
    assert state.entry(rid(1)).fold.pace == fold.Pace(60, 80, 1)


def test_an_end_that_a_worker_waits_for_is_packed_when_it_lets_go() -> None:
    state = Partition(0, 0, 0)
    entry = state.entry(rid(2))
    entry.holds += 1
    ended(state, 2)
    assert entry.fold.phase is fold.Phase.DONE
    assert entry.fold.ids == []
    assert list(state.ended) == []
    state.release(rid(2))
    assert list(state.ended) == [rid(2)]


def test_a_cancel_before_any_claim_is_kept_like_any_end() -> None:
    state = Partition(0, 0, 0)
    state.apply(records.Cancel(rid(1), OWNER), 0, 9)
    assert [state.entry(rid(1)).fold.ended] == [
        fold.Ended("cancelled", "cancelled", "", records.Usage(), None, 9)
    ]


def test_memory_is_bounded_whatever_the_length_of_history_and_answers() -> None:
    """Symptom: a worker kept the ids of 10,000 finished answers per partition; with answers of
    1,000 tokens that is 40 KB each."""
    state, share = Partition(0, 0, 0), 100_000
    tracemalloc.start()
    try:
        for n in range(1_000):
            ended(state, n, tokens=400)
            state.forget(share)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert state.size <= share
    assert taken < 2 * share
    assert list(state.ended)[-1] == rid(999)
    assert state.start > 3 * 600


def test_a_response_never_seen_is_known_to_be_new_only_from_the_start_on() -> None:
    state = Partition(start=50, position=60, target=60)
    state.check_caught_up()
    assert state.caught_up.is_set()
    assert state.entry(rid(49)).complete == 50 > ids.parse(rid(49)).offset
    assert state.entry(rid(50)).complete <= ids.parse(rid(50)).offset


def test_after_a_gap_entries_are_complete_only_from_its_end_on() -> None:
    state = Partition(start=0, position=10, target=10)
    entry = state.entry(rid(0))
    state.restart(70)
    assert (state.start, state.position, entry.complete) == (70, 70, 70)
    assert not state.expects(12)  # a record that a fetch from before the gap still brought
    assert state.expects(70)


def test_what_is_kept_for_the_history_counts_and_goes_first_of_what_is_held() -> None:
    state = Partition(0, 0, 0)
    entry = state.entry(rid(1))
    entry.holds, entry.draft = 1, history.Draft()
    state.apply(claim(rid(1), "own1"), 3, 5)
    before = state.size
    made = list(range(50))
    state.apply(records.Tok(rid(1), "own1", 0, made, "x" * 9_000, fold.H0), 4, 6)
    assert state.size > before + 18_000
    state.forget(before)
    assert entry.draft is None
    assert state.entries == {rid(1): entry}
    assert state.size == entry.size == entry.last_size < before + 18_000
