"""The reader rule line by line, its corner cases one by one, and any history whatever beside a
second fold written independently."""

from __future__ import annotations

import dataclasses
import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import fold, records
from tests.model import compare, second_fold
from tests.model.compare import OWNER, STRANGER, cancel, claim, end, tok, yield_
from tests.support import cases

Outcomes = list[str]


def outcomes(*history: records.TokenRecord) -> tuple[fold.Fold, Outcomes]:
    state = fold.Fold(retain_ids=True)
    return state, [
        compare.word(state.apply(record, offset, 1000 + offset))
        for offset, record in enumerate(history)
    ]


# Each line of the rule: name, history, outcome of its last record.
RULES: dict[str, tuple[list[records.TokenRecord], str]] = {
    "2 a first claim": ([claim("a", None)], "claimed"),
    "2 a first claim that names an owner": ([claim("a", "x")], "lost_race"),
    "2 a second first claim": ([claim("a", None), claim("b", None)], "lost_race"),
    "2 a takeover of the owner": ([claim("a", None), claim("b", "a")], "claimed"),
    "2 a takeover of a former owner": (
        [claim("a", None), claim("b", "a"), claim("c", "a")],
        "lost_race",
    ),
    "2 a takeover of a claim that lost": (
        [claim("a", None), claim("b", None), claim("c", "b")],
        "lost_race",
    ),
    "3 a token before any claim": ([tok("a", 0, [1], [])], "stale_owner"),
    "3 the owner's next token": ([claim("a", None), tok("a", 0, [1], [])], "accepted"),
    "3 a frame of several tokens": (
        [claim("a", None), tok("a", 0, [1, 2], []), tok("a", 2, [3], [1, 2])],
        "accepted",
    ),
    "3 another's token": ([claim("a", None), tok("b", 0, [1], [])], "stale_owner"),
    "3 a former owner's token": (
        [claim("a", None), claim("b", "a"), tok("a", 0, [1], [])],
        "stale_owner",
    ),
    "3 the same token again": ([claim("a", None), *[tok("a", 0, [1], [])] * 2], "duplicate"),
    "3 a token that starts inside what is accepted": (
        [claim("a", None), tok("a", 0, [1, 2], []), tok("a", 1, [2, 3], [1])],
        "duplicate",
    ),
    "3 a token after a missing one": ([claim("a", None), tok("a", 1, [2], [1])], "gap"),
    "3 a token from another prefix": (
        [claim("a", None), tok("a", 0, [1], []), tok("a", 1, [2], [9])],
        "chain",
    ),
    "3 stale before duplicate": (
        [claim("a", None), tok("a", 0, [1], []), claim("b", "a"), tok("a", 0, [1], [])],
        "stale_owner",
    ),
    "4 the owner's end at the last token": (
        [claim("a", None), tok("a", 0, [1], []), end("a", [1])],
        "ended",
    ),
    "4 an end of no tokens": ([claim("a", None), end("a", [])], "ended"),
    "4 another's end": ([claim("a", None), end("b", [])], "end"),
    "4 an end before any claim": ([end("a", [])], "end"),
    "4 an end that counts too few": ([claim("a", None), tok("a", 0, [1], []), end("a", [])], "end"),
    "4 an end that counts too many": ([claim("a", None), end("a", [1])], "end"),
    "4 an end over another prefix": (
        [claim("a", None), tok("a", 0, [1], []), end("a", [2])],
        "end",
    ),
    "4 an end that counts wrong over the right prefix": (
        [claim("a", None), records.End(compare.RID, "a", 1, "stop", fold.H0)],
        "end",
    ),
    "4 a former owner's end": ([claim("a", None), claim("b", "a"), end("a", [])], "end"),
    "5 a cancel before any claim": ([cancel()], "ended"),
    "5 a cancel of a running response": (
        [claim("a", None), tok("a", 0, [1], []), cancel()],
        "ended",
    ),
    "5 a stranger's cancel of a running response": (
        [claim("a", None), tok("a", 0, [1], []), cancel(STRANGER)],
        "foreign",
    ),
    "5 a claim after the cancel of another": ([cancel(STRANGER), claim("a", None)], "claimed"),
    "5 a claim for who cancelled before a stranger's claim": (
        [cancel(), cancel(STRANGER), claim("a", None, owner=STRANGER)],
        "after_done",
    ),
    "5 expired before any claim": ([cancel(failed="expired")], "ended"),
    "5 a claim after it": ([cancel(failed="expired"), claim("a", None)], "after_done"),
    "5 expired when it was claimed": ([claim("a", None), cancel(failed="expired")], "lost_race"),
    "5 lost while it runs": (
        [claim("a", None), tok("a", 0, [1], []), cancel(failed="history_lost")],
        "ended",
    ),
    "5 lost to a stranger": (
        [claim("a", None), cancel(STRANGER, failed="history_lost")],
        "foreign",
    ),
    "6 the owner's yield": ([claim("a", None), yield_("a")], "yielded"),
    "6 a yield before any claim": ([yield_("a")], "stale_owner"),
    "6 a former owner's yield": ([claim("a", None), claim("b", "a"), yield_("a")], "stale_owner"),
}
ENDINGS: dict[str, list[records.TokenRecord]] = {
    "an end": [claim("a", None), tok("a", 0, [1], []), end("a", [1])],
    "a cancel": [claim("a", None), tok("a", 0, [1], []), cancel()],
    "a cancel before any claim": [cancel()],
    "a lost beginning": [claim("a", None), cancel(failed="history_lost")],
}
LATE = [
    claim("b", "a"),
    claim("b", None),
    tok("a", 1, [2], [1]),
    tok("a", 0, [1], []),
    end("a", [1]),
    cancel(),
    yield_("a"),
]


