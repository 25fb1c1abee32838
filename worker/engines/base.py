"""The interface of an engine, and its errors.

An engine gets one `GenerationInput` and calls back with `Step`s. Its errors form this tree; the
right column is what the worker does:

    EngineError
      Transient         this attempt failed, another may succeed     claim again after a pause
        Busy            it accepts nothing now and began nothing     the same, and no attempt failed
      Refused           this request can never succeed here          append END(failed)
        NotResumable    it cannot continue accepted tokens           append END(failed)
      EngineDead        the engine is gone                           stop, exit, be restarted
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tailrace.prompts import agreement
from tailrace.protocol import records
from tailrace.protocol.engine_fields import rows_for
from tailrace.protocol.features import Feature, generates_text, needs_of
from worker.prefixes import cached_blocks
from worker.text import generation, item_parser

ItemParser = item_parser.ItemParser
Piece = item_parser.Piece


FLOAT_BYTES: Final = 4
MAX_VECTOR_BYTES: Final = 720_000  # of one response; base64 makes a third more of them


class EngineError(Exception):
    """An engine could not serve a request."""


class Transient(EngineError):
    """Another attempt may succeed."""


class Busy(Transient):
    """The engine accepts nothing now and has begun nothing.

    Attributes:
        pause_s: time before the next attempt.
        code, message: the client's error when no time or no attempt remains.
    """

    def __init__(
        self,
        why: str,
        pause_s: float,
        code: str = "server_error",
        message: str = "The model's server is not available.",
    ) -> None:
        super().__init__(why)
        self.pause_s, self.code, self.message = pause_s, code, message


class Refused(EngineError):
    """No attempt can succeed. `code`, `message` and `param`, the request's field at fault, are sent
    to the client. `param` has its name in the Responses API. It is "" where the code says that the
    input is at fault, and where the field is not known."""

    def __init__(self, code: str, message: str, param: str = "") -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.param = code, message, param


class NotResumable(Refused):
    """The engine cannot continue a response that already has tokens."""

    def __init__(self) -> None:
        super().__init__(
            "not_resumable",
            (
                "The worker that generated this response was lost and its engine cannot continue "
                "another one's output."
            ),
        )


class EngineDead(EngineError):
    """The engine ended. Nothing it runs can finish."""


class ArgumentRefused(EngineDead):
    """The engine does not start with one of the pool's `engine_args`, which the text names."""


class Verdict(enum.Enum):
    """What to do about a failed attempt."""

    RETRY = "retry"  # claim again after a pause, a bounded number of times
    FAIL = "fail"  # end this response as failed
    DIE = "die"  # this worker cannot serve


def classify(error: BaseException) -> Verdict:
    """The verdict on `error`. This is the only place that decides it.

    An unknown error is a defect of the worker or of the engine. It is retried, because the number
    of attempts is bounded.
    """
    if isinstance(error, EngineDead | MemoryError):
        return Verdict.DIE
    if isinstance(error, Refused):
        return Verdict.FAIL
    return Verdict.RETRY


Load = Callable[[records.Request], Awaitable[records.Request]]


async def _as_it_is(request: records.Request) -> records.Request:
    return request


@dataclass(frozen=True, slots=True)
class GenerationInput:
    """What one attempt generates from.

    Attributes:
        request: the client's request.
        fencing_token: of the claim that this attempt runs under.
        prompt_ids: the prompt, as `Engine.encode` returned it.
        output_so_far: accepted ids of former attempts; the engine continues after them.
        copied: number of them that were not generated for this response (log rule §19).
        rank: of the priority class: 0 is served first.
        max_tokens: tokens that may still be generated.
        inputs: ids of the inputs to embed; empty for a generation.
        load: gives a request with the files that it names.
    """

    request: records.Request
    fencing_token: str
    prompt_ids: Sequence[int]
    output_so_far: Sequence[int]
    max_tokens: int
    inputs: Sequence[Sequence[int]] = ()
    load: Load = _as_it_is
    copied: int = 0
    rank: int = 0

    async def with_files(self) -> records.Request:
        """The request with its files, which may take megabytes: do not store it.

        Raises:
            Refused: a file is gone.
            Transient: the log does not answer.
        """
        return await self.load(self.request)

    @property
    def key(self) -> str:
        """The name of this attempt inside the engine. It is not the response id alone, because an
        older attempt at the same response may still be aborting."""
        return f"{self.request.rid}.{self.fencing_token[:8]}"


