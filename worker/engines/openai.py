"""Any OpenAI-compatible server over HTTP: streamed chat completions.

Such a server sends text, not token ids. The ids of its responses are the Unicode code points of the
text, and the server counts and bounds tokens itself. It cannot continue in the middle of an answer:
a takeover with tokens in the log ends the response as `not_resumable`. One without starts again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Final

import httpx

from tailrace import settings
from tailrace.protocol import records
from tailrace.protocol.features import Feature
from tailrace.retry import retry_until
from worker import generation
from worker.engines import base
from worker.messages import chat

CONNECT_S: Final = 5.0
READ_S: Final = 120.0  # between two chunks; a big model may think long before its first
PROBE_S: Final = 2.0
PROBE_PAUSE_S: Final = 0.5
_RETRIABLE: Final = frozenset({408, 409, 425, 429})


def create(s: settings.WorkerSettings) -> OpenAI:
    """The engine for these settings; `engine` is the server's base URL."""
    return OpenAI(url=s.engine, model=s.model, capacity=s.max_num_seqs, key=s.engine_key or None)


class Detokenizer:
    """Ids are code points."""

    def push(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def flush(self) -> str:
        return ""


def code_points(text: str) -> list[int]:
    """The text's code points. U+FFFD replaces half of a surrogate pair: that is no character and
    cannot be encoded."""
    return [0xFFFD if 0xD800 <= ord(c) <= 0xDFFF else ord(c) for c in text]


class OpenAI(base.PlainText):
    """The engine; see the module's docstring.

    Attributes:
        _client: connections to the server. Closed by `shutdown`.
    """

    # Whether its model reads images only the server knows; it says so when asked.
    features: frozenset[Feature] = frozenset({"images"})
    ids_are_tokens = False
    tokenizer_digest = "unicode"
    stop_ids: frozenset[int] = frozenset()

    def __init__(self, *, url: str, model: str, capacity: int, key: str | None = None) -> None:
        self.capacity = capacity
        self.model_rev = model
        self.dead = asyncio.Event()
        self._model = model
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=capacity + 4, max_keepalive_connections=capacity)
        timeout = httpx.Timeout(READ_S, connect=CONNECT_S)
        self._client = httpx.AsyncClient(
            base_url=_base(url), headers=headers, limits=limits, timeout=timeout
        )

    async def start(self) -> None:
        """Wait until the server answers: it may still be loading its model."""
        await retry_until(
            self._probe, on=(httpx.TransportError, base.Transient), pause_s=PROBE_PAUSE_S
        )

    async def _probe(self) -> None:
        answer = await self._client.get("models", timeout=PROBE_S)
        if answer.status_code >= 500:
            raise base.Transient(f"the server answered {answer.status_code}")

    async def shutdown(self) -> None:
        await self._client.aclose()

    async def encode(self, request: records.Request) -> list[int]:
        """Nothing: the server renders and counts. Its usage comes with the last step."""
        return []

    async def generate(self, job: base.GenerationInput, on_step: base.OnStep) -> None:
        await base.call_with_each(self._stream(job), on_step)

    async def _stream(self, job: base.GenerationInput) -> AsyncGenerator[base.Step, None]:
        if job.output_so_far:
            raise base.NotResumable
        try:
            async with self._client.stream(
                "POST", "chat/completions", json=self._body(job, await job.whole())
            ) as answer:
                if answer.status_code != 200:
                    raise _refusal(answer.status_code, await answer.aread())
                async for step in _steps(answer.aiter_lines()):
                    yield step
        except (httpx.TransportError, httpx.StreamError) as error:
            raise base.Transient(f"{type(error).__name__}: {error}") from error

    def detokenizer(self) -> generation.Detokenizer:
        return Detokenizer()

    def _body(self, job: base.GenerationInput, request: records.Request) -> dict[str, Any]:
        s = request.sampling
        body: dict[str, Any] = {
            "model": self._model,
            "messages": chat(request.messages),
            "max_tokens": job.max_tokens,
            "temperature": s.temperature,
            "top_p": s.top_p,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        # Only what the client set: servers differ in what they accept.
        optional = {
            "presence_penalty": s.presence_penalty or None,
            "frequency_penalty": s.frequency_penalty or None,
            "stop": list(s.stop) or None,
            "seed": s.seed,
            "logit_bias": s.logit_bias or None,
        }
        return body | {k: v for k, v in optional.items() if v is not None}


def _base(url: str) -> str:
    parsed = httpx.URL(url)
    return str(parsed.copy_with(path="/v1/")) if parsed.path in ("", "/") else f"{url.rstrip('/')}/"


async def _steps(lines: AsyncIterator[str]) -> AsyncIterator[base.Step]:
    """Chunks to steps. The last step waits for the usage, which comes after the finish reason."""
    finish, usage, chunks = None, None, 0
    async for line in lines:
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data == "[DONE]":
            break
        chunk = _chunk(data)
        if chunk is None:
            continue
        usage = _usage(chunk) or usage
        choice = (chunk.get("choices") or [{}])[0]
        text = (choice.get("delta") or {}).get("content")
        finish = choice.get("finish_reason") or finish
        if text:
            chunks += 1
            yield base.Step(code_points(text))
    if finish is None:
        raise base.Transient("the server's stream ended without a finish reason")
    # A server that counts nothing sends about one token per chunk.
    usage = usage or records.Usage(output_tokens=chunks)
    yield base.Step((), "length" if finish == "length" else "stop", usage.cached_tokens, usage)


def _chunk(data: str) -> dict[str, Any] | None:
    if not data:
        return None
    try:
        chunk = json.loads(data)
    except ValueError as error:
        raise base.Transient("the server sent a chunk that is not JSON") from error
    if not isinstance(chunk, dict):
        raise base.Transient("the server sent a chunk that is not an object")
    if chunk.get("error"):
        raise base.Transient("the server failed in mid-stream")
    return chunk


def _usage(chunk: dict[str, Any]) -> records.Usage | None:
    found = chunk.get("usage")
    if not isinstance(found, dict):
        return None
    details = found.get("prompt_tokens_details") or {}
    return records.Usage(
        found.get("prompt_tokens") or 0,
        found.get("completion_tokens") or 0,
        details.get("cached_tokens") or 0,
    )


def _refusal(status: int, body: bytes) -> base.EngineError:
    if status >= 500 or status in _RETRIABLE:
        return base.Transient(f"the server answered {status}")
    try:
        error = json.loads(body)
        error = error.get("error", error)
        code, message = error.get("code"), error.get("message")
    except (ValueError, AttributeError):
        code, message = None, None
    return base.Refused(
        code if isinstance(code, str) else "engine_refused",
        str(message or f"The engine refused the request ({status}).")[:1000],
    )