@cases.each("line", RULES)
def test_rule(line: str) -> None:
    history, expected = RULES[line]
    state, seen = outcomes(*history)
    assert seen[-1] == expected
    if isinstance(expected, str) and expected in {reason.value for reason in fold.Ignored}:
        before, _ = outcomes(*history[:-1])
        assert (
            state.ignored.pop(fold.Ignored(expected))
            == before.ignored.pop(fold.Ignored(expected), 0) + 1
        )
        assert observable(state) == observable(before)


# How the fold is used, and what it has seen; everything else is what it decides by or shows.
UNOBSERVED = {"retain_ids", "last_offset"}


def observable(state: fold.Fold) -> tuple[object, ...]:
    """All that an ignored record must leave as it was."""
    names = [each.name for each in dataclasses.fields(state) if each.name not in UNOBSERVED]
    return tuple(getattr(state, name) for name in names)


@cases.each("ending", ENDINGS)
@cases.each("late", LATE, ids=lambda record: type(record).__name__)
def test_rule_1_nothing_has_an_effect_after_the_end(ending: str, late: records.TokenRecord) -> None:
    before, _ = outcomes(*ENDINGS[ending])
    state, seen = outcomes(*ENDINGS[ending], late, late)
    assert seen[-2:] == ["after_done"] * 2
    assert state.ignored.pop(fold.Ignored.AFTER_DONE) == 2
    assert observable(state) == observable(before)


def test_rule_0_records_seen_before_a_reconnect_are_passed_over_and_not_counted() -> None:
    history: list[records.TokenRecord] = [
        claim("a", None),
        tok("a", 0, [1], []),
        claim("x", None),
        tok("a", 1, [2], [1]),
    ]
    state, _ = outcomes(*history)
    before = observable(state)
    for offset, record in enumerate(history):
        assert state.apply(record, offset) is fold.Ignored.SEEN
    assert observable(state) == before
    assert compare.word(state.apply(end("a", [1, 2]), 4)) == "ended"


def test_a_fold_knows_the_hedged_claims_that_took_effect() -> None:
    state = fold.Fold()
    state.apply(claim("a", None, "w1"), 0)
    state.apply(msgspec.structs.replace(claim("b", "a", "w2"), hedged=True), 1)
    state.apply(msgspec.structs.replace(claim("c", "a", "w3"), hedged=True), 2)
    assert (state.owner, state.hedged) == ("b", {"b"})
    assert state.ignored == {fold.Ignored.LOST_RACE: 1}


