"""Readers of version 1, as they were before marks: what an instance makes of records that has not
been upgraded yet. Frozen: it does not follow `tailrace.protocol.records`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from tailrace.protocol import records

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    input_tokens: Count = 0
    output_tokens: Count = 0
    cached_tokens: Count = 0


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
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
    rid: str
    owner: records.Owner
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
    body_digest: str | None = None
    append_by: Count = 0
    v: int = 1


class Claim(msgspec.Struct, tag_field="t", tag="CLAIM", frozen=True, omit_defaults=True):
    rid: str
    own: str
    prev: str | None
    owner: records.Owner
    worker: str
    req_topic: str
    req_offset: Count
    model_rev: str
    tokenizer_digest: str
    prompt_tokens: Count = 0
    echo: dict[str, Any] = {}
    v: int = 1


class Tok(msgspec.Struct, tag_field="t", tag="TOK", frozen=True, omit_defaults=True):
    rid: str
    own: str
    seq: Count
    ids: Annotated[list[Annotated[int, msgspec.Meta(ge=0, lt=2**32)]], msgspec.Meta(min_length=1)]
    text: str
    parent: str
    ts: float = 0.0
    v: int = 1


class End(msgspec.Struct, tag_field="t", tag="END", frozen=True, omit_defaults=True):
    rid: str
    own: str
    seq: Count
    reason: str
    digest: str
    text_tail: str = ""
    usage: Usage = Usage()
    error: tuple[str, str] | None = None
    v: int = 1


class Cancel(msgspec.Struct, tag_field="t", tag="CANCEL", frozen=True, omit_defaults=True):
    rid: str
    by: records.Owner
    echo: dict[str, Any] = {}
    withdrawn: bool = False
    v: int = 1


class Yield(msgspec.Struct, tag_field="t", tag="YIELD", frozen=True, omit_defaults=True):
    rid: str
    own: str
    seq: Count
    v: int = 1


_tokens = msgspec.json.Decoder(Claim | Tok | End | Cancel | Yield)
_requests = msgspec.json.Decoder(Request)


def reads_request(value: bytes) -> bool:
    """Whether a request is one to it, and not garbage."""
    return _requests.decode(value).v == 1


def decode_token(value: bytes) -> records.TokenRecord | None:
    """What it reads of a record of `llm.tokens`, as a record of today; None for garbage."""
    record = _tokens.decode(value)
    if record.v != 1:
        return None
    fields = msgspec.structs.asdict(record)
    if isinstance(record, End):
        fields["usage"] = records.Usage(**msgspec.structs.asdict(record.usage))
    kind: type[records.TokenRecord] = getattr(records, type(record).__name__)
    return kind(**fields)
