"""One attempt at one response (pure): the engine's output becomes TOK frames and one END.

    RUNNING --ids--> RUNNING
    RUNNING --engine finishes, stop string, max_tokens--> FINISHED(reason)
    RUNNING --stand_down--> STOPPED (superseded, cancelled, drained, failed append)

Ids become text here and not in the engine, because a takeover must continue inside a character and
inside a stop string. Text that is withheld at the end goes into END.text_tail. An attempt that
takes over makes text of all accepted ids again and emits the part that the log does not have. So a
reader sees the same text as without the takeover. `worker.text.visible` turns ids into text and
marks.
"""

from __future__ import annotations

import array
import enum
import math
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from tailrace.protocol import fold, records
from worker.text import visible

MAX_FRAME_IDS = 4_096  # bounds a record, far below MAX_RECORD_BYTES
# Of frames with log probabilities: ids (log rule §16), and characters of their tokens. A character
# takes six bytes of JSON at most.
MAX_LP_IDS = 512
MAX_LP_CHARACTERS = 1 << 16

Detokenizer = visible.Detokenizer


class BadOutput(Exception):
    """The engine's output lacks what was requested."""


class Phase(enum.Enum):
    """The state of an attempt."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"


_Frame = tuple[list[int], str, visible.Marks, tuple[records.Lp, ...]]  # as in `records.Tok`


class Generation:
    """State of one attempt.

    Attributes:
        phase: see the table above.
        reason: END's reason; empty until FINISHED.
        prior_total: number of ids of former owners.
        total: number of ids of the response so far, those of former owners included.
        _visible: text and marks that are in no frame yet.
        _next: seq of the next frame.
        _h: parent hash of the next frame.
        _ids: ids of the next frames.
        _settled: number of those that a frame may have now. With log probabilities the others wait
            until a stop string is complete or is none: only then it is known which are shown.
        _text, _marks: those of the settled ids.
        _lp: their log probabilities, if the client asked for them.
        _lp_characters: length of the tokens in `_lp`.
        _vectors: of the inputs that were embedded so far. Only END holds them.
        _full_frames: frames that were cut because they were full.
        _tail: text and marks for END; empty until FINISHED.
    """

    def __init__(
        self,
        *,
        rid: str,
        fencing_token: str,
        view: visible.Visible,
        max_tokens: int,
        stop_ids: Collection[int] = (),
        logprobs: bool = False,
        vectors: int = 0,
    ) -> None:
        """`logprobs`: the client asked for log probabilities. `vectors`: how many inputs are to be
        embedded."""
        self.rid = rid
        self.fencing_token = fencing_token
        self.phase = Phase.RUNNING
        self.reason = ""
        self.total = self.prior_total = 0
        self._visible = view
        self._stop_ids = frozenset(stop_ids)
        self._max_tokens = max_tokens
        self._logprobs = logprobs
        self._vector_count = vectors
        self._vectors: list[bytes] = []
        self._most_ids = MAX_LP_IDS if logprobs else MAX_FRAME_IDS
        self._next = 0
        self._h = fold.H0
        self._ids: list[int] = []
        self._settled = 0
        self._text = ""
        self._marks: visible.Marks = ()
        self._lp: list[records.Lp] = []
        self._lp_characters = 0
        self._full_frames: list[_Frame] = []
        self._tail: tuple[str, visible.Marks] = ("", ())

    @property
    def remaining(self) -> int:
        """Tokens that may still be generated."""
        return max(0, self._max_tokens - self.total)

    @property
    def pending(self) -> bool:
        """Whether a frame is ready."""
        ready = self._settled if self._logprobs else len(self._ids)
        return ready > 0 or bool(self._full_frames)

    @property
    def reasoning(self) -> int:
        """Number of ids that belong to reasoning, those of former owners included."""
        return self._visible.reasoning

    def resume(
        self, accepted: visible.Accepted, should_continue: visible.ShouldContinue = lambda: True
    ) -> None:
        """Continue after what the log has. Nothing was pushed before. May take seconds for
        thousands of ids. When `should_continue` returns False, this object is unusable.

        Raises:
            Diverged, ParserFailed: the response cannot be continued.
        """
        self.total = self.prior_total = self._next = accepted.before + len(accepted.ids)
        self._h = accepted.h
        if not self.total:
            return
        self._visible.resume(accepted, should_continue)
        if self._visible.over or (accepted.ids and accepted.ids[-1] in self._stop_ids):
            self._finish("stop")
        elif self.total >= self._max_tokens:
            self._finish("length")

    def copy(
        self, ids: Sequence[int], should_continue: visible.ShouldContinue = lambda: True
    ) -> None:
        """Ids that the engine did not generate, before it generates any: frames of their own,
        without log probabilities. When `should_continue` returns False, this object is unusable.

        Raises:
            ParserFailed: earlier output stays.
        """
        for token in ids:
            if self.phase is not Phase.RUNNING or not should_continue():
                return
            self._visible.push(token)
            self._count(token)
        self._settle()
        self._cut()

    def push(
        self,
        ids: Sequence[int],
        finish: str | None = None,
        logprobs: Sequence[records.Lp] = (),
        vectors: Sequence[bytes] = (),
    ) -> None:
        """The engine's next ids or vectors, with log probabilities if they were requested, and the
        reason if it stopped. No effect once the attempt is over.

        Raises:
            ParserFailed: earlier output stays.
            BadOutput: log probabilities or vectors are missing, or a vector has no direction.
        """
        self._vectors.extend(vectors)
        if not all(map(_finite, vectors)):
            raise BadOutput("a vector with NaN or infinity")  # JSON has no word for them
        if finish is not None and len(self._vectors) != self._vector_count:
            raise BadOutput(f"{len(self._vectors)} vectors for {self._vector_count} inputs")
        if self._logprobs and len(logprobs) != len(ids):
            raise BadOutput(f"{len(logprobs)} log probabilities for {len(ids)} ids")
        for at, token in enumerate(ids):
            if self.phase is not Phase.RUNNING:
                return
            self._visible.push(token)
            if self._logprobs:
                self._lp.append(logprobs[at])
                self._lp_characters += _characters(logprobs[at])
            self._count(token)
        if finish is not None and self.phase is Phase.RUNNING:
            self._finish(finish)

    def frames(self, ts: float) -> list[records.Tok]:
        """Everything that is pending, as TOK records in order. `ts`: send time in ms."""
        if not self._logprobs:
            self._settle()
        self._cut()
        out = []
        for ids, text, marks, lp in self._full_frames:
            out.append(
                records.Tok(
                    self.rid, self.fencing_token, self._next, ids, text, self._h, ts, marks, lp
                )
            )
            self._next += len(ids)
            self._h = fold.roll(self._h, ids)
        self._full_frames.clear()
        return out

    def end(
        self, usage: records.Usage, error: tuple[str, str] | None = None, param: str = ""
    ) -> records.End:
        """The END. `param`: the request's field at fault. No frame may be pending."""
        assert self.phase is Phase.FINISHED
        assert not self.pending
        text, marks = self._tail
        return records.End(
            self.rid,
            self.fencing_token,
            self._next,
            self.reason,
            self._h,
            text,
            usage,
            error,
            marks,
            tuple(self._vectors) if self.reason == "stop" else (),
            param,
        )

    def close(self, reason: str) -> None:
        """End it now (failed, expired, warm-up); earlier output stays."""
        if self.phase is not Phase.RUNNING:
            return
        try:
            self._finish(reason)
        except visible.ParserFailed:
            self._finish(reason)

    def stand_down(self) -> int:
        """Stop without END. Returns the seq that a YIELD names. Pending frames are dropped: a
        successor generates them again."""
        self.phase = Phase.STOPPED
        self._ids, self._lp, self._settled = [], [], 0
        self._full_frames.clear()
        return self._next

    def _count(self, token: int) -> None:
        self.total += 1
        self._ids.append(token)
        if self._visible.over:
            self._finish("stop")
        elif self.total >= self._max_tokens:
            self._finish("stop" if token in self._stop_ids else "length")
        elif len(self._ids) >= self._most_ids or self._lp_characters >= MAX_LP_CHARACTERS:
            self._settle()
            self._cut()
        elif self._logprobs and not self._visible.hidden:
            self._settle()

    def _settle(self) -> None:
        """A frame may have all ids so far."""
        if not self._ids:
            return  # text without ids is for the next frame, or for END
        text, marks = self._visible.consume(self.total - len(self._ids))
        if marks and self._text:
            behind = len(self._text)
            marks = tuple(msgspec.structs.replace(each, at=behind + each.at) for each in marks)
        self._text += text
        self._marks += marks
        self._settled = len(self._ids)

    def _cut(self) -> None:
        """A frame of the settled ids."""
        count = self._settled
        if not count:
            return
        frame = self._ids[:count], self._text, self._marks, tuple(self._lp[:count])
        self._full_frames.append(frame)
        self._ids, self._lp, self._settled = self._ids[count:], self._lp[count:], 0
        self._text, self._marks = "", ()
        self._lp_characters = sum(map(_characters, self._lp))

    def _finish(self, reason: str) -> None:
        if self._visible.over and self._logprobs:
            cut_away = min(self._visible.hidden, len(self._ids))
            self._lp[len(self._ids) - cut_away :] = [_NOT_SHOWN] * cut_away
        self._settle()
        self._cut()
        self._visible.finish()
        self._tail = self._visible.consume(self.total)
        self.phase, self.reason = Phase.FINISHED, "stop" if self._visible.over else reason


_NOT_SHOWN: Final = records.Lp("", 0.0)


def _characters(lp: records.Lp) -> int:
    likely = sum(len(each.token) + len(each.raw) for each in lp.top)
    return likely + len(lp.token) + len(lp.raw)


def _finite(vector: bytes) -> bool:
    """Whether all its float32 values are finite. As doubles their sum cannot overflow."""
    return math.isfinite(sum(array.array("f", vector)))
