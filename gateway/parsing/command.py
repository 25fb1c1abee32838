"""The checked command, and the digest that identifies equal commands (pure)."""

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

# Defaults of these members in `events.echo`.
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
    """Chooses the model of a request for `auto` once its history is known
    (`gateway.parsing.auto_model`).

    Attributes:
        decide: maps the history to the request for the chosen model. It may take milliseconds, and
            raises errors.ApiError: no rule fits, or the model's pool refuses the request.
        candidates: returns the requests for all models that may be chosen.
    """

    decide: Callable[[Sequence[Mapping[str, Any]]], Create]
    candidates: Callable[[], list[Create]]


class Parent(NamedTuple):
    """The node that a turn follows, instead of the head; None: it starts a new branch at the
    root."""

    node: str | None


@dataclass(frozen=True, slots=True)
class Create:
    """A checked request for one response.

    Attributes:
        input: this turn as chat messages (`conversation.messages`), without instructions.
        items: the same, as the API shows it (`input_items`).
        turn: the same, as parsed. It may have references and sealed items, which only the log or a
            key can resolve (`conversation.to_resolve`).
        max_output_tokens: as requested, for the echo; the effective bound is in `sampling`.
        previous: id of the response that it continues; not yet resolved.
        fork: it begins with tokens of another response, and has the prompt of that response.
        search: the file search before it is written; None: no search.
        conversation: the id of its conversation.
        parent: the node that it follows there; None: the head.
        if_busy: what to do if its predecessor is still running.
        usage_in_stream: Chat Completions' `include_usage`.
        logprobs_param: the field that requested log probabilities; empty if none did.
        choices: the number of answers.
        choice: its place among the choices of a chat completion; None: not a chat completion.
        sealed: reasoning comes with `encrypted_content`.
        raw: `input` is one message, whose text is the prompt without any template.
        embed: the texts to embed; then nothing is generated.
        degrade: while the pool is busy, the answer may be shorter or another model's.
        whole: the answer is not shortened, whatever the client says.
        shortened_from: the requested bound, if the answer is shortened; else 0.
        truncate: older messages may be left out if the prompt is too long.
        cached: it is placed by its prefix, which an engine may have cached.
        deadline_ms: a request that has not started by then never starts.
        cached_answers: it may get a cached answer, and its answer may be cached.
        body_digest: digest of what the client sent; None without an idempotency key.
        pending: the model is only a candidate, with everything that depends on its pool; None: the
            model is final.
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
        """The command without its input: the log has it, and an answer may take long."""
        return dataclasses.replace(self, input=[], items=[], turn=(), pending=None)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer: the tools that were left out, because only their own server runs
        them."""
        return {HOSTED_TOOLS_HEADER: ", ".join(self.tools.hosted)} if self.tools.hosted else {}

    @property
    def echo(self) -> dict[str, Any]:
        """Members of the Response object that differ from their defaults."""
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
    """The command with the key of an `Idempotency-Key` header. `body`: the body of `create`.

    Raises:
        errors.ApiError: longer than a key may be.
    """
    if not key:
        return create
    checked_key(key)
    # The same body may request a response on another path.
    keyed_body = body if create.embed is None else {**body, "object": events.EMBEDDINGS}
    return dataclasses.replace(create, idempotency_key=key, body_digest=body_digest(keyed_body))


def checked_key(key: str) -> str:
    """The key, unchanged. Raises errors.ApiError: longer than a key may be."""
    if len(key) > MAX_LABEL_CHARS:
        raise errors.invalid_value(
            "Idempotency-Key", f"An idempotency key has at most {MAX_LABEL_CHARS} characters."
        )
    return key


# How an answer is delivered. Requests that differ only in these are for the same response.
_DELIVERY_FIELDS: Final = frozenset(
    {"type", "stream", "stream_options", "stream_id", "idempotency_key"}
)


def body_digest(body: Body) -> str:
    """Digest of a body in canonical form: members sorted, without null members and those that only
    affect delivery. Fields that this product ignores count too."""
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
