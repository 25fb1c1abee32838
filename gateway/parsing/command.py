"""The checked command, and what makes two commands the same one (pure)."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from gateway.parsing import conversation as dialogue
from gateway.parsing.file_search import FileSearch
from gateway.parsing.formats import Format
from gateway.parsing.json_body import Body
from gateway.parsing.reasoning import Reasoning
from gateway.parsing.scalars import MAX_LABEL_CHARS
from gateway.parsing.tools import NO_TOOLS, Tools
from tailrace.protocol import errors, events, records, topics
from tailrace.settings.shapes import IfBusy

MAX_DEADLINE_MS: Final = 600_000

HOSTED_TOOLS_HEADER: Final = "x-tailrace-tools-left-out"

# The members as `events.echo` has them where nothing is said of them.
_UNASKED: Final[dict[str, Any]] = {
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "max_tool_calls": None,
    "reasoning": None,
    "top_logprobs": 0,
}
_TEXT: Final = {"format": {"type": "text"}}


class Pending(NamedTuple):
    """How the model of a request for `auto` is chosen once it is known what comes before it
    (`gateway.parsing.auto_model`).

    Attributes:
        decide: from the messages before it, the request for the model that is chosen. It may take
            milliseconds, and raises errors.ApiError: no rule fits, or the model's pool does not
            take what is asked for.
        candidates: the requests for all models that may be chosen.
    """

    decide: Callable[[Sequence[Mapping[str, Any]]], Create]
    candidates: Callable[[], list[Create]]


class Parent(NamedTuple):
    """The node of its conversation that a turn follows, wherever the head is; None: nothing."""

    node: str | None


@dataclass(frozen=True, slots=True)
class Create:
    """A checked request for one response.

    Attributes:
        input: this turn as chat messages (`conversation.messages`), without instructions.
        items: the same as the client is shown it (`input_items`).
        turn: the same as it was read. It may hold references and sealed items, which only the
            log or a key can resolve (`conversation.to_resolve`).
        max_output_tokens: as asked, for the echo; the effective bound is in `sampling`.
        previous: the id this one continues; not yet resolved.
        fork: it begins with tokens of another response, and its prompt is that one's.
        search: what files are searched for before it is written; None: none are.
        conversation: the id of the conversation that it is a turn of.
        behind: what it follows there; None: the head.
        if_busy: what becomes of it where the turn that it follows runs still.
        usage_in_stream: Chat Completions' `include_usage`.
        logprobs_param: the field that asked for log probabilities; empty if none did.
        choices: how many answers.
        choice: which of a chat completion's it is; None: it is of none.
        sealed: reasoning comes with `encrypted_content`.
        raw: `input` is one message, whose text is the prompt without any template.
        embed: what is to be embedded; nothing is generated then.
        degrade: where the pool is busy, the answer may be shorter or another model's.
        whole: the answer is not shortened, whatever the client says.
        shortened_from: the bound of the answer before it was shortened; 0: it was not.
        truncate: older messages may be left out where the prompt is too long.
        cached: it is placed by the beginning of its prompt, which an engine may have kept.
        deadline_ms: a request that has not been started by then never is.
        cached_answers: a former answer may be given again, and this one too.
        body_digest: of what the client sent; None without an idempotency key.
        pending: the model, and all that is its pool's, is only one that may be chosen; None: it is
            chosen.
    """

    model: str
    pool: str
    priority: topics.PriorityClass
    input: list[dict[str, Any]]
    items: list[dict[str, Any]]
    sampling: records.Sampling
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous: str | None = None
    fork: records.Fork | None = None
    search: FileSearch | None = None
    conversation: str | None = None
    parent: Parent | None = None
    if_busy: IfBusy = "reject"
    store: bool = True
    background: bool = False
    stream: bool = False
    generate: bool = True
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    turn: tuple[dialogue.Item, ...] = ()
    tools: Tools = NO_TOOLS
    format: Format | None = None
    reasoning: Reasoning | None = None
    verbosity: str | None = None
    logprobs_param: str = ""
    choices: int = 1
    choice: records.Choice | None = None
    sealed: bool = False
    raw: bool = False
    embed: records.Embed | None = None
    degrade: bool = True
    whole: bool = False
    shortened_from: int = 0
    truncate: bool = False
    cached: bool = True
    deadline_ms: int = MAX_DEADLINE_MS
    cached_answers: bool = True
    idempotency_key: str | None = None
    usage_in_stream: bool = False
    body_digest: str | None = None
    pending: Pending | None = None

    @property
    def characters(self) -> int:
        """Length of this turn's text and of its tools, or of its inputs, for admission."""
        characters = dialogue.characters(self.input) + len(self.instructions or "")
        if self.embed is not None:
            characters += self.embed.characters
        return characters + self.tools.characters

    @property
    def without_input(self) -> Create:
        """Without what was said: the log has it, and an answer may take long."""
        return dataclasses.replace(self, input=[], items=[], turn=(), pending=None)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer: which tools were left out, because only their server runs them."""
        return {HOSTED_TOOLS_HEADER: ", ".join(self.tools.hosted)} if self.tools.hosted else {}

    @property
    def echo(self) -> dict[str, Any]:
        """Members of the Response object that are not as they are when nothing is said of them."""
        truncation = {"truncation": "auto"} if self.truncate else {}
        bounds = {"from": self.shortened_from, "to": self.sampling.max_tokens}
        members = {events.SHORTENED: bounds} if self.shortened_from else {}
        return {**truncation, **members, **self._extended_echo}

    @property
    def _extended_echo(self) -> dict[str, Any]:
        logprobs = self.sampling.logprobs
        spoken = (self.format, self.reasoning, self.verbosity, logprobs)
        if self.tools is NO_TOOLS and spoken == (None, None, None, None):
            return {}
        extension: dict[str, Any] = {
            "tools": list(self.tools.echo),
            "tool_choice": self.tools.choice_echo,
            "parallel_tool_calls": self.tools.parallel,
            "max_tool_calls": self.tools.max_calls,
            "reasoning": self.reasoning.echo if self.reasoning is not None else None,
            "top_logprobs": logprobs or 0,
        }
        members = {name: value for name, value in extension.items() if value != _UNASKED[name]}
        text: dict[str, Any] = {"format": {"type": "text"}}
        if self.format is not None and self.format.echo is not None:
            text["format"] = self.format.echo
        if self.verbosity is not None:
            text["verbosity"] = self.verbosity
        return members if text == _TEXT else {**members, "text": text}


def with_key(create: Create, key: str | None, body: Body) -> Create:
    """The same with the key of an `Idempotency-Key` header. `body` is what `create` was made from.

    Raises:
        errors.ApiError: longer than a key may be.
    """
    if not key:
        return create
    checked_key(key)
    # The same body may ask for a response, by another path.
    keyed_body = body if create.embed is None else {**body, "object": events.EMBEDDINGS}
    return dataclasses.replace(create, idempotency_key=key, body_digest=body_digest(keyed_body))


def checked_key(key: str) -> str:
    """The key as it is. Raises errors.ApiError: longer than a key may be."""
    if len(key) > MAX_LABEL_CHARS:
        raise errors.invalid_value(
            "Idempotency-Key", f"An idempotency key has at most {MAX_LABEL_CHARS} characters."
        )
    return key


# How an answer is delivered. A request that differs only in these asks for the same response.
_DELIVERY_FIELDS: Final = frozenset(
    {"type", "stream", "stream_options", "stream_id", "idempotency_key"}
)


def body_digest(body: Body) -> str:
    """Digest of what a client asks for, in canonical form: members sorted, without those that are
    null or say only how the answer is delivered. Fields that this product ignores count too."""
    significant = {
        name: value
        for name, value in body.items()
        if value is not None and name not in _DELIVERY_FIELDS
    }
    try:
        canonical = msgspec.json.encode(significant, order="sorted")
    except (UnicodeError, RecursionError) as error:
        raise errors.invalid_json() from error
    return hashlib.blake2b(canonical, digest_size=16).hexdigest()
