"""M2: one rule of the product taken out, in the process that is to break it. `traced` plants what
TAILRACE_TEST_PLANT names; nothing else does."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from tailrace import log
from tailrace.protocol import fold, ids, records, segments


def no_grace() -> None:
    """No bug: a claim without grace costs tokens, never correctness. The control beside
    `no_barrier`."""
    from worker.serving import takeover

    takeover.GRACE_MS = 0


def no_barrier() -> None:
    """A successor continues from what it had read before its claim landed."""
    from worker.serving import claim_runner

    async def pass_barrier(self: Any, append: asyncio.Future[log.Appended]) -> bool:
        await asyncio.sleep(0)
        return bool(self._claim.attempt.stop_reason is None)

    no_grace()
    claim_runner.ClaimRunner._pass_barrier = pass_barrier  # type: ignore[method-assign]


def commit_before_the_end() -> None:
    """An offset is finished as soon as it is taken."""
    from worker.queue import commit_tracker

    begin = commit_tracker.Tracker.begin

    def begun(self: commit_tracker.Tracker, offset: int) -> None:
        begin(self, offset)
        self.finish(offset)

    commit_tracker.Tracker.begin = begun  # type: ignore[method-assign]


def latest_claim_wins() -> None:
    """A claim takes effect whatever it replaces."""
    claim = fold.Fold._claim

    def latest(self: fold.Fold, record: records.Claim) -> fold.Outcome:
        self.owner = record.prev
        return claim(self, record)

    fold.Fold._claim = latest  # type: ignore[method-assign]


def no_seq_check() -> None:
    """A token of the owner counts, whatever its index."""

    def token(self: fold.Fold, record: records.Tok) -> fold.Outcome:
        if record.own != self.owner:
            return fold.Ignored.STALE_OWNER
        self.next += len(record.ids)
        self.h = fold.roll(self.h, record.ids)
        self.text_length += len(record.text)
        if self.retain_ids:
            self.ids.extend(record.ids)
        return fold.Accepted(record.seq, record.ids, record.text, record.marks, record.lp)

    fold.Fold._token = token  # type: ignore[method-assign]


def lossy_push() -> None:
    """Delivery from a path that loses a record now and then, as a pub/sub channel does."""
    from tailrace.delivery import hub

    dispatch, rng = hub.Hub.dispatch, random.Random(1)

    def lossy(self: hub.Hub, *r: Any) -> Any:
        return None if rng.random() < 0.02 else dispatch(self, *r)

    hub.Hub.dispatch = lossy  # type: ignore[method-assign, assignment]


def late_mark() -> None:
    """An item begins one character too late."""
    from worker.text import generation

    frames = generation.Generation.frames

    def late(self: generation.Generation, ts: float) -> list[records.Tok]:
        return [
            msgspec.structs.replace(
                tok,
                marks=tuple(
                    msgspec.structs.replace(m, at=min(m.at + 1, len(tok.text))) for m in tok.marks
                ),
            )
            for tok in frames(self, ts)
        ]

    generation.Generation.frames = late  # type: ignore[method-assign]


def random_call_id() -> None:
    """As vLLM's parsers make them: each attempt another one."""

    def drawn(rid: str, ordinal: int) -> str:
        return f"call_{random.getrandbits(64):016x}"

    ids.call_id = drawn


def two_ids_at_once() -> None:
    """The parser is fed pairs, as by an engine that makes several tokens in a step."""
    from worker.engines import scripted_markers

    held = weakref.WeakKeyDictionary[scripted_markers.Parser, int]()
    finish = scripted_markers.Parser.finish

    def push(self: scripted_markers.Parser, token: int) -> Any:
        before = held.pop(self, None)
        if before is None:
            held[self] = token
            return ()
        return self._parse(self._detokenizer.push((before, token)))

    def finished(self: scripted_markers.Parser) -> Any:
        before = held.pop(self, None)
        last = () if before is None else self._parse(self._detokenizer.push((before,)))
        return [*last, *finish(self)]

    scripted_markers.Parser.push = push  # type: ignore[method-assign]
    scripted_markers.Parser.finish = finished  # type: ignore[method-assign]


def refuse_what_was_sent() -> None:
    """An append without an answer is told as a refusal, and what the broker takes later counts."""
    from gateway.requests import request_writer

    append = request_writer.RequestWriter.append

    async def refusing(self: Any, *request: Any) -> Any:
        try:
            return await append(self, *request)
        except log.AppendFailed as error:
            raise log.NotAppended(str(error)) from error

    request_writer.RequestWriter.append = refusing  # type: ignore[method-assign, assignment]
    request_writer.RequestWriter.append_by = lambda _: 0  # type: ignore[method-assign, assignment]


def die_before_the_bill() -> None:
    """No bug but a moment: the first bill of this worker is what it dies of, right after its END is
    in the log."""
    from worker.serving import metering

    metering.Metering.record_usage = _once(metering.Metering.record_usage)  # type: ignore[method-assign]


def die_before_the_letter() -> None:
    """The same before a dead letter."""
    from worker.serving import metering

    metering.Metering.dead = _once(metering.Metering.dead)  # type: ignore[method-assign]


MOVED: Final = (3, 6, 7)  # by range assignment of eight partitions, when a third worker joins two