def test_what_a_fold_tells_of_a_whole_response() -> None:
    state = fold.Fold()
    first = claim("a", None, "w1")
    assert (state.phase, state.owner, state.last_offset) == (fold.Phase.NEW, None, -1)
    assert state.apply(first, 10, 1000) == fold.Claimed(first, 1, model_rev=first.model_rev)
    assert (state.phase, state.owner, state.first) == (fold.Phase.LIVE, "a", first)
    assert state.apply(tok("a", 0, [5, 6], []), 12, 1010) == fold.Accepted(0, [5, 6], "<5><6>")
    assert (state.next, state.text_length, state.ids) == (
        2,
        6,
        [],
    )  # ids are kept only where they are needed
    assert state.apply(yield_("a"), 13, 1020) == fold.Yielded("a")
    second = claim("b", "a", "w2")
    assert state.apply(second, 14, 1030) == fold.Claimed(second, 2, model_rev=second.model_rev)
    assert (state.first, state.claims, state.yielded) == (first, [("a", "w1"), ("b", "w2")], {"a"})
    usage = records.Usage(3, 2)
    last = records.End(compare.RID, "b", 2, "length", state.h, "!", usage)
    assert state.apply(last, 15, 1040) == fold.Ended("length", "incomplete", "!", usage, None, 1040)
    assert (state.phase, state.ended, state.last_offset) == (
        fold.Phase.DONE,
        fold.Ended("length", "incomplete", "!", usage, None, 1040),
        15,
    )


def test_activity_is_the_time_of_the_last_record_that_counted() -> None:
    """Takeover waits by it: ignored records of others, or a yield, must not look like a living
    owner."""
    state = fold.Fold()
    story: list[tuple[records.TokenRecord, int]] = [
        (claim("a", None), 0),
        (tok("a", 0, [1], []), 1),
        (tok("x", 1, [1], [1]), 1),
        (claim("x", None), 1),
        (tok("a", 5, [1], []), 1),
        (yield_("a"), 1),
    ]
    for offset, (record, expected) in enumerate(story):
        state.apply(record, offset, offset)
        assert state.last_active == expected


@cases.each(
    ("reason", "status"),
    [
        ("stop", "completed"),
        ("warmup", "completed"),
        ("length", "incomplete"),
        ("expired", "failed"),
        ("failed", "failed"),
        ("of a later version", "failed"),
    ],
)
def test_the_status_of_an_end_follows_from_its_reason(reason: str, status: str) -> None:
    state, _ = outcomes(claim("a", None), end("a", [], reason))
    assert state.ended is not None
    assert (state.ended.reason, state.ended.status) == (reason, status)


def test_a_cancelled_response_still_shows_its_usage() -> None:
    state, _ = outcomes(claim("a", None), tok("a", 0, [1, 2], []), cancel())
    assert state.ended is not None
    assert (state.ended.reason, state.ended.status, state.ended.usage) == (
        "cancelled",
        "cancelled",
        records.Usage(input_tokens=7, output_tokens=2),
    )
    state, _ = outcomes(cancel())
    assert state.ended is not None
    assert state.ended.usage == records.Usage()


def test_an_error_is_passed_on() -> None:
    failed = records.End(compare.RID, "a", 0, "failed", fold.H0, error=("server_error", "x"))
    state, _ = outcomes(claim("a", None), failed)
    assert state.ended is not None
    assert state.ended.error == ("server_error", "x")


# The corner cases, each a story with the outcome of every record.


def story(*lines: tuple[records.TokenRecord, str]) -> fold.Fold:
    state, seen = outcomes(*(record for record, _ in lines))
    assert seen == [expected for _, expected in lines]
    compare.fold_all(
        [second_fold.Entry(i, 1000 + i, record) for i, (record, _) in enumerate(lines)]
    )
    return state


