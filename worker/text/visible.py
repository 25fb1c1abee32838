"""What readers see of the ids of a response: text, and marks in it (pure; log rule §16).

V is all visible text of a response, M all its marks. Both are functions of the ids. Text and marks
are consumed when they are written, so a `Visible` holds what the log does not have yet.

Text that may become part of a stop string is withheld. Stop strings are looked for within one
message; reasoning and calls have none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from tailrace.protocol import fold, ids, records
from worker.text.item_parser import ItemParser, Piece
from worker.text.stop_strings import StopStrings

Marks = tuple[records.Mark, ...]

ShouldContinue = Callable[[], bool]
"""Whether to continue; called from time to time by long operations."""


class ParserFailed(Exception):
    """The parser cannot read the model's output, and no other attempt could."""


class Diverged(Exception):
    """The log holds other text or marks than the accepted ids produce here."""


class Accepted(NamedTuple):
    """What the log has of a response that is taken over; see `fold.Fold`. Where another model began
    it, only the present segment (log rule §25), which has `before` ids before it."""

    ids: Sequence[int] = ()
    text_length: int = 0
    mark_count: int = 0
    last_mark: records.Mark | None = None
    reasoning: int = 0
    h: str = fold.H0
    before: int = 0

    @classmethod
    def from_fold(cls, state: fold.Fold) -> Accepted:
        """As `state` has it now."""
        before = state.before
        return cls(
            tuple(state.ids[before.ids :]),
            state.text_length - before.characters,
            state.mark_count,
            state.last_mark,
            state.reasoning,
            state.h,
            before.ids,
        )


class Detokenizer(Protocol):
    """Ids to text, incrementally; never returns half a character."""

    def push(self, ids: Sequence[int]) -> str:
        """Text that these ids complete, possibly empty."""

    def flush(self) -> str:
        """The text still held; an incomplete character becomes U+FFFD."""


class Visible(Protocol):
    """See the module's docstring.

    Attributes:
        over: the response is complete; later ids would not be visible.
        reasoning: number of ids that belong to reasoning items and were not copied.
    """

    over: bool
    reasoning: int

    @property
    def hidden(self) -> int:
        """How many of the last ids show nothing, because a stop string may begin there, or because
        one has cut them away."""

    def push(self, token: int) -> None:
        """The next id.

        Raises:
            ParserFailed: the id was not read.
        """

    def finish(self) -> None:
        """There are no more ids: withheld text becomes visible.

        Raises:
            ParserFailed: a second call returns what needs no parser.
        """

    def consume(self, first: int) -> tuple[str, Marks]:
        """Text and marks of the next record, whose first id is number `first`."""

    def resume(self, accepted: Accepted, should_continue: ShouldContinue) -> None:
        """Read the ids that the log has. Their text and marks in the log are not returned again.
        When `should_continue` returns False, this object is unusable.

        Raises:
            Diverged, ParserFailed: the response cannot be continued.
        """


class Nothing:
    """Readers see only what the log has."""

    over = False
    hidden = 0

    def __init__(self) -> None:
        self.reasoning = 0

    def push(self, token: int) -> None:
        pass

    def finish(self) -> None:
        pass

    def consume(self, first: int) -> tuple[str, Marks]:
        return "", ()

    def resume(self, accepted: Accepted, should_continue: ShouldContinue) -> None:
        self.reasoning = accepted.reasoning


class PlainText:
    """All ids are one text without marks.

    Attributes:
        _text: not consumed yet.
    """

    reasoning = 0

    def __init__(
        self, detokenizer: Detokenizer, stop: Sequence[str] = (), stops_after: int = 0
    ) -> None:
        """`stops_after`: of the first so many tokens none completes a stop string."""
        self.over = False
        self._detokenizer = detokenizer
        self._stops = StopStrings(stop, stops_after)
        self._text = ""

    @property
    def hidden(self) -> int:
        return self._stops.hidden_tokens

    def push(self, token: int) -> None:
        self._stops.begin_token()
        self._text += self._stops.push(self._detokenizer.push((token,)))
        self.over = self._stops.complete

    def finish(self) -> None:
        if not self.over:
            self._text += self._stops.push(self._detokenizer.flush()) + self._stops.flush()
            self.over = self._stops.complete

    def consume(self, first: int) -> tuple[str, Marks]:
        text, self._text = self._text, ""
        return text, ()

    def resume(self, accepted: Accepted, should_continue: ShouldContinue) -> None:
        """The text of former owners contains no part of a stop string that counts, so the search
        starts after it."""
        early, seen = self._stops.early, accepted.text_length
        for ids_ in (accepted.ids[:early], accepted.ids[early:]):
            if ids_:
                text = self._detokenizer.push(ids_)
                self._stops.begin_tokens(len(ids_))
                self._text += self._stops.push(text[seen:])
                seen = max(0, seen - len(text))
        self.over = self._stops.complete


