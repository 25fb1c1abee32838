"""The judge's own fold agrees with `tailrace.protocol.fold` on any history, and tells a broken one
from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import hypothesis
import msgspec
from hypothesis import strategies as st

from tailrace.protocol import fold, ids, records
from tailrace.verify import history, reference_fold, report, response_checks
from tests.support import cases
from tests.unit.tailrace.verify import histories as worlds
from worker.serving import takeover

RID = ids.mint(ids.Address(b"test", 0, 0), b"x" * 11)
OWNER, STRANGER = records.Owner("i", "s"), records.Owner("i", "stranger")
NONCES = ("a", "b", "c")


def chain(found: Sequence[int]) -> str:
    return reference_fold.link(reference_fold.START, found).hex()


def any_records() -> st.SearchStrategy[list[records.TokenRecord]]:
    """Any records of three nonces. Hashes are mostly those of the tokens 0, 1, 2, …, which every
    writer writes, so that much is accepted."""
    nonce, previous = st.sampled_from(NONCES), st.sampled_from((None, *NONCES))
    prefix = st.integers(0, 4).map(lambda n: list(range(n)))
    right = st.booleans() | st.just(True)
    # Every frame has at least one character and one id before which an item may begin.
    marks: list[tuple[records.Mark, ...]] = [
        (),
        (records.Mark(0, 0, "r"),),
        (records.Mark(1, 1, "m"),),
        (records.Mark(0, 0, "c", "f", "x"), records.Mark(1, 1, "r")),
    ]
    begun = st.sampled_from(marks)
    claim = st.builds(
        lambda own, prev, answer_of: records.Claim(
            RID, own, prev, OWNER, f"w-{own}", "t", 0, "r", "t", answer_of=answer_of
        ),
        nonce,
        previous,
        st.sampled_from(("", "", "resp_x")),
    )
    tok = st.builds(
        lambda own, before, n, ok, marks: records.Tok(
            RID,
            own,
            len(before),
            list(range(len(before), len(before) + n)),
            "x" * n,
            chain(before) if ok else chain([9]),
            marks=marks,
        ),
        nonce,
        prefix,
        st.integers(1, 2),
        right,
        begun,
    )
    end = st.builds(
        lambda own, before, ok, marks: records.End(
            *(RID, own, len(before), "stop", chain(before) if ok else chain([9]), "."),
            marks=tuple(records.Mark(0, 0, m.kind) for m in marks),
        ),
        nonce,
        prefix,
        right,
        begun,
    )
    rare = st.sampled_from(
        [
            records.Cancel(RID, OWNER),
            records.Cancel(RID, STRANGER),
            records.Cancel(RID, OWNER, failed="expired"),
            records.Cancel(RID, OWNER, failed="history_lost"),
            records.Cancel(RID, STRANGER, failed="history_lost"),
            records.Claim(RID, NONCES[0], None, STRANGER, "w-x", "t", 0, "r", "t"),
            *(records.Yield(RID, own, 0) for own in NONCES),
        ]
    )
    return st.lists(st.one_of(claim, tok, tok, tok, end, claim, tok, rare), max_size=14)


def placed(found: Sequence[records.TokenRecord]) -> list[history.Entry]:
    return [history.Entry(i, 1000 + i, r) for i, r in enumerate(found)]


def agreement(
    found: Sequence[records.TokenRecord], fold_class: type[fold.Fold] = fold.Fold
) -> report.Report:
    out = report.Report()
    response = history.Response(RID, 0, placed(found))
    response_checks.check_fold_agreement(
        out, response, reference_fold.account(response.entries), fold_class
    )
    response_checks.check_sequence(
        out, response, reference_fold.account(response.entries), True, fold_class
    )
    return out


@hypothesis.given(any_records())
@hypothesis.settings(max_examples=600, deadline=None)
def test_both_folds_agree_on_any_history(found: list[records.TokenRecord]) -> None:
    assert agreement(found).failed() == []
    real, account = fold.Fold(retain_ids=True), reference_fold.account(placed(found))
    for e in placed(found):
        real.apply(e.record, e.offset, e.timestamp)
    assert (real.ids, real.h, real.epoch) == (account.ids, account.chain, len(account.epochs))
    assert real.yielded == set(account.yielded)
    assert real.reasoning == account.reasoning
    assert real.mark_count + len(real.ended.marks if real.ended else ()) == len(account.marks)
    assert "".join(part.text for part in account.parts) == account.text
    assert (real.ended.reason if real.ended else None) == account.reason
    assert (real.ended.status if real.ended else None) == account.status


@hypothesis.given(
    st.lists(
        st.tuples(
            st.sampled_from(("w", "v", "u")),
            st.sampled_from((0, 1, takeover.PROGRESS - 1, takeover.PROGRESS, 40)),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_worker_and_judge_count_attempts_alike(runs: list[tuple[str, int, bool]]) -> None:
    """Each run: the worker, the tokens it made, and whether it yielded."""
    found: list[records.TokenRecord] = []
    made: list[int] = []
    for n, (worker, tokens, yielded) in enumerate(runs):
        prev = f"own{n - 1}" if n else None
        found.append(records.Claim(RID, f"own{n}", prev, OWNER, worker, "t", 0, "r", "t"))
        if tokens:
            ids_ = list(range(len(made), len(made) + tokens))
            found.append(records.Tok(RID, f"own{n}", len(made), ids_, "x", chain(made)))
            made += ids_
        if yielded:
            found.append(records.Yield(RID, f"own{n}", len(made)))
    state = fold.Fold()
    for offset, record in enumerate(found):
        state.apply(record, offset, 0)
    judged = response_checks.attempts(reference_fold.account(placed(found)))
    assert [tuple(n) for n in judged] == [
        tuple(takeover.attempts(state, n + 1)) for n in range(len(runs))
    ]


def test_a_record_read_twice_is_one_record() -> None:
    w = worlds.World()
    request = w.ask("twice")
    w.writer(request, "worker-1/a").frames(6).end()
    entries = w.entries(request.rid)
    assert (
        reference_fold.account(sorted([*entries, *entries])).accepted()
        == reference_fold.account(entries).accepted()
    )


# ---- M2: the fold of the product, with one rule removed


class LatestClaimWins(fold.Fold):
    def _claim(self, record: records.Claim) -> fold.Outcome:
        self.owner = record.prev
        return super()._claim(record)


class NoOwnCheck(fold.Fold):
    def _token(self, record: records.Tok) -> fold.Outcome:
        self.owner = record.own
        return super()._token(record)


class NoSeqCheck(fold.Fold):
    def _token(self, record: records.Tok) -> fold.Outcome:
        if record.own != self.owner:
            return fold.Ignored.STALE_OWNER
        self.next += len(record.ids)
        self.ids.extend(record.ids)
        return fold.Accepted(record.seq, record.ids, record.text)


class LosesMarks(fold.Fold):
    def _token(self, record: records.Tok) -> fold.Outcome:
        outcome = super()._token(record)
        if isinstance(outcome, fold.Accepted):
            return dataclasses.replace(outcome, marks=())
        return outcome


class CountsMarksOfIgnoredFrames(fold.Fold):
    def _token(self, record: records.Tok) -> fold.Outcome:
        outcome = super()._token(record)
        self.mark_count += isinstance(outcome, fold.Ignored) * len(record.marks)
        return outcome


class LosesMarksOfTheEnd(fold.Fold):
    def _end(self, record: records.End, timestamp: int) -> fold.Outcome:
        return super()._end(msgspec.structs.replace(record, marks=()), timestamp)


class ForgetsTheOpenItem(fold.Fold):
    def _claim(self, record: records.Claim) -> fold.Outcome:
        outcome = super()._claim(record)
        if isinstance(outcome, fold.Claimed):
            self.last_mark = None
        return outcome


class NoChainCheck(fold.Fold):
    def _token(self, record: records.Tok) -> fold.Outcome:
        self.h = record.parent
        return super()._token(record)


class ClaimTruncates(fold.Fold):
    def _claim(self, record: records.Claim) -> fold.Outcome:
        outcome = super()._claim(record)
        if isinstance(outcome, fold.Claimed):
            self.next, self.h, self.ids = 0, fold.H0, []
        return outcome


class EndWithoutCount(fold.Fold):
    def _end(self, record: records.End, timestamp: int) -> fold.Outcome:
        self.next, self.h = record.seq, record.digest
        return super()._end(record, timestamp)


class EndOfAnybody(fold.Fold):
    def _end(self, record: records.End, timestamp: int) -> fold.Outcome:
        self.owner = record.own
        return super()._end(record, timestamp)


class GoesOnAfterTheEnd(fold.Fold):
    def _decide(self, record: records.TokenRecord, timestamp: int) -> fold.Outcome:
        self.phase = fold.Phase.LIVE if self.phase is fold.Phase.DONE else self.phase
        return super()._decide(record, timestamp)


class CancelIsAHint(fold.Fold):
    def _decide(self, record: records.TokenRecord, timestamp: int) -> fold.Outcome:
        return (
            fold.Ignored.STALE_OWNER
            if isinstance(record, records.Cancel)
            else super()._decide(record, timestamp)
        )


BROKEN = (
    LatestClaimWins,
    NoOwnCheck,
    NoSeqCheck,
    NoChainCheck,
    LosesMarks,
    CountsMarksOfIgnoredFrames,
    ForgetsTheOpenItem,
    ClaimTruncates,
    EndWithoutCount,
    EndOfAnybody,
    GoesOnAfterTheEnd,
    CancelIsAHint,
)


def unlucky() -> list[records.TokenRecord]:
    """A lost race, a double, a zombie's frames, a gap, a wrong parent, a stale end, a cancel, and
    records behind the end."""

    def claim(own: str, prev: str | None) -> records.Claim:
        return records.Claim(RID, own, prev, OWNER, f"w-{own}", "t", 0, "r", "t")

    def tok(own: str, before: Sequence[int], new: Sequence[int]) -> records.Tok:
        marks = (records.Mark(0, 0, "r"),) if 0 in new or 3 in new else ()
        text = "x" * len(new)
        return records.Tok(RID, own, len(before), list(new), text, chain(before), marks=marks)

    return [
        claim("a", None),
        claim("b", None),
        tok("b", [], [0]),
        tok("a", [], [0]),
        tok("a", [], [0]),
        tok("a", [0], [1, 2]),
        records.Tok(RID, "a", 3, [7], "x", chain([0, 1, 9])),
        tok("a", [0, 1, 2, 3], [4]),
        claim("c", "a"),
        tok("a", [0, 1, 2], [3]),
        records.End(RID, "a", 3, "stop", chain([0, 1, 2])),
        records.End(RID, "c", 9, "stop", chain([0, 1, 2])),
        tok("c", [0, 1, 2], [5]),
        records.Cancel(RID, OWNER),
        tok("c", [0, 1, 2, 5], [6]),
        records.End(RID, "c", 4, "stop", chain([0, 1, 2, 5])),
    ]


def test_the_unlucky_history_is_judged_alike_by_both() -> None:
    assert agreement(unlucky()).failed() == []


def test_marks_of_the_end_count() -> None:
    marks = (records.Mark(1, 0, "m"),)
    story: list[records.TokenRecord] = [
        records.Claim(RID, "a", None, OWNER, "w", "t", 0, "r", "t"),
        records.End(RID, "a", 0, "stop", chain([]), "xy", marks=marks),
    ]
    assert agreement(story).failed() == []
    assert agreement(story, LosesMarksOfTheEnd).failed() == ["L1"]


@cases.each("broken", BROKEN, ids=lambda c: c.__name__)
def test_a_broken_fold_is_caught(broken: type[fold.Fold]) -> None:
    assert set(agreement(unlucky(), broken).failed()) & {"L1", "L3"}


def test_broken_folds_are_caught_n_of_n() -> None:
    caught = sum(bool(agreement(unlucky(), broken).failed()) for broken in BROKEN)
    print(f"M2: broken folds caught: {caught}/{len(BROKEN)}")
    assert caught == len(BROKEN)