@dataclass(frozen=True, slots=True)
class Step:
    """What the engine generated since the last step.

    Attributes:
        ids: new token ids, possibly none.
        finish: "stop" or "length" on the last step, None before.
        cached_tokens: prompt tokens read from the prefix cache; None if the engine does not say.
        usage: only from engines that count tokens themselves, on the last step.
        logprobs: one for each of `ids` if the request asks for log probabilities, else none.
        vectors: of the next inputs (`records.End.vectors`), possibly none.
    """

    ids: Sequence[int]
    finish: str | None = None
    cached_tokens: int | None = None
    usage: records.Usage | None = None
    logprobs: Sequence[records.Lp] = ()
    vectors: Sequence[bytes] = ()


OnStep = Callable[[Step], bool]
"""Handles one step and returns whether to continue.

The engine calls it where it reads its own output, without a task in between: one wake-up per token
and response would cost more than handling the step.
"""


async def call_with_each(steps: AsyncGenerator[Step, None], on_step: OnStep) -> None:
    """Call `on_step` with each step until it returns False. For engines that are generators."""
    async with contextlib.aclosing(steps):
        async for step in steps:
            if not on_step(step):
                return


class Engine(Protocol):
    """An engine as the worker sees it. All methods are called on the event loop.

    Attributes:
        capacity: responses it runs at once.
        ids_are_tokens: whether ids are token ids. If not, they are Unicode code points, and the
            engine counts and bounds tokens itself.
        model_rev, tokenizer_digest: identify the model. They are part of every CLAIM; only a worker
            with the same values takes a response over.
        max_model_len: tokens that prompt and answer may have together; 0 where only the engine's
            server knows.
        counting_digest: equal to that of a `tailrace.prompts.counter.Counter` that counts as this
            engine does; empty where it is not known.
        stop_ids: ids that end a response.
        features: abilities beyond plain text; known once it has started.
        parsers: names of its parsers of answers, for operators; known once it has started.
        dead: set once the engine has ended and cannot come back.
        cached_blocks: contents of its prefix cache; None where it does not report them. Known once
            it has started.
    """

    capacity: int
    ids_are_tokens: bool
    model_rev: str
    tokenizer_digest: str
    max_model_len: int
    counting_digest: str
    stop_ids: frozenset[int]
    features: frozenset[Feature]
    parsers: tuple[str, ...]
    dead: asyncio.Event
    cached_blocks: cached_blocks.CachedBlocks | None

    async def start(self) -> None:
        """Load the model. May take minutes and must not block the event loop for long. Called again
        after `shutdown` where the engine ended in a trial.

        Raises:
            EngineDead: it cannot be started.
        """

    async def shutdown(self) -> None:
        """Stop and leave no process behind, within a bounded time, also after a failed start."""

    async def encode(self, request: records.Request) -> list[int]:
        """The prompt as ids, rendered by the model's own chat template.

        Raises:
            Refused: the prompt cannot be served (too long, not renderable).
        """

    async def encode_inputs(self, request: records.Request) -> list[list[int]]:
        """The ids of the inputs to embed. Only with the feature `embeddings`.

        Raises:
            Refused: one cannot be served; the message names it.
        """

    async def generate(self, job: GenerationInput, on_step: OnStep) -> None:
        """Run one attempt. `on_step` gets every step in order, until a step has a `finish` or
        `on_step` returns False. Cancelling the task aborts the attempt in the engine at once.

        The ids of the steps are what the model generates from `prompt_ids` + `output_so_far`. With
        `inputs` there are none: the vectors of the steps are those of the inputs, in their order.

        Raises:
            EngineError: the attempt failed.
        """

    def detokenizer(self, prefix_ids: Sequence[int] = ()) -> generation.Detokenizer:
        """A new incremental detokenizer. `prefix_ids`: ids of the prompt whose text the answer
        continues; without them the answer is a text of its own."""

    async def token_ids(self, text: str) -> list[int]:
        """The ids of a text as a part of an answer. Only with the feature `forks`."""

    def repeatable(self, request: records.Request) -> str | None:
        """Everything except the request and the model's digests that decides a greedy answer, as
        text. None where the next answer may differ, or the engine does not know."""

    def trial_key(self) -> str | None:
        """Everything that decides which fields it accepts (`worker.trials.field_trials`), as text:
        its version, model, arguments and machine. Empty: not known, so results are not stored.
        None: it accepts all fields of its features, and no trial runs. Only once it has
        started."""

    def prefix_scope(self, request: records.Request) -> Sequence[str]:
        """The identity of a prompt's blocks besides their tokens (see
        `worker.prefixes.cached_blocks`)."""

    def parser_name(self, request: records.Request) -> str:
        """The value of `CLAIM.parser`: names of parsers and the version of what runs them, equal
        where the same ids make the same items. Empty where the answer is plain text, which needs a
        `detokenizer` only."""

    async def item_parser(self, request: records.Request, prompt_ids: Sequence[int]) -> ItemParser:
        """A new parser of this response. Only where `parser_name` is not empty. Must not block the
        event loop for long, however many tools there are."""


