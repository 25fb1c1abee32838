"""What a worker asks of an engine, and how engines fail.

EngineError
  ├─ Transient        this attempt failed, another may succeed                     -> claim again after a pause
  ├─ Refused          this request can never succeed here (invalid, too long …)    -> END(failed)
  │    └─ NotResumable   tokens exist and this engine cannot go on from them       -> END(failed)
  └─ EngineDead       the engine is gone                                           -> leave everything, exit, be restarted
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tailrace import log
from tailrace.protocol import records
from worker import generation


class EngineError(Exception):
    """An engine could not do what it was asked."""


class Transient(EngineError):
    """Another attempt may succeed."""


class Refused(EngineError):
    """No attempt can succeed; `code` and `message` are the client's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class NotResumable(Refused):
    """The engine cannot go on in the middle of a response."""

    def __init__(self) -> None:
        super().__init__(
            "not_resumable",
            (
                "The worker that generated this response was lost and its engine cannot continue "
                "another one's output."
            ),
        )


class EngineDead(EngineError):
    """The engine ended; nothing it runs can finish."""


class Verdict(enum.Enum):
    """What a failed attempt means."""

    REPLACE = "replace"  # the nonce is dead, the response is not: claim again at once (log rule W4)
    RETRY = "retry"  # claim again after a pause, a bounded number of times
    FAIL = "fail"  # end this response as failed
    DIE = "die"  # this worker cannot serve


def classify(error: BaseException) -> Verdict:
    """The one place that says what an error means. An unknown one is a defect, ours or the
    engine's: retried, so that it is bounded by attempts."""
    if isinstance(error, log.AppendFailed):
        return Verdict.REPLACE
    if isinstance(error, EngineDead | MemoryError):
        return Verdict.DIE
    if isinstance(error, Refused):
        return Verdict.FAIL
    return Verdict.RETRY


@dataclass(frozen=True, slots=True)
class GenerationInput:
    """One attempt. `output_so_far` are accepted ids of former attempts: the engine goes on behind
    them; `max_tokens` is what is left."""

    request: records.Request
    own: str
    prompt_ids: Sequence[int]
    output_so_far: Sequence[int]
    max_tokens: int
    trace: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Names this attempt inside the engine; a response may have an old attempt that is still
        being aborted."""
        return f"{self.request.rid}.{self.own[:8]}"


@dataclass(frozen=True, slots=True)
class Step:
    """Ids the engine made since the last step; `finish` is "stop" or "length" on the last one.
    `usage` only from engines that count by themselves."""

    ids: Sequence[int]
    finish: str | None = None
    cached_tokens: int | None = None
    usage: records.Usage | None = None


Take = Callable[[Step], bool]
"""Called where the engine's output is read, with no task between: a wake-up per token and response costs more than what is done with it."""


async def feed(steps: AsyncGenerator[Step, None], take: Take) -> None:
    """For engines that generate by themselves."""
    async with contextlib.aclosing(steps):
        async for step in steps:
            if not take(step):
                return


class Engine(Protocol):
    """An engine as the worker sees it. All methods are called on the event loop.

    Attributes:
        capacity: responses it runs at once.
        resumable: whether it can go on behind ids of another worker.
        ids_are_tokens: whether ids count as tokens (else they are characters, and the engine counts
            and bounds tokens itself).
        model_rev, tokenizer_digest: travel in every CLAIM; a response is taken over only by a
            worker with the same.
        stop_ids: ids that end a response.
        dead: set once the engine is gone for good.
    """

    capacity: int
    resumable: bool
    ids_are_tokens: bool
    model_rev: str
    tokenizer_digest: str
    stop_ids: frozenset[int]
    dead: asyncio.Event

    async def start(self) -> None:
        """Load; may take minutes and must not block the loop for long.

        Raises:
            EngineDead: it cannot be started.
        """

    async def shutdown(self) -> None:
        """Stop and leave no process behind; bounded; also after a failed start."""

    async def encode(self, request: records.Request) -> list[int]:
        """The prompt as ids, by the model's own chat template.

        Raises:
            Refused: the prompt cannot be served (too long, not renderable).
        """

    async def generate(self, job: GenerationInput, take: Take) -> None:
        """Run one attempt: `take` gets every step, in order, until one has a `finish` or `take`
        answers that it wants no more. Cancelling the task aborts the attempt in the engine at once.

        Raises:
            EngineError
        """

    def detokenizer(self, request: records.Request) -> generation.Detokenizer:
        """A fresh incremental detokeniser."""


def metadata(request: records.Request) -> dict[str, Any]:
    """The client's metadata, as the echoed response object carries it."""
    found = request.echo.get("metadata")
    return found if isinstance(found, dict) else {}


def check_length(prompt: int, max_model_len: int) -> None:
    """Room for the prompt and at least one token.

    Raises:
        Refused: context_length_exceeded.
    """
    if prompt + 1 > max_model_len:
        raise Refused(
            "context_length_exceeded",
            (
                f"This model's maximum context length is {max_model_len} tokens. However, your "
                f"messages resulted in {prompt} tokens."
            ),
        )
