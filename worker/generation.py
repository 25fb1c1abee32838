"""One attempt at one response (pure): what the engine yields becomes TOK frames and one END.

    RUNNING --ids--> RUNNING
    RUNNING --engine finishes, stop string, max_tokens--> FINISHED(reason)
    RUNNING --stand_down--> STOPPED (superseded, cancelled, drained, failed append)

Text is detokenised here and not in the engine, because a takeover must continue inside a character
and inside a stop string. Text is emitted only when it can no longer become part of a stop string;
text that is withheld at the end goes into END.text_tail. An attempt that takes over rebuilds the
detokeniser from all accepted ids and emits `detok(all)[emitted so far:]`. So a reader sees the same
text as without the takeover.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from typing import Protocol

from tailrace.protocol import fold, records

MAX_FRAME_IDS = 4_096  # bounds a record, far below MAX_RECORD_BYTES


class Detokenizer(Protocol):
    """Ids to text, incrementally; never returns half a character."""

    def push(self, ids: Sequence[int]) -> str:
        """Text that these ids complete, possibly empty."""

    def flush(self) -> str:
        """Text that is still held; an incomplete character becomes U+FFFD."""


class Phase(enum.Enum):
    """Where an attempt stands."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"


class StopStrings:
    """Finds stop strings in a stream and holds back what may be the beginning of one.

    The stop string that is completed first counts. Of those completed by the same character, the
    longest counts. So the answer does not depend on how the text was cut.

    Attributes:
        found: a stop string was completed.
        _held: text that may be the beginning of a stop string; empty once `found`.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted((s for s in stops if s), key=len, reverse=True)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Text that is no part of a stop string. Text from a found stop string on is dropped."""
        if not self._stops:
            return text
        held = self._held
        for character in text:
            held += character
            stop = next((s for s in self._stops if held.endswith(s)), None)
            if stop is not None:
                self.found, self._held = True, ""
                return held[: -len(stop)]
        keep = self._possible_start(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """The stream ended: text that was held back is ordinary text."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        longest = min(len(text), len(self._stops[0]) - 1)
        return next(
            (n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in self._stops)),
            0,
        )


class Generation:
    """State of one attempt.

    Attributes:
        phase: see the table above.
        reason: END's reason; empty until FINISHED.
        inherited: number of ids of former owners.
        total: number of ids of the response so far, those of former owners included.
        _next: seq of the next frame.
        _h: parent hash of the next frame.
        _ids: ids of the next frame; empty right after `frames`.
        _text: text of the next frame; empty right after `frames`.
        _closed: frames that were cut because they were full.
        _tail: text left for END; empty until FINISHED.
    """

    def __init__(
        self,
        *,
        rid: str,
        fencing_token: str,
        detokenizer: Detokenizer,
        max_tokens: int,
        stop: Sequence[str] = (),
        stop_ids: Collection[int] = (),
        accepted: Sequence[int] = (),
        text_length: int = 0,
        h: str = fold.H0,
    ) -> None:
        self.rid = rid
        self.fencing_token = fencing_token
        self.phase = Phase.RUNNING
        self.reason = ""
        self.total = self.inherited = len(accepted)
        self._detokenizer = detokenizer
        self._stops = StopStrings(stop)
        self._stop_ids = frozenset(stop_ids)
        self._max_tokens = max_tokens
        self._next = len(accepted)
        self._h = h
        self._ids: list[int] = []
        self._text = ""
        self._closed: list[tuple[list[int], str]] = []
        self._tail = ""
        if accepted:
            self._rebuild(accepted, text_length)

    @property
    def remaining(self) -> int:
        """Tokens that may still be generated."""
        return max(0, self._max_tokens - self.total)

    @property
    def pending(self) -> bool:
        """Whether a frame waits to be taken."""
        return bool(self._ids or self._closed)

    def push(self, ids: Sequence[int], finish: str | None = None) -> None:
        """The engine's next ids, and why it stopped if it did. No effect once the attempt is
        over."""
        for token in ids:
            if self.phase is not Phase.RUNNING:
                return
            self._one(token)
        if finish is not None and self.phase is Phase.RUNNING:
            self._finish(finish)

    def frames(self, ts: float) -> list[records.Tok]:
        """Everything that is pending, as TOK records in order. `ts`: send time in ms."""
        if self._ids:
            self._cut()
        out = []
        for ids, text in self._closed:
            out.append(
                records.Tok(self.rid, self.fencing_token, self._next, ids, text, self._h, ts)
            )
            self._next += len(ids)
            self._h = fold.roll(self._h, ids)
        self._closed.clear()
        return out

    def end(self, usage: records.Usage, error: tuple[str, str] | None = None) -> records.End:
        """The END. No frame may be pending."""
        assert self.phase is Phase.FINISHED
        assert not self.pending
        return records.End(
            self.rid, self.fencing_token, self._next, self.reason, self._h, self._tail, usage, error
        )

    def close(self, reason: str) -> None:
        """End it now (failed, expired, warm-up); what was generated stays."""
        if self.phase is Phase.RUNNING:
            self._finish(reason)

    def stand_down(self) -> int:
        """Stop without END. Returns the seq that a YIELD names. Pending frames are dropped: a
        successor generates them again."""
        self.phase = Phase.STOPPED
        self._ids, self._text = [], ""
        self._closed.clear()
        return self._next

    def _rebuild(self, accepted: Sequence[int], text_length: int) -> None:
        """Go on behind the accepted ids. What former owners emitted holds no part of a stop string,
        so the search for stop strings starts behind it."""
        text = self._detokenizer.push(accepted)
        self._text = self._stops.push(text[text_length:])
        if self._stops.found or accepted[-1] in self._stop_ids:
            self._finish("stop")
        elif self.total >= self._max_tokens:
            self._finish("length")

    def _one(self, token: int) -> None:
        self.total += 1
        self._ids.append(token)
        self._text += self._stops.push(self._detokenizer.push((token,)))
        if self._stops.found:
            self._finish("stop")
        elif self.total >= self._max_tokens:
            self._finish("stop" if token in self._stop_ids else "length")
        elif len(self._ids) >= MAX_FRAME_IDS:
            self._cut()

    def _cut(self) -> None:
        self._closed.append((self._ids, self._text))
        self._ids, self._text = [], ""

    def _finish(self, reason: str) -> None:
        if not self._stops.found:
            self._tail = self._stops.push(self._detokenizer.flush())
        if self._stops.found:
            reason = "stop"
        else:
            self._tail += self._stops.flush()
        if not self._ids:
            # A takeover that only had to end: no frame can carry text that has no ids.
            self._tail, self._text = self._text + self._tail, ""
        self.phase, self.reason = Phase.FINISHED, reason
