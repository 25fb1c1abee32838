"""Ids of items to text and marks, frames and one end; the seams of takeovers.

The model of it is `tests/support/toy_parser.py: Worker`, which is written apart.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.protocol import events, fold, ids, records
from tailrace.verify import history, reference_fold
from tests.model import second_fold
from tests.support import cases, toy_parser
from worker.engines import scripted, scripted_markers
from worker.text import generation, visible
from worker.text.generation import Generation, Phase
from worker.text.item_parser import ItemParser, Piece

RID = ids.mint(ids.Address(b"abcd", 0, 0), b"r" * 11)
OWNER = records.Owner("i", "s")
ECHO = events.echo(RID, 1_700_000_000, "m")
PARSER = "toy@1"


class Toy:
    """The toy's parser, behind the worker's interface."""

    def __init__(self) -> None:
        self._made = toy_parser.Parser(RID)
        self._text = self._marks = 0

    def push(self, token: int) -> Sequence[Piece]:
        self._made.push(chr(token))
        return self._new()

    def finish(self) -> Sequence[Piece]:
        self._made.finish()
        return self._new()

    def _new(self) -> list[Piece]:
        found, text = [], self._made.text
        at, kind = self._text, self._made.marks[self._marks - 1].kind if self._marks else "m"
        for mark in self._made.marks[self._marks :]:
            found += [Piece(kind, text[at : mark.at])] if mark.at > at else []
            found.append(Piece(mark.kind, "", mark.name))
            at, kind = mark.at, mark.kind
        found += [Piece(kind, text[at:])] if len(text) > at else []
        self._text, self._marks = len(text), len(self._made.marks)
        return found


class Pieces:
    """The parser of a test that says what each id means; `last` is said in the end."""

    def __init__(self, *said: Sequence[Piece], last: Sequence[Piece] = ()) -> None:
        self._said, self._last = said, last

    def push(self, token: int) -> Sequence[Piece]:
        return self._said[token]

    def finish(self) -> Sequence[Piece]:
        return self._last


@dataclass
class Log:
    """The log of one response, with the fold of its workers.

    Attributes:
        state: what its workers know.
        read: its records, all of them accepted.
    """

    state: fold.Fold = field(default_factory=lambda: fold.Fold(retain_ids=True))
    read: list[records.TokenRecord] = field(default_factory=list)

    def write(self, record: records.TokenRecord) -> None:
        decoded = records.decode_token(records.encode(record))
        assert decoded is not None
        outcome = self.state.apply(decoded, len(self.read))
        assert not isinstance(outcome, fold.Ignored), outcome
        self.read.append(decoded)

    def claim(self) -> str:
        own = f"n{self.state.epoch}"
        prev = self.state.owner
        self.write(records.Claim(RID, own, prev, OWNER, "w", "t", 0, "rev", "tok", 9, {}, PARSER))
        return own

    def events(self) -> list[bytes]:
        state, series = fold.Fold(), events.Series(ECHO)
        stream = series.open()
        for offset, record in enumerate(self.read):
            effect = state.apply(record, offset, 1_700_000_003_000)
            assert not isinstance(effect, fold.Ignored)
            stream += series.apply(effect)
        return [event.body for event in stream]

    def shown(self) -> list[dict[str, Any]]:
        """The events without numbers; deltas that follow each other are one."""
        shown: list[dict[str, Any]] = []
        for event in map(json.loads, self.events()):
            del event["sequence_number"]
            if shown and "delta" in event and shown[-1]["type"] == event["type"]:
                shown[-1]["delta"] += event["delta"]
                shown[-1]["logprobs"] = shown[-1].get("logprobs", []) + event.get("logprobs", [])
            else:
                shown.append(event)
        return shown

    def account(self) -> reference_fold.Account:
        return reference_fold.account(list(itertools.starmap(history.Entry, self.placed())))

    def placed(self) -> list[tuple[int, int, records.TokenRecord]]:
        return [(i, 0, r) for i, r in enumerate(self.read)]

    @property
    def frames(self) -> list[records.Tok]:
        return [r for r in self.read if isinstance(r, records.Tok)]

    @property
    def text(self) -> str:
        return self.account().text

    @property
    def kinds(self) -> list[str]:
        """The items, each as its kind and its text."""
        return [
            f"{p.beginning.kind if p.beginning else 'm'} {p.text}" for p in self.account().parts
        ]


def owner_of(
    log: Log,
    parser: ItemParser,
    *,
    stop: Sequence[str] = (),
    max_calls: int | None = None,
    **more: Any,
) -> Generation:
    """A worker that goes on behind what the log has."""
    fields = {"max_tokens": 10_000, **more}
    shown = visible.Items(RID, parser, stop, max_calls)
    attempt = Generation(rid=RID, fencing_token=log.claim(), view=shown, **fields)
    attempt.resume(visible.Accepted.from_fold(log.state))
    return attempt


def say(
    answer: Sequence[int],
    sizes: Iterable[int] = (),
    takeovers: Sequence[int] = (),
    *,
    parser: type[ItemParser] = Toy,
    finish: str = "stop",
    lost: int = 0,
    logprobs: bool = False,
    **more: Any,
) -> Log:
    """An answer in steps of these sizes, a frame for each. Another worker takes over before the
    steps with the numbers `takeovers`, and its predecessor had `lost` ids more that it wrote
    nowhere."""
    log, sizes = Log(), iter(sizes)
    attempt_owner = owner_of(log, parser(), logprobs=logprobs, **more)

    def push(at: int, size: int) -> None:
        new = answer[at : at + size]
        lp = tuple(records.lp(chr(i % 0xD000).encode(), -0.5) for i in new) if logprobs else ()
        attempt_owner.push(new, finish if at + size >= len(answer) else None, lp)

    for number in itertools.count():
        if number in takeovers:
            push(attempt_owner.total, lost)
            attempt_owner.stand_down()
            attempt_owner = owner_of(log, parser(), logprobs=logprobs, **more)
        if attempt_owner.phase is Phase.RUNNING:
            push(attempt_owner.total, next(sizes, len(answer)))
        for frame in attempt_owner.frames(0):
            log.write(frame)
        if attempt_owner.phase is Phase.FINISHED:
            usage = records.Usage(2, attempt_owner.total, reasoning_tokens=attempt_owner.reasoning)
            log.write(attempt_owner.end(usage))
            break
    return log


def toy(answer: str) -> list[int]:
    return toy_parser.ids_of(answer)


SOME = ["<r", "<m", '<cf|{"a":1}<e', "<cg|<e", "<ch|{", "Hello", "天気", "<", "<<", "é", ".", " "]
answers = st.lists(st.sampled_from(SOME), min_size=1, max_size=8).map("".join)
divisions = st.lists(st.integers(1, 9), max_size=40)
takeovers_ = st.lists(st.integers(1, 12), max_size=4)
stops = st.lists(st.sampled_from(["lo", "llo天", "気<", ".", "H", "o.", '"a"']), max_size=2)


@settings(max_examples=300, deadline=None)
@given(answers, divisions, takeovers_, st.integers(0, 5), st.booleans(), stops, st.booleans())
def test_takeovers_anywhere_change_no_byte_that_clients_see(
    answer: str,
    sizes: list[int],
    takeovers: list[int],
    lost: int,
    logprobs: bool,
    stop: list[str],
    short: bool,
) -> None:
    more: dict[str, Any] = {"logprobs": logprobs, "stop": tuple(stop)}
    if short:
        more["max_tokens"] = 7
    whole = say(toy(answer), sizes, **more)
    joined = say(toy(answer), sizes, takeovers, lost=lost, **more)
    if logprobs and stop:  # ids that waited for a stop string are generated again, in other steps
        assert joined.shown() == whole.shown()
        return
    assert joined.events() == whole.events()
    assert [f.ids for f in joined.frames] == [f.ids for f in whole.frames]
    assert [(f.text, f.marks) for f in joined.frames] == [(f.text, f.marks) for f in whole.frames]


@settings(max_examples=300, deadline=None)
@given(answers, divisions, divisions, stops)
def test_the_division_into_frames_changes_neither_text_nor_items(
    answer: str, sizes: list[int], others: list[int], stop: list[str]
) -> None:
    one, other = (say(toy(answer), each, stop=tuple(stop)).account() for each in (sizes, others))
    assert (one.text, one.marks, one.reasoning) == (other.text, other.marks, other.reasoning)


@settings(max_examples=200, deadline=None)
@given(answers, divisions, takeovers_, st.integers(0, 5), st.booleans())
def test_the_folds_and_the_judge_agree_on_every_record(
    answer: str, sizes: list[int], takeovers: list[int], lost: int, logprobs: bool
) -> None:
    log = say(toy(answer), sizes, takeovers, lost=lost, logprobs=logprobs)
    account = log.account()
    assert account.end is not None
    assert account.reasoning == log.state.reasoning == account.end.usage.reasoning_tokens
    n, entries = len(log.read), itertools.starmap(second_fold.Entry, log.placed())
    second = second_fold.History(list(entries))
    assert second.reasoning(n) == account.reasoning
    assert second.text(n) == account.text.removesuffix(account.end.text_tail)
    assert [(m.at, m.ids, m.kind, m.name, m.call_id) for m in second.marks(n)] == [
        (m.at, m.ids, m.kind, m.name, m.call_id)
        for m in account.marks[: len(account.marks) - len(account.end.marks)]
    ]


Item = tuple[str, str, str, str]


def written(marks: Sequence[Any], text: str) -> list[Item]:
    """The items of marks: kind, name, call_id, text. Workers write neither messages nor reasoning
    without text, nor two such items of one kind in a row; the toy does."""
    first = [] if marks and not marks[0].at else [records.Mark(0, 0, "m")]
    begins = [*first, *marks]
    parts: list[Item] = []
    for begin, behind in zip(begins, [*(m.at for m in begins[1:]), len(text)], strict=True):
        part, kind = text[begin.at : behind], begin.kind
        if kind in "mr" and parts and parts[-1][0] == kind:
            part = parts.pop()[3] + part
        if kind in "cx" or part:
            parts.append((kind, begin.name, begin.call_id, part))
    return parts


@settings(max_examples=300, deadline=None)
@given(answers, divisions, takeovers_)
def test_text_and_items_are_those_of_the_model(
    answer: str, sizes: list[int], takeovers: list[int]
) -> None:
    account = say(toy(answer), sizes, takeovers).account()
    model = toy_parser.Worker(RID, "n0")
    frame, end = model.frame(toy(answer)), model.end()
    text = frame.text + end.text_tail
    marks = [
        *frame.marks,
        *(msgspec.structs.replace(m, at=m.at + len(frame.text)) for m in end.marks),
    ]
    assert account.text == text
    assert written(account.marks, text) == written(marks, text)


# ---- single cases --------------------------------------------------------------------------------


def message(text: str) -> Piece:
    return Piece("m", text)


def test_a_message_alone_has_no_mark() -> None:
    log = say(toy("<mHello"))
    assert (log.text, log.account().marks) == ("Hello", [])
    assert all(r.v == records.VERSION for r in log.frames)


def test_what_is_withheld_for_a_stop_string_is_text_before_the_next_item() -> None:
    log = say(toy('<mabE<cf|{"a":"END"}<eEN'), stop=("END",))
    assert log.kinds == ["m abE", 'c {"a":"END"}', "m EN"]


def test_a_stop_string_lies_within_one_message() -> None:
    assert say(toy("<rEND<mE<cf|{}<eND"), stop=("END",)).kinds == ["r END", "m E", "c {}", "m ND"]
    stopped = say(toy("<rEND<mabENDc<cf|{}"), stop=("END",))
    assert stopped.kinds == ["r END", "m ab"]
    assert stopped.state.next == len("<rEND<mabEND")


def test_pieces_that_follow_a_stop_string_in_the_same_id_are_not_shown() -> None:
    class Parser(Pieces):
        def __init__(self) -> None:
            super().__init__([message("aEND"), Piece("c", "{}", "f")], last=[message("lost")])

    log = say([0], stop=("END",), parser=Parser)
    assert log.kinds == ["m a"]


def test_pieces_without_text_begin_nothing_but_calls() -> None:
    class Parser(Pieces):
        def __init__(self) -> None:
            super().__init__(
                [message("")], [Piece("r", "")], [Piece("c", "", "f")], [Piece("c", "", "f")]
            )

    assert say([0, 1, 2, 3], parser=Parser).kinds == ["c ", "c "]


@cases.each(
    ("most", "kinds"),
    [
        (None, ["r I", "c {}", "m a", "c 1"]),
        (2, ["r I", "c {}", "m a", "c 1"]),
        (1, ["r I", "c {}", "m a"]),
        (0, ["r I"]),
    ],
)
@cases.each("takeovers", [(), (4,), (18,), (17, 18, 19)])
def test_the_response_ends_where_a_call_too_many_would_begin(
    most: int | None, kinds: list[str], takeovers: Sequence[int]
) -> None:
    log = say(toy("<rI<cf|{}<ea<cg|1<e"), itertools.repeat(1), takeovers, max_calls=most)
    assert log.kinds == kinds
    assert log.account().reason == "stop"


def test_a_call_too_many_is_not_shown_if_it_comes_whole() -> None:
    class Parser(Pieces):
        def __init__(self) -> None:
            super().__init__([Piece("c", "{}", "f")], [Piece("c", "1", "f"), message("more")])

    assert say([0, 1], parser=Parser, max_calls=1).kinds == ["c {}"]


@cases.each("takeovers", [(), (1,), (700,)])
def test_frames_with_log_probabilities_have_one_per_id_and_512_at_most(
    takeovers: Sequence[int],
) -> None:
    log = say([97] * 1_300, [700, 600], takeovers, logprobs=True)
    assert [len(f.ids) for f in log.frames] == [512, 188, 512, 88]
    assert all(len(f.lp) == len(f.ids) for f in log.frames)


def test_frames_with_many_likely_long_tokens_stay_far_below_the_bound_of_a_record() -> None:
    log = Log()
    attempt_owner = owner_of(log, Toy(), logprobs=True)
    likely = [records.likely(b"\0" * 120, -1.0)] * 20
    attempt_owner.push([97] * 512, "stop", [records.lp(b"\0" * 120, -0.5, likely)] * 512)
    frames = attempt_owner.frames(0)
    assert sum(len(f.lp) for f in frames) == 512
    assert max(len(records.encode(f)) for f in frames) < records.MAX_RECORD_BYTES / 2


def test_missing_log_probabilities_are_the_engine_s_fault() -> None:
    attempt_owner = owner_of(Log(), Toy(), logprobs=True)
    with pytest.raises(generation.BadOutput):
        attempt_owner.push([97, 98], None, [records.lp(b"a", -1.0)])
    assert not attempt_owner.pending


def test_log_probabilities_that_nobody_asked_for_are_left_out() -> None:
    attempt_owner = owner_of(Log(), Toy())
    attempt_owner.push([97], None, [records.lp(b"a", -1.0)])
    assert attempt_owner.frames(0)[0].lp == ()


def accepted(answer: str) -> tuple[Log, visible.Accepted]:
    """A response that its worker has left, and what the next one finds."""
    log = Log()
    attempt_owner = owner_of(log, Toy())
    attempt_owner.push(toy(answer))
    for frame in attempt_owner.frames(0):
        log.write(frame)
    return log, visible.Accepted.from_fold(log.state)


LEFT = '<rI see<cf|{"a"'


@cases.each(
    "other",
    [
        {"text_length": 100},
        {"mark_count": 3},
        {"last_mark": None},
        {"last_mark": records.Mark(5, 7, "c", "f", "call_0")},
        {"last_mark": records.Mark(5, 10, "c", "g", ids.call_id(RID, 0))},
        {"last_mark": records.Mark(4, 10, "c", "f", ids.call_id(RID, 0))},
    ],
    ids=str,
)
def test_a_log_that_another_parser_wrote_is_not_continued(other: dict[str, Any]) -> None:
    _, found = accepted(LEFT)
    items = visible.Items(RID, Toy())
    items.resume(found, lambda: True)
    with pytest.raises(visible.Diverged):
        visible.Items(RID, Toy()).resume(found._replace(**other), lambda: True)


def test_a_replay_stops_when_it_is_told_to() -> None:
    _, found = accepted(LEFT)
    asked: list[int] = []

    def go_on() -> bool:
        asked.append(1)
        return len(asked) < 3

    visible.Items(RID, Toy()).resume(found, go_on)
    assert len(asked) == 3


class Broken(Toy):
    """It fails at a `!`, and at the end."""

    def push(self, token: int) -> Sequence[Piece]:
        if token == ord("!"):
            raise ValueError("an exclamation mark")
        return super().push(token)

    def finish(self) -> Sequence[Piece]:
        raise KeyError("the end")


def test_a_parser_that_fails_ends_the_response_with_what_it_had_read() -> None:
    log = Log()
    attempt_owner = owner_of(log, Broken(), stop=("END",))
    with pytest.raises(visible.ParserFailed):
        attempt_owner.push(toy("<rI see<mabE!cd"))
    attempt_owner.close("failed")
    for frame in attempt_owner.frames(0):
        log.write(frame)
    log.write(attempt_owner.end(records.Usage()))
    assert log.kinds == ["r I see", "m abE"]
    assert log.state.next == len("<rI see<mabE")


def test_a_parser_that_fails_at_the_end_fails_the_response_and_not_the_worker() -> None:
    log = Log()
    attempt_owner = owner_of(log, Broken())
    with pytest.raises(visible.ParserFailed):
        attempt_owner.push(toy("ab"), "stop")
    assert attempt_owner.phase is Phase.RUNNING
    attempt_owner.close("failed")
    assert [f.text for f in attempt_owner.frames(0)] == ["ab"]
    assert attempt_owner.end(records.Usage()).reason == "failed"


def test_a_call_without_a_name_is_a_failure_of_the_parser() -> None:
    with pytest.raises(visible.ParserFailed):
        owner_of(Log(), Pieces([Piece("c", "{}")])).push([0])


@cases.each("prompt", ['call f {"a": "b"}', "think 7\nsay 20\ncall f 5", "say 12"])
def test_the_scripted_engine_s_items_survive_a_seam_at_every_token(prompt: str) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    request = records.Request(
        RID,
        OWNER,
        "m",
        [{"role": "user", "content": prompt}],
        records.Sampling(1_000),
        {},
        tools=[tool],
        reasoning={"effort": "low"},
    )
    answer = list(scripted.answer(request))

    class Parser(scripted_markers.Parser):
        def __init__(self) -> None:
            super().__init__(scripted.Detokenizer())

    whole = say(answer, itertools.repeat(1), parser=Parser)
    assert len(whole.kinds) >= 2
    for cut in range(1, len(answer)):
        joined = say(answer, itertools.repeat(1), [cut], parser=Parser, lost=2)
        assert joined.events() == whole.events()
