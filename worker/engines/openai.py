"""Any OpenAI-compatible server over HTTP: streamed chat completions.

Such a server sends text, not token ids. The ids of its responses are the Unicode code points of the
text (`openai_items`), and the server counts and bounds tokens itself.

A takeover continues the accepted text where the server supports that (`openai_canary`): the text is
the last message, left open. Otherwise a takeover with tokens in the log ends the response as
`not_resumable`, and one without tokens starts again. The same applies to answers that text alone
cannot continue: those with calls or reasoning so far, and those with a format or a required call,
whose grammar would begin anew.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

import httpx
from msgspec.structs import replace

from tailrace import settings, telemetry
from tailrace.prompts.chat_template import content_text
from tailrace.protocol import records
from tailrace.protocol.features import Feature
from tailrace.retry import retry_until
from worker.engines import (
    base,
    openai_answers,
    openai_body,
    openai_canary,
    openai_credentials,
    openai_items,
    openai_pace,
)
from worker.text import generation

CONNECT_S: Final = 5.0
READ_S: Final = 120.0  # between two reads; a big model may think long before its first chunk
PROBE_S: Final = 2.0
PROBE_PAUSE_S: Final = 0.5
CANARY_S: Final = 60.0
OPEN_AFTER_S: Final = 0.01  # timers may be early
BYTES_PER_TOKEN: Final = 4  # where the server does not count
_UNREACHABLE: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def create(s: settings.WorkerSettings) -> OpenAI:
    """The engine for these settings; `engine` is the server's base URL."""
    return OpenAI(
        url=s.engine,
        model=s.model,
        capacity=s.max_num_seqs,
        credentials=credentials_for(s),
        continuation=s.engine_continuation,
    )


def credentials_for(s: settings.WorkerSettings) -> openai_credentials.Credentials | None:
    """The credentials of the settings; None for a server without authentication."""
    if s.engine_token_url:
        assert s.engine_client_secret_file is not None
        return openai_credentials.ClientCredentials(
            openai_credentials.Client(
                s.engine_token_url,
                s.engine_client_id,
                s.engine_client_secret_file,
                s.engine_scope,
                s.engine_audience,
            )
        )
    if s.engine_key_file is not None:
        return openai_credentials.KeyFile(s.engine_key_file)
    return openai_credentials.Key(s.engine_key) if s.engine_key else None