class PlainText:
    """The part of an engine whose answers are plain text."""

    features: frozenset[Feature] = frozenset()
    parsers: tuple[str, ...] = ()
    max_model_len = 0
    counting_digest = ""
    cached_blocks: cached_blocks.CachedBlocks | None = None

    def trial_key(self) -> str | None:
        return None

    def prefix_scope(self, request: records.Request) -> Sequence[str]:
        return ()

    async def encode_inputs(self, request: records.Request) -> list[list[int]]:
        raise AssertionError("it makes no embeddings")

    async def token_ids(self, text: str) -> list[int]:
        raise AssertionError("it makes no forks")

    def repeatable(self, request: records.Request) -> str | None:
        return None

    def parser_name(self, request: records.Request) -> str:
        return ""

    async def item_parser(self, request: records.Request, prompt_ids: Sequence[int]) -> ItemParser:
        raise AssertionError("plain text has no parser")


class Remote(PlainText):
    """The part of an engine whose server runs elsewhere.

    Attributes:
        trouble: the server's problem that an operator must know; empty without one.
        on_limit: called with the number of responses that may run at once from now on.
    """

    trouble = ""

    def __init__(self) -> None:
        self.on_limit: Callable[[int], None] = lambda _bound: None


def metadata(request: records.Request) -> dict[str, Any]:
    """The client's metadata, from the echoed response object."""
    members = request.echo.get("metadata")
    return members if isinstance(members, dict) else {}


def check_length(prompt_tokens: int, max_model_len: int) -> None:
    """Check that the prompt leaves room for at least one token.

    Raises:
        Refused: context_length_exceeded.
    """
    if prompt_tokens + 1 > max_model_len:
        raise Refused("context_length_exceeded", agreement.too_long(prompt_tokens, max_model_len))


def check_input(index: int, tokens: int, max_model_len: int) -> None:
    """Check that an input can be embedded. `index`: its number in the client's list.

    Raises:
        Refused: context_length_exceeded or invalid_prompt; the message names it.
    """
    if tokens > max_model_len:
        raise Refused(
            "context_length_exceeded",
            (
                f"This model's maximum context length is {max_model_len} tokens. However, "
                f"'input[{index}]' has {tokens} tokens."
            ),
            f"input[{index}]",
        )
    if not tokens:
        raise Refused("invalid_prompt", f"'input[{index}]' has no tokens.", f"input[{index}]")


def check_vectors(count: int, dimensions: int) -> None:
    """Check that the vectors fit into an END, which is one record.

    Raises:
        Refused: they do not.
    """
    if count * dimensions * FLOAT_BYTES > MAX_VECTOR_BYTES:
        raise Refused(
            "invalid_value",
            (
                f"{count} vectors of {dimensions} dimensions are too large for one request. Ask "
                f"for fewer 'dimensions', or send fewer inputs at once."
            ),
        )


# Names in the Responses API, of members of the request that have another name.
PARAMS: Final = {"format": "text.format", "logprobs": "top_logprobs", "output": "input"}


def lacking(
    request: records.Request, features: Collection[str], not_offered: Collection[str] = ()
) -> Refused | None:
    """Why an engine with these features cannot serve the request; None if it can.
    `not_offered`: fields that it does not accept (`engine_fields.TABLE`). The message names one.
    """
    if request.embed is None and not generates_text(features):
        return Refused("unsupported_value", f"The model `{request.model}` generates no text.")
    members = [need.field for need in needs_of(request) if need.feature not in features]
    if not_offered:
        members += [row.member for row in rows_for(request) if row.name in not_offered]
    if not members:
        return None
    param = PARAMS.get(members[0], members[0])
    return Refused("unsupported_parameter", f"The model does not support `{param}` here.", param)


def check_features(
    request: records.Request, features: Collection[str], not_offered: Collection[str] = ()
) -> None:
    """Check that such an engine can serve the request (`lacking`).

    Raises:
        Refused: unsupported_parameter; the message names the field.
    """
    refusal = lacking(request, features, not_offered)
    if refusal is not None:
        raise refusal
