"""The checked command, and what makes two commands the same one (pure)."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.parsing.json_body import Body
from gateway.parsing.scalars import MAX_LABEL_CHARS
from tailrace.protocol import errors, records, topics


@dataclass(frozen=True, slots=True)
class Create:
    """A checked request for one response.

    Attributes:
        input: this turn as chat messages `{"role", "content"}`, without instructions.
        items: the same as the client is shown it (`input_items`).
        max_output_tokens: as asked, for the echo; the effective bound is in `sampling`.
        previous: the id this one continues; not yet resolved.
        usage_in_stream: Chat Completions' `include_usage`.
        body_digest: of what the client sent; None without an idempotency key.
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
    store: bool = True
    background: bool = False
    stream: bool = False
    generate: bool = True
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    parallel_tool_calls: bool = True
    idempotency_key: str | None = None
    usage_in_stream: bool = False
    body_digest: str | None = None

    @property
    def characters(self) -> int:
        """Length of this turn's text, for admission."""
        return sum(len(m["content"]) for m in self.input) + len(self.instructions or "")


def with_key(create: Create, key: str | None, body: Body) -> Create:
    """The same with the key of an `Idempotency-Key` header. `body` is what `create` was made from.

    Raises:
        errors.ApiError: longer than a key may be.
    """
    if not key:
        return create
    if len(key) > MAX_LABEL_CHARS:
        raise errors.invalid_value(
            "Idempotency-Key", f"An idempotency key has at most {MAX_LABEL_CHARS} characters."
        )
    return dataclasses.replace(create, idempotency_key=key, body_digest=body_digest(body))


# How an answer is delivered. A request that differs only in these asks for the same response.
_DELIVERY_FIELDS: Final = frozenset(
    {"type", "stream", "stream_options", "stream_id", "idempotency_key"}
)


def body_digest(body: Body) -> str:
    """Digest of what a client asks for, in canonical form: members sorted, without those that are
    null or say only how the answer is delivered. Fields that this product ignores count too."""
    asked = {
        name: value
        for name, value in body.items()
        if value is not None and name not in _DELIVERY_FIELDS
    }
    try:
        canonical = msgspec.json.encode(asked, order="sorted")
    except (UnicodeError, RecursionError) as error:
        raise errors.invalid_json() from error
    return hashlib.blake2b(canonical, digest_size=16).hexdigest()