class Detokenizer:
    """Ids are code points."""

    def push(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def flush(self) -> str:
        return ""


class OpenAI(base.Remote):
    """The engine; see the module's docstring.

    Attributes:
        _client: connections to the server. Closed by `shutdown`.
        _pace: the limit of responses at once.
        _running: requests that the server is running.
        _continuation: how the server continues text; known once it has started.
        _counts: the server counts the tokens of a text (`/tokenize`), as vLLM does.
    """

    ids_are_tokens = False
    tokenizer_digest = "unicode"
    stop_ids: frozenset[int] = frozenset()

    def __init__(
        self,
        *,
        url: str,
        model: str,
        capacity: int,
        credentials: openai_credentials.Credentials | None = None,
        continuation: str = "auto",
    ) -> None:
        super().__init__()
        self.capacity = capacity
        self.model_rev = model
        self.dead = asyncio.Event()
        # Only the server knows whether its model reads images; it refuses them otherwise.
        self.features: frozenset[Feature] = frozenset({"images"})
        self._model = model
        self._continuation_setting = continuation
        self._credentials = credentials
        self._client = httpx.AsyncClient(
            base_url=_base(url),
            auth=openai_credentials.Bearer(credentials) if credentials is not None else None,
            limits=httpx.Limits(max_connections=capacity + 4, max_keepalive_connections=capacity),
            timeout=httpx.Timeout(READ_S, connect=CONNECT_S),
        )
        self._pace = openai_pace.Pace(capacity)
        self._running = 0
        self._continuation = openai_canary.NO_CONTINUATION
        self._counts = False

    # ---- start and end ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Wait until the server answers and accepts the credential: it may still be loading its
        model, and a key may not be mounted yet. Then find out its abilities."""

        def on_failure(error: Exception) -> None:
            self._report_trouble(str(error) or type(error).__name__)

        again = (httpx.TransportError, base.Transient)
        await retry_until(self._probe, on=again, pause_s=PROBE_PAUSE_S, failed=on_failure)
        await retry_until(self._find_out, on=again, pause_s=PROBE_PAUSE_S, failed=on_failure)

    async def _probe(self) -> None:
        answer = await self._client.get("models", timeout=PROBE_S)
        if answer.status_code >= 500:
            raise base.Transient(f"the server answered {answer.status_code}")
        self.trouble = ""

    async def _find_out(self) -> None:
        """Find out the server's abilities. Retried later if the server asks to wait."""
        self._continuation = await self._continuation_offered()
        features: set[Feature] = {"images"}
        if self._continuation.offered:
            features.add("continuation")
        if await openai_canary.formats(self._ask):
            features.add("formats")
        if await openai_canary.tools(self._ask):
            features.add("tools")
        self.features = frozenset(features)
        self._counts = await self._server_count("one two three") is not None

    async def _continuation_offered(self) -> openai_canary.Continuation:
        if self._continuation_setting == "auto":
            return await openai_canary.continuation(self._ask)
        return openai_canary.Continuation(offered=self._continuation_setting == "on")

    async def _ask(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """See `openai_canary.Ask`.

        Raises:
            Transient, TransportError: no answer now.
        """
        body = {"model": self._model, **question}
        try:
            answer = await self._client.post("chat/completions", json=body, timeout=CANARY_S)
        except httpx.ReadTimeout:
            return None
        status = answer.status_code
        if status == 200:
            self.trouble = ""
            return _object(answer)
        error = openai_answers.failure(status, answer.headers, answer.content)
        if isinstance(error, openai_answers.Overloaded):
            self._back_off(error)
            await asyncio.sleep(min(error.pause_s, openai_pace.MAX_CLOSED_S))
            raise error
        if isinstance(error, openai_answers.Misconfigured):
            self._report_trouble(error.trouble)
            if status in (401, 403):
                raise base.Transient(error.trouble)
        if status in (502, 504):
            raise error
        return None

    async def shutdown(self) -> None:
        await self._client.aclose()
        if isinstance(self._credentials, openai_credentials.ClientCredentials):
            await self._credentials.aclose()

    # ---- generation ------------------------------------------------------------------------------

    async def encode(self, request: records.Request) -> list[int]:
        """Empty: the server renders and counts. Its usage arrives with the last step."""
        return []

    def trial_key(self) -> str | None:
        return ""  # its operator may replace it at any time

    async def generate(self, job: base.GenerationInput, on_step: base.OnStep) -> None:
        await base.call_with_each(self._stream(job), on_step)

    def detokenizer(self, prefix_ids: Sequence[int] = ()) -> generation.Detokenizer:
        return Detokenizer()

    def parser_name(self, request: records.Request) -> str:
        return openai_items.PARSER if _has_items(request) else ""

    async def item_parser(
        self, request: records.Request, prompt_ids: Sequence[int]
    ) -> base.ItemParser:
        return openai_items.Parser()

    async def _stream(self, job: base.GenerationInput) -> AsyncGenerator[base.Step, None]:
        text = self._text_so_far(job)
        closed_s = self._pace.closed_s(time.monotonic())
        if closed_s:
            raise base.Busy("the server has refused others a moment ago", closed_s)
        try:
            request = job.request
            prefix = content_text(request.messages[-1]["content"]) if request.continue_final else ""
            text = prefix + text
            # A space belongs to the token of the next word, so text that ends with one is unusual
            # for a model. It is left out, and the model generates it again.
            prompt_text = text.rstrip(" " if self._continuation.keeps_space else None)
            token_count = await self._tokens(prompt_text[len(prefix) :])
            so_far = openai_answers.Prefix(token_count, text[len(prompt_text) :])
            remaining = job.max_tokens - so_far.tokens
            request = await job.with_files()
            body = openai_body.body(
                request, self._model, max(1, remaining), prompt_text, so_far.tokens
            )
            if self._counts:  # vLLM: the speed of a shared prefix cache would reveal other prompts
                body["cache_salt"] = request.owner.cache_scope
            async with aclosing(self._answer(body, so_far, job)) as answer:
                async for step in answer:
                    if remaining > 0:
                        yield step
                    elif step.finish:  # one token was generated only for the prompt's count
                        assert step.usage is not None
                        usage = replace(step.usage, output_tokens=so_far.tokens)
                        yield base.Step((), "length", step.cached_tokens, usage)
        except _UNREACHABLE as error:
            overload = openai_answers.Overloaded(f"no connection to the server ({_name(error)})")
            self._back_off(overload)
            raise overload from error
        except (httpx.TransportError, httpx.StreamError) as error:
            raise base.Transient(f"{_name(error)}: {error}") from error
        except base.Busy as error:
            self._back_off(error)
            raise
        except openai_answers.Misconfigured as error:
            self._report_trouble(error.trouble)
            raise

    async def _answer(
        self, body: dict[str, Any], so_far: openai_answers.Prefix, job: base.GenerationInput
    ) -> AsyncGenerator[base.Step, None]:
        self._running += 1
        try:
            async with self._client.stream("POST", "chat/completions", json=body) as answer:
                if answer.status_code != 200:
                    content = await answer.aread()
                    error = openai_answers.failure(answer.status_code, answer.headers, content)
                    if so_far.tokens and type(error) is base.Refused:
                        raise base.NotResumable from error  # it accepted the same request before
                    raise error
                self.trouble = ""
                self._pace.note_answer()
                self._report_limit()
                items = _has_items(job.request)
                async for step in openai_answers.steps(answer.aiter_bytes(), so_far, items=items):
                    yield step
        finally:
            self._running -= 1

    def _text_so_far(self, job: base.GenerationInput) -> str:
        """The text that the answer has already.

        Raises:
            NotResumable: it cannot be continued.
        """
        if not job.output_so_far:
            return ""
        text = openai_items.text_of(job.output_so_far)
        request = job.request
        restricted = request.format is not None or request.tool_choice.mode == "required"
        if text is None or restricted or not self._continuation.offered:
            raise base.NotResumable
        return text

    async def _tokens(self, text: str) -> int:
        """Tokens of a text that the server made."""
        if not text:
            return 0
        count = await self._server_count(text) if self._counts else None
        return count or -(-len(text.encode()) // BYTES_PER_TOKEN)

    async def _server_count(self, text: str) -> int | None:
        """The server's count; None if it does not count. vLLM's `/tokenize` is outside `/v1`."""
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        answer = await self._client.post("../tokenize", json=body)
        count = (_object(answer) or {}).get("count") if answer.status_code == 200 else None
        return count if isinstance(count, int) and count > 0 else None

    # ---- the server's state ----------------------------------------------------------------------

    def _back_off(self, error: base.Busy) -> None:
        """Send nothing for a while. Sets the pause of the refused request."""
        now = time.monotonic()
        requested_s: float | None = error.pause_s
        rate_limit = False
        if isinstance(error, openai_answers.Overloaded):
            requested_s, rate_limit = error.requested_s, error.rate_limit
        error.pause_s = self._pace.note_refusal(
            now,
            requested_s=requested_s,
            draw=random.random(),
            running=max(1, self._running) if rate_limit else 0,
        )
        self._report_trouble(str(error))
        self._report_limit()
        loop = asyncio.get_running_loop()
        loop.call_later(self._pace.closed_s(now) + OPEN_AFTER_S, self._report_limit)

    def _report_limit(self) -> None:
        self.on_limit(self._pace.limit_now(time.monotonic()))

    def _report_trouble(self, trouble: str) -> None:
        if trouble != self.trouble:
            telemetry.log(telemetry.Action.WAITING, reason=trouble, upstream=self._model)
        self.trouble = trouble


def _has_items(request: records.Request) -> bool:
    """Whether readers of its answer support items: other requests may be of version 1."""
    return bool(request.tools or request.format is not None or request.reasoning)


def _object(answer: httpx.Response) -> dict[str, Any] | None:
    try:
        content = answer.json()
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _name(error: Exception) -> str:
    return type(error).__name__


def _base(url: str) -> str:
    parts = httpx.URL(url)
    return str(parts.copy_with(path="/v1/")) if parts.path in ("", "/") else f"{url.rstrip('/')}/"
