"""Responses of an OpenAI-compatible server: an error status, or a stream of chunks."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple

from tailrace.protocol import records
from worker.engines import base, openai_items

MAX_LINE_BYTES: Final = 4 << 20
MAX_MESSAGE_CHARS: Final = 1000
_RETRIABLE: Final = frozenset({408, 409, 425})
_WRONG_REQUEST: Final = frozenset({400, 413, 415, 422})
# Codes of the API for an invalid request (`gateway.answers.failures`).
_CODES: Final = frozenset(
    {
        "context_length_exceeded",
        "invalid_prompt",
        "invalid_image",
        "invalid_value",
        "unsupported_parameter",
        "unsupported_value",
    }
)

# As servers say it: vLLM and SGLang, llama.cpp and LM Studio, hosted APIs.
_TOO_LONG: Final = re.compile(
    r"context[ _-]?(length|size|window)|prompt is too long|input token count", re.IGNORECASE
)


class Misconfigured(base.Refused):
    """The server refuses the operator's configuration, not the client's request. `trouble`: the
    problem that the operator must know."""

    def __init__(self, code: str, message: str, trouble: str) -> None:
        super().__init__(code, message)
        self.trouble = trouble


class Overloaded(base.Busy):
    """The server is overloaded or unreachable. `requested_s`: the pause that it requests, None for
    none. `rate_limit`: it reports too many requests."""

    def __init__(
        self, why: str, requested_s: float | None = None, *, rate_limit: bool = False
    ) -> None:
        client_error = (
            ("rate_limit_exceeded", "The model's server has too many requests.")
            if rate_limit
            else ("server_error", "The model's server is not available.")
        )
        super().__init__(why, requested_s or 0.0, *client_error)
        self.requested_s, self.rate_limit = requested_s, rate_limit


class Prefix(NamedTuple):
    """The part of an answer that exists already.

    Attributes:
        tokens: number of them, as the server counts.
        space: white space at the end of the text that the server did not get. It generates it
            again.
    """

    tokens: int = 0
    space: str = ""


def failure(status: int, headers: Mapping[str, str], content: bytes) -> base.EngineError:
    """The error for an answer that is not 200."""
    return _failure(status, _error_in(content), retry_after_s(headers))


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The pause that a response requests, in s; None if it requests none or is unreadable. OpenAI's
    servers use `retry-after-ms`; `retry-after` is seconds or an HTTP date."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            pause_s = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        return pause_s if 0 < pause_s < float("inf") else None
    until = _time(headers.get("retry-after", ""))
    if until is None:
        return None
    # By the server's own clock, if it sends the time.
    now = _time(headers.get("date", "")) or datetime.now(UTC)
    pause_s = (until - now).total_seconds()
    return pause_s if pause_s > 0 else None


def _time(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _failure(status: int, error: dict[str, Any], pause_s: float | None) -> base.EngineError:
    code, message = error.get("code"), error.get("message")
    if status in (401, 403):
        # The server's text may contain a part of the key.
        trouble = f"the server refuses the credential ({status})"
        text = "The model's server refuses the credential of this deployment."
        return Misconfigured("engine_unauthorized", text, trouble)
    if "insufficient_quota" in (code, error.get("type")):
        trouble = "the server says that the quota is used up (insufficient_quota)"
        return Misconfigured("engine_unauthorized", "The model's quota is used up.", trouble)
    if status in (429, 503):
        return Overloaded(f"the server answered {status}", pause_s, rate_limit=status == 429)
    if status in _WRONG_REQUEST:
        text = str(message or f"The model's server refused the request ({status}).")
        if code not in _CODES:
            code = "context_length_exceeded" if _TOO_LONG.search(text) else "engine_refused"
        return base.Refused(str(code), text[:MAX_MESSAGE_CHARS])
    if status in _RETRIABLE or status >= 500:
        return base.Transient(f"the server answered {status}")
    # For example 404: the model's name or the URL is wrong.
    text = f"The model's server does not serve this model ({status})."
    return Misconfigured("engine_misconfigured", text, f"the server answered {status}")


def _error_in(content: bytes) -> dict[str, Any]:
    """The error object of a body; empty if it has none."""
    try:
        members = json.loads(content)
    except ValueError:
        return {}
    members = members.get("error", members) if isinstance(members, dict) else {}
    if isinstance(members, str):
        return {"message": members}
    return members if isinstance(members, dict) else {}


async def steps(
    content: AsyncIterator[bytes], so_far: Prefix, *, items: bool
) -> AsyncIterator[base.Step]:
    """Chunks to steps. The last step waits for the usage, which follows the finish reason.

    A chunk without text, or a comment, is a step without ids: a sign of life. `items`: the answer
    may be more than one message.

    Raises:
        NotResumable: the rest of an answer that has text already is not text alone.
        EngineError: the stream is not whole.
    """
    finish, usage, chunks = None, None, 0
    writer, space = openai_items.Writer(), so_far.space
    async for line in _lines(content):
        chunk = _chunk(line)
        if chunk is None:
            yield base.Step(())
            continue
        if not chunk:
            break
        usage = _usage(chunk) or usage
        choice = (chunk.get("choices") or [{}])[0]
        delta = choice.get("delta") or {}
        finish = choice.get("finish_reason") or finish
        if so_far.tokens and _thinks(delta):
            raise base.NotResumable
        try:
            ids = writer.delta(delta, items=items)
        except openai_items.BadCall as error:
            raise base.Transient("the server sent a call that cannot be read") from error
        while ids and space and ids[0] == ord(space[0]):
            ids, space = ids[1:], space[1:]
        space = "" if ids else space
        chunks += bool(delta.get("content") or _thinks(delta) or delta.get("tool_calls"))
        yield base.Step(ids)
    if finish is not None and (ids := writer.finish()):
        yield base.Step(ids)
    yield _last(finish, usage, chunks, so_far)


def _last(
    finish: str | None, usage: records.Usage | None, chunks: int, so_far: Prefix
) -> base.Step:
    if finish is None:
        raise base.Transient("the server's stream ended without a finish reason")
    if finish in ("error", "abort"):
        raise base.Transient(f"the server ended its stream ({finish})")
    if finish == "content_filter":
        raise base.Refused("content_filter", "The model's server has filtered the answer.")
    # A server that counts nothing sends about one token per chunk.
    counts = usage or records.Usage(output_tokens=chunks)
    whole = records.Usage(
        max(0, counts.input_tokens - so_far.tokens),
        counts.output_tokens + so_far.tokens,
        min(counts.cached_tokens, max(0, counts.input_tokens - so_far.tokens)),
        counts.reasoning_tokens,
    )
    return base.Step((), "length" if finish == "length" else "stop", whole.cached_tokens, whole)


async def _lines(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of a stream. Only a line feed ends one: text in JSON may hold other separators."""
    rest = b""
    async for piece in content:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            if line.strip():
                yield line.strip()
        if len(rest) > MAX_LINE_BYTES:
            raise base.Transient("the server sent a line that is too long")
    if rest.strip():
        yield rest.strip()