def test_writes_of_the_old_owner_count_up_to_the_takeover_and_not_after() -> None:
    state = story(
        (claim("a", None), "claimed"),
        (tok("a", 0, [1], []), "accepted"),
        (tok("a", 1, [2], [1]), "accepted"),  # was in flight when b read the end of the log
        (claim("b", "a"), "claimed"),
        (tok("a", 2, [3], [1, 2]), "stale_owner"),
        (tok("b", 2, [4], [1, 2]), "accepted"),
    )
    assert state.ids == [1, 2, 4]


def test_of_two_takeovers_that_race_the_first_in_the_log_wins() -> None:
    story(
        (claim("a", None), "claimed"),
        (claim("b", "a"), "claimed"),
        (claim("c", "a"), "lost_race"),
        (tok("c", 0, [9], []), "stale_owner"),
        (tok("b", 0, [1], []), "accepted"),
    )


def test_a_worker_that_wakes_after_a_takeover_changes_nothing() -> None:
    story(
        (claim("a", None), "claimed"),
        (claim("b", "a"), "claimed"),
        (tok("a", 0, [9], []), "stale_owner"),
        (end("a", [9]), "end"),
        (claim("a2", "a"), "lost_race"),  # its late re-claim names an old owner
        (end("b", []), "ended"),
    )


def test_a_claim_doubled_by_a_retry_counts_once() -> None:
    state = story(
        (claim("a", None), "claimed"),
        (claim("a", None), "lost_race"),
        (claim("b", "a"), "claimed"),
        (claim("b", "a"), "lost_race"),
    )
    assert state.epoch == 2


def test_an_abandoned_claim_that_lands_after_all_can_be_claimed_over() -> None:
    story(
        (claim("a", None), "claimed"),
        (claim("b1", "a"), "claimed"),  # given up by its author, yet here it is
        (claim("b2", "a"), "lost_race"),
        (claim("b3", "b1"), "claimed"),
        (tok("b3", 0, [1], []), "accepted"),
    )


def test_a_token_lost_stalls_its_owner_until_it_claims_again() -> None:
    story(
        (claim("a", None), "claimed"),
        (tok("a", 0, [1], []), "accepted"),
        (tok("a", 2, [3], [1, 2]), "gap"),
        (tok("a", 3, [4], [1, 2, 3]), "gap"),
        (end("a", [1, 2, 3, 4]), "end"),
        (claim("a2", "a"), "claimed"),
        (tok("a2", 1, [5], [1]), "accepted"),
        (end("a2", [1, 5]), "ended"),
    )


def test_tokens_doubled_by_a_retry_count_once() -> None:
    state = story(
        (claim("a", None), "claimed"),
        (tok("a", 0, [1, 2], []), "accepted"),
        (tok("a", 2, [3], [1, 2]), "accepted"),
        (tok("a", 0, [1, 2], []), "duplicate"),
        (tok("a", 2, [3], [1, 2]), "duplicate"),
        (end("a", [1, 2, 3]), "ended"),
        (end("a", [1, 2, 3]), "after_done"),
    )
    assert state.ids == [1, 2, 3]


def test_of_cancel_and_completion_the_first_in_the_log_wins() -> None:
    completed = story(
        (claim("a", None), "claimed"), (end("a", []), "ended"), (cancel(), "after_done")
    ).ended
    assert completed is not None
    assert completed.status == "completed"
    cancelled = story(
        (claim("a", None), "claimed"), (cancel(), "ended"), (end("a", []), "after_done")
    ).ended
    assert cancelled is not None
    assert cancelled.status == "cancelled"


def test_a_cancel_of_another_principal_ends_nothing() -> None:
    """It was obeyed, so that any writer of the log could end any response."""
    state = story(
        (cancel(STRANGER), "ended"),
        (claim("a", None), "claimed"),
        (tok("a", 0, [1], []), "accepted"),
        (cancel(STRANGER), "foreign"),
        (end("a", [1]), "ended"),
    )
    assert state.ended is not None
    assert state.ended.status == "completed"


