"""Records of the log: JSON by msgspec, tagged by `t`, versioned by `v` (pure).

JSON, so that Flink SQL, kcat and any console can read them. A record that does not parse, or has an
unknown type or version, is *garbage*: `decode` says so by returning None and never raises, because
one bad record must not stall a partition (log rule §4).
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, Final, TypeVar

import msgspec

VERSION: Final = 1
MAX_RECORD_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 64  # nesting of arrays and objects in one record; a Response object needs five

# Exact in every JSON reader, JavaScript's included; a larger number could not be shown to a client.
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Token counts of one response. `output_tokens` is END.seq for engines that give ids;
    `cached_tokens` were served from the prefix cache."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    cached_tokens: Count = 0


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whose response it is: the principal's identity, without scopes or expiry."""

    issuer: str
    subject: str
    tenant: str = ""

    @property
    def key(self) -> str:
        """Stable text for maps, metrics-free: `issuer|tenant|subject`."""
        return f"{self.issuer}|{self.tenant}|{self.subject}"


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bounded sampling parameters, already checked by the gateway. `max_tokens` counts output
    tokens of the whole response."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    logit_bias: dict[str, float] = {}
    top_logprobs: int = 0


class Request(msgspec.Struct, tag_field="t", tag="REQUEST", frozen=True, omit_defaults=True):
    """What to generate; on `llm.requests.<pool>.<class>[p]`, key = rid.

    `messages` is the whole resolved context (chat messages, instructions first), so that a lost
    session is rebuilt from one record and the answer. `echo` is the static part of the public
    Response object; it is copied verbatim into the first CLAIM so that `llm.tokens` explains
    itself. `input` are this turn's items as the client gave them; `generate` false is a warm-up
    that ends at once with no output.
    """

    rid: str
    owner: Owner
    model: str
    messages: list[dict[str, Any]]
    sampling: Sampling
    echo: dict[str, Any]
    input: list[dict[str, Any]] = []
    previous: str | None = None
    store: bool = True
    generate: bool = True
    ttl_ms: int = 600_000
    idempotency_key: str | None = None
    prefix: list[str] = []
    v: int = VERSION


class Claim(msgspec.Struct, tag_field="t", tag="CLAIM", frozen=True, omit_defaults=True):
    """A worker takes the response over from `prev` (null: nobody).

    `worker` names one process incarnation; `prompt_tokens` is for the usage of a cancel.
    """

    rid: str
    own: str
    prev: str | None
    owner: Owner
    worker: str
    req_topic: str
    req_offset: Count
    model_rev: str
    tokenizer_digest: str
    prompt_tokens: Count = 0
    echo: dict[str, Any] = {}
    v: int = VERSION


class Tok(msgspec.Struct, tag_field="t", tag="TOK", frozen=True, omit_defaults=True):
    """One frame: `ids[0]` is token `seq`; `parent` is the rolling hash before it; `ts` the worker's
    send time in ms (for measuring hops only)."""

    rid: str
    own: str
    seq: Count
    ids: Annotated[list[TokenId], msgspec.Meta(min_length=1)]
    text: str
    parent: str
    ts: float = 0.0
    v: int = VERSION


class End(msgspec.Struct, tag_field="t", tag="END", frozen=True, omit_defaults=True):
    """The end, written once. `reason`: stop, length, expired, failed, warmup. `error` is (code,
    message) for failed."""

    rid: str
    own: str
    seq: Count
    reason: str
    digest: str
    text_tail: str = ""
    usage: Usage = Usage()
    error: tuple[str, str] | None = None
    v: int = VERSION


class Cancel(msgspec.Struct, tag_field="t", tag="CANCEL", frozen=True, omit_defaults=True):
    """Cancel, by the owner `by`. `echo` makes a response that was cancelled before any CLAIM
    readable from `llm.tokens` alone."""

    rid: str
    by: Owner
    echo: dict[str, Any] = {}
    v: int = VERSION


