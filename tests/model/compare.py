"""tailrace.protocol.fold beside the second fold: equal in every observable, after every record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tailrace.protocol import fold, records
from tests.model import second_fold

RID = "resp_a"
OWNER = records.Owner("i", "s")
STRANGER = records.Owner("i", "stranger")


def claim(
    own: str,
    prev: str | None,
    worker: str = "w",
    owner: records.Owner = OWNER,
    *,
    model: str = "rev",
    continues: bool = False,
) -> records.Claim:
    return records.Claim(
        *(RID, own, prev, owner, worker, "t", 0, model, "tok", 7), continues=continues
    )


def tok(
    own: str,
    seq: int,
    ids: Sequence[int],
    before: Sequence[int],
    text: str | None = None,
    marks: tuple[records.Mark, ...] = (),
) -> records.Tok:
    """A frame of a writer that believes `before` is the accepted prefix."""
    return records.Tok(
        RID,
        own,
        seq,
        list(ids),
        "".join(f"<{i}>" for i in ids) if text is None else text,
        second_fold.chain(before),
        marks=marks,
    )


def view(ids: Sequence[int]) -> tuple[str, tuple[records.Mark, ...]]:
    """Text and marks that a small parser makes of ids: each shows one character, and only when the
    next id is known; every third number begins an item."""
    kinds: tuple[Literal["m", "r", "c"], ...] = ("r", "m", "c")
    begins = [k for k, i in enumerate(ids) if i % 3 == 0]
    marks = [
        records.Mark(k, k, kinds[n % 3], *(("f", f"call{n}") if n % 3 == 2 else ()))
        for n, k in enumerate(begins)
    ]
    return "".join(chr(97 + i % 26) for i in ids[:-1]), tuple(marks)


def growth(before: Sequence[int], new: Sequence[int]) -> tuple[str, tuple[records.Mark, ...]]:
    """What a frame with the ids `new` adds to the view of the ids before it."""
    (text, marks), (was, had) = view([*before, *new]), view(before)
    return text[len(was) :], tuple(
        records.Mark(m.at - len(was), m.ids - len(before), m.kind, m.name, m.call_id)
        for m in marks[len(had) :]
    )


def assert_view(real: fold.Fold, ids: Sequence[int]) -> None:
    """The fold has exactly the text and marks of these ids."""
    text, marks = view(ids)
    assert real.text_length == len(text)
    assert real.mark_count == len(marks)
    assert real.last_mark == (marks[-1] if marks else None)


def end(own: str, ids: Sequence[int], reason: str = "stop") -> records.End:
    """The end of a writer that believes `ids` are the accepted ids."""
    return records.End(RID, own, len(ids), reason, second_fold.chain(ids))


def cancel(
    by: records.Owner = OWNER,
    *,
    withdrawn: bool = False,
    failed: Literal["", "expired", "history_lost"] = "",
) -> records.Cancel:
    return records.Cancel(RID, by, withdrawn=withdrawn, failed=failed)


def yield_(own: str, seq: int = 0) -> records.Yield:
    return records.Yield(RID, own, seq)


def _reason(last: records.TokenRecord) -> str:
    if isinstance(last, records.End):
        return last.reason
    assert isinstance(last, records.Cancel)
    return last.failed or ("withdrawn" if last.withdrawn else "cancelled")


def word(outcome: fold.Outcome) -> str:
    return outcome.value if isinstance(outcome, fold.Ignored) else type(outcome).__name__.lower()


def assert_equal(real: fold.Fold, history: second_fold.History) -> None:
    """The fold's state is what the second fold answers for the whole history."""
    n = len(history.entries)
    ids = [t.id for t in history.tokens(n)]
    assert real.owner == history.owner(n)
    assert real.ids == ids
    assert real.next == len(ids)
    assert real.h == second_fold.chain(ids)
    assert real.text_length == len(history.text(n))
    marks = history.marks(n)
    assert real.mark_count == len(marks)
    assert [(each.ids, each.characters) for each in real.former] == history.former(n)
    assert real.last_mark == history.last_mark(n)
    assert real.reasoning == history.reasoning(n)
    assert real.claims == history.claims(n)
    assert real.epoch == len(history.claims(n))
    assert (real.first.own if real.first else None) == (
        history.claims(n)[0][0] if history.claims(n) else None
    )
    assert {reason.value: count for reason, count in real.ignored.items()} == history.ignored(n)
    ended = history.end(n)
    assert (real.phase is fold.Phase.DONE) == (ended is not None)
    assert (real.phase is fold.Phase.NEW) == (ended is None and not history.claims(n))
    assert (real.ended is None) == (ended is None)
    if real.ended is not None and ended is not None:
        last = history.entries[ended]
        assert real.ended.reason == _reason(last.record)
        assert real.ended.timestamp == last.timestamp
        assert real.ended.param == getattr(last.record, "param", "")


def fold_all(entries: Sequence[second_fold.Entry]) -> fold.Fold:
    """A fresh fold over all entries; each outcome is compared with the second fold's on the way."""
    real, history, i = fold.Fold(retain_ids=True), second_fold.History(entries), 0
    for entry in entries:
        outcome = real.apply(entry.record, entry.offset, entry.timestamp)
        if outcome is fold.Ignored.SEEN:
            continue
        assert word(outcome) == history.outcome(i), (i, entry)
        i += 1
    assert i == len(history.entries)
    assert_equal(real, history)
    return real