def test_who_knows_the_request_takes_a_strangers_cancel_for_nothing() -> None:
    for known_first in (True, False):
        state = fold.Fold()
        if known_first:
            state.belongs_to(OWNER)
        state.apply(cancel(STRANGER), 0, 1)
        state.belongs_to(OWNER)
        assert state.phase is fold.Phase.NEW
        assert state.ended is None
        state.apply(cancel(), 1, 2)
        if not known_first:  # both were cancels before the principal was known
            state.belongs_to(OWNER)
        assert state.phase is fold.Phase.DONE
        assert state.ended is not None
        assert state.ended.timestamp == 2
        assert state.apply(claim("a", None), 2, 3) is fold.Ignored.AFTER_DONE


def test_a_claim_says_whose_response_it_is_whatever_a_request_says() -> None:
    state = fold.Fold()
    state.apply(claim("a", None), 0, 1)
    state.belongs_to(STRANGER)
    assert state.apply(cancel(STRANGER), 1, 2) is fold.Ignored.FOREIGN
    assert isinstance(state.apply(cancel(), 2, 3), fold.Ended)


def test_a_request_delivered_twice_is_generated_by_one() -> None:
    story(
        (claim("a", None), "claimed"),
        (claim("b", None), "lost_race"),
        (tok("b", 0, [9], []), "stale_owner"),
        (tok("a", 0, [1], []), "accepted"),
        (end("b", [9]), "end"),
        (end("a", [1]), "ended"),
    )


def test_a_response_that_used_up_its_attempts_is_closed_by_a_claim_without_tokens() -> None:
    state = story(
        (claim("a", None), "claimed"),
        (tok("a", 0, [1], []), "accepted"),
        (claim("b", "a"), "claimed"),
        (claim("c", "b"), "claimed"),
        (claim("closing", "c"), "claimed"),
        (end("closing", [1], "failed"), "ended"),
    )
    assert (state.epoch, state.ids) == (4, [1])


def test_the_hash_does_not_depend_on_how_tokens_were_cut_into_frames() -> None:
    ids = list(range(1, 8))
    whole, _ = outcomes(claim("a", None), tok("a", 0, ids, []))
    single, _ = outcomes(claim("a", None), *(tok("a", i, [ids[i]], ids[:i]) for i in range(7)))
    assert whole.h == single.h == fold.roll(fold.H0, ids) == second_fold.chain(ids)
    assert fold.roll(fold.H0, [2, 1]) != fold.roll(fold.H0, [1, 2])


def test_the_hash_is_frozen() -> None:
    """It lies in recorded logs. With another function readers would ignore every frame of a
    response that runs during an upgrade."""
    assert fold.roll(fold.H0, [0]) == "24f29c3559b2b01f"
    assert fold.roll(fold.H0, [1, 2**32 - 1]) == "2f7dcd16dca2ca1c"


# Any history: records that hit the rule's conditions often, because they draw from few tokens, few
# indices, and prefixes that may be right.

fencing_tokens = st.sampled_from("abc")
NO_TOKENS: list[int] = []


@st.composite
def histories(draw: st.DrawFn) -> list[second_fold.Entry]:
    entries: list[second_fold.Entry] = []
    offset = draw(st.integers(0, 3))
    state = fold.Fold(retain_ids=True)  # only steers the draw towards records that count
    for _ in range(draw(st.integers(0, 14))):
        believed = draw(
            st.sampled_from(
                [state.ids, state.ids, state.ids, state.ids[:-1], [*state.ids, 7], NO_TOKENS]
            )
        )
        own = draw(st.sampled_from([state.owner or "a", "a", "b", "c"]))
        choices: list[records.TokenRecord] = [
            claim(
                draw(fencing_tokens),
                draw(st.sampled_from([state.owner, None, "a", "b"])),
                draw(st.sampled_from(["w1", "w2"])),
            ),
            *[
                tok(
                    own,
                    len(believed),
                    draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)),
                    believed,
                )
            ]
            * 4,
            tok(own, draw(st.integers(0, 4)), [1], state.ids),
            end(own, believed, draw(st.sampled_from(["stop", "length", "failed"]))),
            yield_(own),
            cancel(failed=draw(st.sampled_from(["", "expired", "history_lost"]))),
            cancel(STRANGER),
            claim(own, None, owner=STRANGER),
            claim(draw(fencing_tokens), state.owner, "w3", model="other", continues=True),
        ]
        record = draw(st.sampled_from(choices))
        entries.append(second_fold.Entry(offset, draw(st.integers(0, 10**13)), record))
        state.apply(record, offset)
        offset = max(0, offset + draw(st.sampled_from([1, 1, 1, 2, 5, 0, -1])))
    return entries