class Items:
    """Ids are items, by the engine's parser.

    Attributes:
        _text: the part of V that was not consumed yet.
        _marks: the part of M that was not consumed yet. `at` counts from the beginning of `_text`,
            `ids` from that of the response.
        _open: the kind of the open item; None before the first one.
        _nonempty: V or M is not empty.
        _calls: number of calls so far.
        _position: number of ids so far.
        _failed: the parser is no longer used.
    """

    def __init__(
        self,
        rid: str,
        parser: ItemParser,
        stop: Sequence[str] = (),
        max_calls: int | None = None,
        copied: int = 0,
        stops_after: int = 0,
    ) -> None:
        """`max_calls`: the response ends where a further call would begin. `copied`: number of ids
        at the beginning that were not generated and do not count as reasoning. `stops_after`: as
        of `PlainText`."""
        self.over = False
        self.reasoning = 0
        self._rid = rid
        self._parser = parser
        self._stops = StopStrings(stop, stops_after)
        self._max_calls = max_calls
        self._copied = copied
        self._text = ""
        self._marks: list[records.Mark] = []
        self._open: records.MarkKind | None = None
        self._nonempty = False
        self._calls = 0
        self._position = 0
        self._failed = False

    @property
    def hidden(self) -> int:
        return self._stops.hidden_tokens

    def push(self, token: int) -> None:
        self._stops.begin_token()
        self._add(self._parse(self._parser.push, token))
        self._position += 1
        if self._open == "r" and self._position > self._copied:
            self.reasoning += 1

    def finish(self) -> None:
        if not (self.over or self._failed):
            self._add(self._parse(self._parser.finish))
        if not self.over:
            self._write(self._stops.flush())

    def consume(self, first: int) -> tuple[str, Marks]:
        text, self._text = self._text, ""
        if not self._marks:
            return text, ()
        marks, self._marks = self._marks, []
        return text, tuple(
            msgspec.structs.replace(mark, ids=max(0, mark.ids - first)) for mark in marks
        )

    def resume(self, accepted: Accepted, should_continue: ShouldContinue) -> None:
        for token in accepted.ids:
            if self.over:
                break
            if not should_continue():
                return
            self.push(token)
        length, count = accepted.text_length, accepted.mark_count
        if len(self._text) < length or len(self._marks) < count:
            raise Diverged
        if count and self._marks[count - 1] != accepted.last_mark:
            raise Diverged
        self._text = self._text[length:]
        self._marks = [
            msgspec.structs.replace(mark, at=max(0, mark.at - length))
            for mark in self._marks[count:]
        ]

    def _parse(self, ask: Callable[..., Sequence[Piece]], *token: int) -> Sequence[Piece]:
        try:
            return ask(*token)
        except Exception as error:  # of any type: parsers are not ours
            self._failed = True
            raise ParserFailed(f"{type(error).__name__}: {error}") from error

    def _add(self, pieces: Sequence[Piece]) -> None:
        for kind, text, name in pieces:
            if name or (text and kind != self._open):
                self._begin(kind, name)
            if text and not self.over:
                self._write(self._stops.push(text) if kind == "m" else text)
                self.over = self._stops.complete
            if self.over:
                return

    def _begin(self, kind: records.MarkKind, name: str) -> None:
        self._write(self._stops.flush())
        call_id = ""
        if kind in ("c", "x"):
            if not name:
                self._failed = True
                raise ParserFailed("a call without a name")
            if self._calls == self._max_calls:
                self.over = True
                return
            call_id = ids.call_id(self._rid, self._calls)
            self._calls += 1
        self._open = kind
        if kind == "m" and not self._nonempty:
            return  # the message that needs no mark
        self._marks.append(records.Mark(len(self._text), self._position, kind, name, call_id))
        self._nonempty = True

    def _write(self, text: str) -> None:
        if text:
            self._text += text
            self._nonempty = True
