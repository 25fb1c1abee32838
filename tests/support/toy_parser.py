"""A small parser of items, a worker that writes what it finds, and answers for both.

Ids are code points. `<r` begins reasoning, `<m` a message, `<c` a call whose name ends at `|`, `<e`
ends a call. Any other `<` is text. So one id may have to wait for the next one before it is text or
not, as with real parsers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace.protocol import fold, ids, records

PARSER = "toy@1"
ANSWER = (
    '<rI think 天気.<mLet me < see.<cweather|{"city":"Zürich"}<e<cweather|{"city":"Łódź"}<e<mSo.'
)


def ids_of(answer: str) -> list[int]:
    return [ord(c) for c in answer]


@dataclass
class Parser:
    """Feed it deltas of text with `push`. Only deltas of one id are certain to be understood.

    Attributes:
        text: V so far.
        marks: M so far, counted from the beginning of the response.
    """

    rid: str
    text: str = ""
    marks: list[records.Mark] = field(default_factory=list)
    _ids: int = 0
    _held: str = ""
    _name: str | None = None
    _silent: bool = False  # behind the end of a call: the next character begins a message

    def push(self, delta: str) -> None:
        held, self._held = self._held + delta, ""
        match held:
            case "<":
                self._held = held
            case "<r" | "<m":
                self._begin(held[1])
            case "<c":
                self._name = ""
            case "<e":
                self._silent = True
            case _ if self._name is not None:
                self._name += held
                if self._name.endswith("|"):
                    self._begin("c", self._name[:-1])
            case _:
                self._write(held)
        self._ids += len(delta)

    def finish(self) -> None:
        held, self._held = self._held, ""
        if held:
            self._write(held)

    def _write(self, text: str) -> None:
        if self._silent:
            self._begin("m")
        self.text += text

    def _begin(self, kind: str, name: str = "") -> None:
        self._name, self._silent = None, False
        if kind == "m" and not self.text and not self.marks:
            return  # the message that needs no mark
        ordinal = sum(m.kind == "c" for m in self.marks)
        call_id = ids.call_id(self.rid, ordinal) if kind == "c" else ""
        self.marks.append(records.Mark(len(self.text), self._ids, kind, name, call_id))  # type: ignore[arg-type]


@dataclass
class Worker:
    """An owner that continues behind `accepted`. `step`: so many ids are parsed at once.

    Attributes:
        ids: the accepted ids, and what it generated since.
    """

    rid: str
    own: str
    accepted: Sequence[int] = ()
    text_length: int = 0
    mark_count: int = 0
    logprobs: bool = False
    step: int = 1

    def __post_init__(self) -> None:
        self.ids: list[int] = []
        self._parser = Parser(self.rid)
        self._feed(self.accepted)

    def frame(self, new: Sequence[int]) -> records.Tok:
        seq, before = len(self.ids), fold.roll(fold.H0, self.ids)
        self._feed(new)
        text, marks = self._rest(seq)
        lp = tuple(records.lp(chr(i).encode(), -0.25) for i in new) if self.logprobs else ()
        return records.Tok(self.rid, self.own, seq, list(new), text, before, marks=marks, lp=lp)

    def end(self, reason: str = "stop") -> records.End:
        self._parser.finish()
        text, marks = self._rest(len(self.ids))
        usage = records.Usage(2, len(self.ids), reasoning_tokens=self.reasoning)
        digest = fold.roll(fold.H0, self.ids)
        return records.End(
            self.rid, self.own, len(self.ids), reason, digest, text, usage, marks=marks
        )

    @property
    def reasoning(self) -> int:
        begins = [*self._parser.marks, records.Mark(0, len(self.ids), "m")]
        return sum(
            min(b.ids, len(self.ids)) - a.ids
            for a, b in itertools.pairwise(begins)
            if a.kind == "r"
        )

    def _feed(self, new: Sequence[int]) -> None:
        for at in range(0, len(new), self.step):
            self._parser.push("".join(map(chr, new[at : at + self.step])))
        self.ids += new

    def _rest(self, seq: int) -> tuple[str, tuple[records.Mark, ...]]:
        """What the log does not have yet of the text and the marks."""
        text = self._parser.text[self.text_length :]
        marks = tuple(
            records.Mark(m.at - self.text_length, max(0, m.ids - seq), m.kind, m.name, m.call_id)
            for m in self._parser.marks[self.mark_count :]
        )
        self.text_length, self.mark_count = len(self._parser.text), len(self._parser.marks)
        return text, marks