@given(histories())
def test_both_folds_agree_on_any_history(entries: list[second_fold.Entry]) -> None:
    compare.fold_all(entries)


# A reader reconnects so many records before the last one it has read, perhaps is cut off after the
# first one, and reads so many that are new.
reconnects = st.lists(
    st.tuples(st.integers(0, 3), st.booleans(), st.integers(1, 30)), min_size=1, max_size=8
)


@given(histories(), reconnects)
def test_property_1_readers_that_applied_the_same_prefix_agree_however_they_reconnected(
    entries: list[second_fold.Entry], ways: list[tuple[int, bool, int]]
) -> None:
    entries = second_fold.History(entries).entries
    steady = compare.fold_all(entries)
    unsteady = fold.Fold(retain_ids=True)
    position = 0
    for back, short, ahead in itertools.cycle(ways):
        if position >= len(entries):
            break
        again = max(0, position - back)
        for read in (entries[again : again + short], entries[again : position + ahead]):
            for entry in read:
                unsteady.apply(entry.record, entry.offset, entry.timestamp)
        position += ahead
    assert observable(unsteady) == observable(steady)


@given(histories())
def test_properties_2_and_4_nothing_is_taken_back_and_there_is_one_end(
    entries: list[second_fold.Entry],
) -> None:
    state = fold.Fold(retain_ids=True)
    emitted: list[int] = []
    ends = 0
    for entry in entries:
        outcome = state.apply(entry.record, entry.offset, entry.timestamp)
        if isinstance(outcome, fold.Accepted):
            assert ends == 0
            assert outcome.seq == len(emitted)
            emitted += outcome.ids
        ends += isinstance(outcome, fold.Ended)
        if isinstance(outcome, fold.Claimed) and outcome.epoch == 1:
            ends = 0  # what ended before was shown to another principal
        assert state.ids == emitted
    assert ends == (state.phase is fold.Phase.DONE)


def test_every_outcome_is_named_by_the_second_fold() -> None:
    """Should the rule grow a case, this list and the second fold must grow with it."""
    named = {reason.value for reason in fold.Ignored} - {"seen"} | {
        "claimed",
        "accepted",
        "ended",
        "yielded",
    }
    assert named == {expected for _, expected in RULES.values()} | {"after_done"}


def test_another_model_continues_the_text_in_a_segment_of_its_own() -> None:
    state = story(
        (claim("a", None), "claimed"),
        (tok("a", 0, [1, 2], [], marks=(records.Mark(0, 0, "r"),)), "accepted"),
        (claim("b", "a", model="other", continues=True), "claimed"),
        (tok("a", 2, [3], [1, 2]), "stale_owner"),
        (tok("b", 2, [4], [1, 2]), "accepted"),
        (claim("c", "b", model="other"), "claimed"),
        (tok("c", 3, [5], [1, 2, 4]), "accepted"),
    )
    assert state.model[0] == "other"
    assert state.former == [fold.Former(2, len("<1><2>"), "")]
    assert state.before.ids == 2
    assert state.open_kind == "m"
    assert state.reasoning == 2
    assert state.text == b"<1><2><4><5>"


def test_a_claim_before_the_first_token_begins_no_segment() -> None:
    state, _ = outcomes(claim("a", None), claim("b", "a", model="other", continues=True))
    assert state.former == []
    assert state.model[0] == "other"


def test_only_a_fold_that_keeps_ids_keeps_the_text() -> None:
    state = fold.Fold()
    state.apply(claim("a", None), 0)
    state.apply(tok("a", 0, [1], []), 1)
    assert state.text == b""
    assert state.text_length == 3