def _chunk(line: bytes) -> dict[str, Any] | None:
    """The object in a line; None without one, empty at the end of the stream.

    Raises:
        EngineError: it is not an object, or reports a failure of the server.
    """
    if not line.startswith(b"data:"):
        return None
    data = line.removeprefix(b"data:").strip()
    if data == b"[DONE]":
        return {}
    try:
        chunk = json.loads(data)
    except ValueError as error:
        raise base.Transient("the server sent a chunk that is not JSON") from error
    if not isinstance(chunk, dict) or not isinstance(chunk.get("choices") or [], list):
        raise base.Transient("the server sent a chunk that is not an object")
    if chunk.get("error"):
        raise _in_stream(_error_in(data))
    return chunk or None


def _in_stream(error: dict[str, Any]) -> base.EngineError:
    """The error for one in mid-stream; vLLM's has a status as its code."""
    status = error.get("code")
    if isinstance(status, int) and 400 <= status < 600 and status not in (429, 503):
        return _failure(status, error, None)
    return base.Transient("the server failed in mid-stream")


def _thinks(delta: dict[str, Any]) -> bool:
    return any(openai_items.text_in(delta, name) for name in openai_items.THOUGHTS)


def _usage(chunk: dict[str, Any]) -> records.Usage | None:
    counts = chunk.get("usage")
    if not isinstance(counts, dict):
        return None
    prompt = counts.get("prompt_tokens_details") or {}
    answer = counts.get("completion_tokens_details") or {}
    return records.Usage(
        _count(counts.get("prompt_tokens")),
        _count(counts.get("completion_tokens")),
        _count(prompt.get("cached_tokens")),
        _count(answer.get("reasoning_tokens")),
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**31 else 0