class Yield(msgspec.Struct, tag_field="t", tag="YIELD", frozen=True, omit_defaults=True):
    """A draining worker asks to be taken over now; it changes no ownership."""

    rid: str
    own: str
    seq: Count
    v: int = VERSION


class Deleted(msgspec.Struct, tag_field="t", tag="DELETED", frozen=True, omit_defaults=True):
    """On `llm.conversations`, key = rid: the owner deleted the response; reads answer 404 from here
    on."""

    rid: str
    by: Owner
    v: int = VERSION


class Incarnation(
    msgspec.Struct, tag_field="t", tag="INCARNATION", frozen=True, omit_defaults=True
):
    """On `llm.meta`, key `incarnation`: which log this is. Written once, when `llm.tokens` is
    created."""

    id: str
    v: int = VERSION


class Metered(msgspec.Struct, tag_field="t", tag="USAGE", frozen=True, omit_defaults=True):
    """On `llm.usage`, key = owner: one finished response; billed once per rid."""

    rid: str
    owner: Owner
    model: str
    model_rev: str
    status: str
    usage: Usage
    claims: int
    worker: str
    ts: int
    prompt_digest: str = ""
    ids_digest: str = ""
    v: int = VERSION


class Dead(msgspec.Struct, tag_field="t", tag="DEAD", frozen=True, omit_defaults=True):
    """On `llm.dlq`, key = rid: a response that failed by attempts. Never holds the prompt."""

    rid: str
    owner: Owner
    model: str
    reason: str
    attempts: int
    req_topic: str
    req_offset: int
    prompt_digest: str
    v: int = VERSION


TokenRecord = Claim | Tok | End | Cancel | Yield
Record = Request | TokenRecord | Deleted | Incarnation | Metered | Dead

T = TypeVar("T", bound=Request | TokenRecord | Deleted | Incarnation)

_encoder = msgspec.json.Encoder()
_tokens = msgspec.json.Decoder(TokenRecord)
_requests = msgspec.json.Decoder(Request)
_conversations = msgspec.json.Decoder(Deleted)
_meta = msgspec.json.Decoder(Incarnation)


def encode(record: Record) -> bytes:
    """The record's bytes."""
    return _encoder.encode(record)


def _decode(decoder: msgspec.json.Decoder[T], value: bytes | None) -> T | None:
    if value is None:
        return None
    if _too_deep(value):
        return None
    try:
        record = decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return record if record.v == VERSION else None


_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")


def _too_deep(value: bytes) -> bool:
    """Whether arrays and objects are nested deeper than MAX_DEPTH.

    The parser's own bound depends on how deep the caller's stack is, so two readers could disagree
    on whether a record is garbage.
    """
    if (
        value.count(b"[") + value.count(b"{") <= MAX_DEPTH
    ):  # nearly every record; brackets inside text only cost the walk below
        return False
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b"", value)):
        depth += 1 if bracket.group() in b"[{" else -1
        if depth > MAX_DEPTH:
            return True
    return False


def decode_token(value: bytes | None) -> TokenRecord | None:
    """A record of `llm.tokens`, or None for garbage."""
    return _decode(_tokens, value)


def token_of(key: bytes | None, value: bytes | None) -> TokenRecord | None:
    """As `decode_token`, and None where the key names another response: readers that look at keys
    and readers that do not must agree."""
    record = decode_token(value)
    return record if record is not None and key == record.rid.encode() else None


def decode_request(value: bytes | None) -> Request | None:
    """A record of a request topic, or None for garbage."""
    return _decode(_requests, value)


def decode_conversation(value: bytes | None) -> Deleted | None:
    """A record of `llm.conversations`, or None for garbage."""
    return _decode(_conversations, value)


def decode_meta(value: bytes | None) -> Incarnation | None:
    """The incarnation record of `llm.meta`, or None for garbage."""
    return _decode(_meta, value)


def prompt_digest(messages: list[dict[str, Any]]) -> str:
    """Digest of a prompt, for audit and dead letters, which must not hold the prompt itself."""
    return hashlib.blake2b(
        msgspec.json.encode(messages, order="sorted"), digest_size=16
    ).hexdigest()