def _once(call: Any) -> Any:
    """SIGKILL at a worker's first call about a response on a partition that moved, over all its
    incarnations."""
    flag = Path(os.environ["TAILRACE_TEST_TRACE"]) / f"{os.environ['TAILRACE_NAME']}.died"

    async def deadly(self: Any, about: records.Request | records.DeadLetter, *more: Any) -> Any:
        if ids.parse(about.rid).partition in MOVED and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return await call(self, about, *more)

    return deadly


# ---- where a gateway dies (F5); each dies once, at its first request with a key


def die_before_the_key() -> None:
    """Nothing has happened."""
    from gateway.requests import idempotency

    idempotency.Idempotency.append_once = _deadly(idempotency.Idempotency.append_once)  # type: ignore[method-assign]


def die_before_the_send() -> None:
    """The key leads to a response that is not in the log."""
    from gateway.requests import request_writer

    request_writer.RequestWriter.append = _deadly(request_writer.RequestWriter.append)  # type: ignore[method-assign]


def die_after_the_send() -> None:
    """The record is with the client library, and perhaps on its way."""
    append = log.Writer.append

    def sent(self: log.Writer, *record: Any) -> asyncio.Future[log.Appended]:
        done = append(self, *record)
        asyncio.get_running_loop().call_later(0.002, _die)
        return done

    log.Writer.append = sent  # type: ignore[method-assign, assignment]


def die_at_the_acknowledgement() -> None:
    """The record is in the log, and the gateway never learns of it."""

    from tailrace.log import writer

    writer._acknowledge = _deadly(writer._acknowledge)


def die_before_the_answer() -> None:
    """The gateway knows, and the client does not."""
    from gateway.responses import response_stream

    response_stream.ResponseStream.release = _deadly(response_stream.ResponseStream.release)  # type: ignore[method-assign]


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _deadly(_: Any) -> Any:
    return lambda *_a, **_k: _die()


FAILPOINTS: Final[dict[str, Callable[[], None]]] = {
    point.__name__: point
    for point in (
        die_before_the_key,
        die_before_the_send,
        die_after_the_send,
        die_at_the_acknowledgement,
        die_before_the_answer,
    )
}

# ---- the archive


def positions_before_rows() -> None:
    """Positions are written with all rows but the last one, as if a kill came in between."""
    from tailrace.archive import folding

    fold = folding.Folding._fold

    async def losing(self: Any, connection: Any, new: Any) -> folding.FoldResult:
        return await fold(self, connection, new[:-1] if len(new) > 1 else new)

    folding.Folding._fold = losing  # type: ignore[method-assign]


def joined_frames() -> None:
    """What two frames held comes as one from the archive: the same text, in fewer events."""
    from tailrace.protocol import history

    decode = history.decode

    def joined(value: bytes) -> history.History | None:
        found = decode(value)
        if found is None or len(found.frames) < 2 or found.marks or found.lp:
            return found
        a, b, *rest = found.frames
        if any(claim.at == a.ids for claim in found.claims):
            return found
        both = history.Frame(a.ids + b.ids, a.characters + b.characters)
        return msgspec.structs.replace(found, frames=[both, *rest])

    history.decode = joined


# ---- another model continues


def word_again() -> None:
    """The text that another model continues lacks its last word, which comes twice then."""
    prompt = segments.prompt

    def shorter(request: records.Request, text: str) -> records.Request:
        return prompt(request, text.rpartition(" ")[0])

    segments.prompt = shorter


def token_missing() -> None:
    """The first token behind another model's text is generated, and is in no frame."""
    from worker.engines import scripted

    answer = scripted.answer

    def later(
        request: records.Request, before: Sequence[int] = (), nonce: str = ""
    ) -> Iterator[int]:
        found = answer(request, before, nonce)
        if request.continue_final and not before:
            next(found, None)
        return found

    scripted.answer = later


def one_item() -> None:
    """Gateways and pushes, not workers, take the text of another model for more of the same
    item."""
    if os.environ["TAILRACE_NAME"].startswith(("gateway", "push")):
        claim = fold.Fold._claim

        def plain(self: fold.Fold, record: records.Claim) -> fold.Outcome:
            return claim(self, msgspec.structs.replace(record, continues=False))

        fold.Fold._claim = plain  # type: ignore[method-assign]


FALLBACK: Final[dict[str, Callable[[], None]]] = {
    plant.__name__: plant for plant in (word_again, token_missing, one_item)
}
ARCHIVE: Final[dict[str, Callable[[], None]]] = {
    plant.__name__: plant for plant in (positions_before_rows, joined_frames)
}

MOMENTS: Final[dict[str, Callable[[], None]]] = {
    moment.__name__: moment for moment in (die_before_the_bill, die_before_the_letter)
}
# Broken promises of a gateway, each with a drill of its own.
REFUSALS: Final[dict[str, Callable[[], None]]] = {
    refuse_what_was_sent.__name__: refuse_what_was_sent
}
PLANTS: Final[dict[str, Callable[[], None]]] = {
    plant.__name__: plant
    for plant in (
        no_grace,
        no_barrier,
        commit_before_the_end,
        latest_claim_wins,
        no_seq_check,
        lossy_push,
        late_mark,
        random_call_id,
        two_ids_at_once,
    )
}
