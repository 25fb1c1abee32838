"""The HTTP routes that create responses, in both dialects.

Handlers take the raw request: `gateway.parsing` validates it, so that clients never see an error
format of the framework.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import secrets
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.answers import chat_completions, compactions, embeddings, failures, text_completions
from gateway.files.files import Files
from gateway.parsing import (
    auto_model,
    chat_api,
    command,
    completions_api,
    embeddings_api,
    responses_api,
)
from gateway.requests import choices
from gateway.requests.submission import Submission
from gateway.requests.withdrawals import Withdrawals
from gateway.responses import response_stream
from gateway.routes import large_bodies, request_body
from tailrace import log, settings, telemetry
from tailrace.auth.principal import CredentialScope, Principal
from tailrace.delivery import kept_bytes
from tailrace.protocol import errors, events, records, seals
from tailrace.web import access, drain, encoded_json, error_mapping, event_stream, write_deadline

INPUT: Final = "input"
Parse = Callable[[dict[str, Any], settings.Catalog], command.Create]
GROUP_BYTES: Final = 12  # length of the name that the choices of a completion share

E = TypeVar("E")
T = TypeVar("T")
E_co = TypeVar("E_co", covariant=True)


class Followable(event_stream.Source[E_co], Protocol[E_co]):
    """A stream that a connection follows: a context manager that releases it."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer."""

    def __enter__(self) -> object: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    async def to_end(self) -> None:
        """Read all events."""

    def release(self) -> None:
        """Release it."""


class CreateRoutes:
    """`POST` of responses, completions and embeddings."""

    def __init__(
        self,
        config: settings.GatewaySettings,
        pools: settings.CurrentPools,
        gate: access.Access,
        submission: Submission,
        withdrawals: Withdrawals,
        draining: drain.Draining,
        checks: write_deadline.DeadlineChecks,
        budget: kept_bytes.KeptBytes,
        large: large_bodies.LargeBodies,
        files: Files,
        seal_keys: seals.Keys | None,
    ) -> None:
        """`seal_keys`: None to seal nothing."""
        self._budget = budget
        self._large = large
        self._files = files
        self._seal_keys = seal_keys
        self._config = config
        searches = config.searches
        self._parse = functools.partial(responses_api.parse, searches=searches)
        self._parse_count = functools.partial(responses_api.parse_count, searches=searches)
        self._pools = pools
        self._gate = gate
        self._submission = submission
        self._withdrawals = withdrawals
        self._draining = draining
        self._checks = checks

    def in_front_of(self, app: ASGIApp) -> ASGIApp:
        """An ASGI app that serves these routes itself and passes other requests to `app`; `app`
        alone if spans are exported.

        The layers of the framework cost a tenth of a request, and one call for each event. They
        make the spans, so with spans `app` serves these routes itself.
        """
        if telemetry.exporting():
            return app
        hot = {
            "/v1/responses": self.create,
            "/v1/chat/completions": self.chat,
            "/v1/completions": self.text,
            "/v1/embeddings": self.embeddings,
        }

        async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
            handler = (
                hot.get(scope["path"])
                if scope["type"] == "http" and scope["method"] == "POST"
                else None
            )
            if handler is None:
                await app(scope, receive, send)
                return
            try:
                response = await handler(Request(scope, receive, send))
            except errors.ApiError as error:
                response = error_mapping.error_response(error)
            await response(scope, receive, send)

        return dispatch

    async def create(self, request: Request) -> Response:
        """`POST /v1/responses`."""
        principal, create, stream = await self._create_one(request, auto_model.reading(self._parse))
        if create.stream:
            return self._body_of(principal, stream, events.Event.sse)
        if create.background:
            with stream:
                return encoded_json.EncodedJSON(
                    stream.subscription.response, headers=stream.headers
                )
        await self._wait_for_end(principal, stream, request)
        if stream.final is not None and (wrong := failures.wrong_request(stream.final, INPUT)):
            raise wrong
        return encoded_json.EncodedJSON(stream.final, headers=stream.headers)

    async def count(self, request: Request) -> Response:
        """`POST /v1/responses/input_tokens`: counted here, or by a worker if this process lacks the
        model's tokenizer."""
        headers: dict[str, str] = {}

        async def submit(
            create: command.Create, principal: Principal
        ) -> int | response_stream.ResponseStream:
            headers.update(create.headers)
            tokens = await self._submission.count(create, principal)
            return await self._submission.submit(create, principal) if tokens is None else tokens

        principal, tokens = await self._submit_body(
            request, auto_model.reading(self._parse_count), submit
        )
        if not isinstance(tokens, int):
            stream = tokens
            await self._wait_for_end(principal, stream, request)
            headers.update(stream.headers)
            final = stream.final
            assert final is not None
            if final["status"] != "completed":
                raise failures.error_of(final, INPUT)
            tokens = final["usage"]["input_tokens"]
        return encoded_json.EncodedJSON(
            {"object": "response.input_tokens", "input_tokens": tokens}, headers=headers
        )

    async def compact(self, request: Request) -> Response:
        """`POST /v1/responses/compact`."""
        keys = compactions.check(request.url.path, self._seal_keys)
        principal, _, stream = await self._create_one(
            request, auto_model.reading(responses_api.parse_compact)
        )
        logged_request = records.decode_request(stream.request)
        await self._wait_for_end(principal, stream, request)
        final = stream.final
        assert final is not None
        if final["status"] not in ("completed", "incomplete"):
            raise failures.error_of(final, INPUT)
        if logged_request is None:
            raise errors.server_error()
        owner = access.owner_of(principal)
        # Without the request for a summary.
        try:
            messages = await self._files.whole(owner, logged_request.messages[:-1])
        except error_mapping.DELIVERY_ERRORS as error:
            raise error_mapping.api_error(stream.rid, error) from error
        body = compactions.body(final, messages, owner, keys)
        return encoded_json.EncodedJSON(body, headers=stream.headers)

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""

        def parse(body: dict[str, Any], catalog: settings.Catalog) -> command.Create:
            create = chat_api.parse(body, catalog)
            choice = records.Choice(secrets.token_hex(GROUP_BYTES), count=create.choices)
            return dataclasses.replace(create, choice=choice)

        principal, create, choice_streams = await self._create_choices(request, parse)
        if create.stream:
            body = chat_completions.Stream(
                choice_streams.echoes,
                include_usage=create.usage_in_stream,
                logprobs=create.sampling.logprobs is not None,
            )
            if len(choice_streams.streams) == 1:  # nothing to merge
                return self._body_of(principal, choice_streams.streams[0], body.encode)
            return self._body_of(principal, choice_streams, body.encode_choice)
        await self._wait_for_end(principal, choice_streams, request)
        whole = chat_completions.completion(choice_streams.finals)
        return encoded_json.EncodedJSON(whole, headers=choice_streams.headers)

    async def text(self, request: Request) -> Response:
        """`POST /v1/completions`."""
        calls: list[completions_api.CompletionRequest] = []

        def parse(body: dict[str, Any], catalog: settings.Catalog) -> command.Create:
            calls.append(completions_api.parse(body, catalog))
            return calls[0].creates[0]

        def prompts(first: command.Create) -> list[command.Create]:
            key, digest = first.idempotency_key, first.body_digest
            return [
                dataclasses.replace(each, idempotency_key=key, body_digest=digest)
                for each in calls[0].creates
            ]

        principal, create, choice_streams = await self._create_choices(request, parse, prompts)
        texts, echo = calls[0].prompts, calls[0].echo
        if create.stream:
            body = text_completions.Stream(
                choice_streams.echoes,
                texts,
                include_usage=create.usage_in_stream,
                logprobs=create.sampling.logprobs is not None,
                echo=echo,
            )
            return self._body_of(principal, choice_streams, body.encode_choice)
        await self._wait_for_end(principal, choice_streams, request)
        whole = text_completions.completion(choice_streams.finals, texts, echo=echo)
        return encoded_json.EncodedJSON(whole, headers=choice_streams.headers)

    async def embeddings(self, request: Request) -> Response:
        """`POST /v1/embeddings`."""
        calls: list[embeddings_api.EmbeddingsRequest] = []

        def parse(body: dict[str, Any], catalog: settings.Catalog) -> command.Create:
            calls.append(embeddings_api.parse(body, catalog))
            return calls[0].creates[0]

        def parts(first: command.Create) -> list[command.Create]:
            key, digest = first.idempotency_key, first.body_digest
            return [
                dataclasses.replace(each, idempotency_key=key, body_digest=digest)
                for each in calls[0].creates
            ]

        principal, _, choice_streams = await self._create_choices(request, parse, parts)
        await self._wait_for_end(principal, choice_streams, request)
        finals = [stream.final for stream in choice_streams.streams if stream.final is not None]
        embeddings.check(finals)
        vectors = [stream.subscription.vectors for stream in choice_streams.streams]
        pieces = []
        for piece in embeddings.body(finals, vectors, calls[0].encoding):
            pieces.append(piece)
            await asyncio.sleep(0)  # other tasks run in between
        return Response(
            b"".join(pieces), media_type="application/json", headers=choice_streams.headers
        )

    def _body_of(
        self,
        principal: Principal,
        stream: Followable[E],
        encode: Callable[[E], bytes],
    ) -> Response:
        return event_stream.EventStream(
            stream,
            self._gate.room.counted(principal, stream.release),
            self._draining,
            self._checks,
            self._gate.admitted,
            principal,
            encode=encode,
            headers=stream.headers,
            clock=self._gate.clock,
            later=self._gate.later,
        )

    async def _create_one(
        self, request: Request, parse: Parse
    ) -> tuple[Principal, command.Create, response_stream.ResponseStream]:
        """Parse and submit."""
        principal, create, choice_streams = await self._create_choices(request, parse)
        return principal, create, choice_streams.streams[0]

    async def _create_choices(
        self,
        request: Request,
        parse: Parse,
        prompts: Callable[[command.Create], Sequence[command.Create]] = lambda create: (create,),
    ) -> tuple[Principal, command.Create, choices.Choices]:
        """Parse and submit a body with several choices or prompts."""

        async def submit(
            create: command.Create, principal: Principal
        ) -> tuple[command.Create, choices.Choices]:
            creates = choices.requests(create, prompts(create))
            choice_streams = await choices.submit(
                self._submission, self._withdrawals, creates, principal
            )
            for headers in (choice_streams.headers, choice_streams.streams[0].headers):
                headers.update(create.headers)
            return create.without_input, choice_streams

        principal, (create, choice_streams) = await self._submit_body(request, parse, submit)
        return principal, create, choice_streams

    async def _submit_body(
        self,
        request: Request,
        parse: Parse,
        submit: Callable[[command.Create, Principal], Awaitable[T]],
    ) -> tuple[Principal, T]:
        """Parse and submit."""
        principal = await self._gate.principal(request, CredentialScope.CREATE)
        # From the submission on, the request record counts instead.
        with self._budget.account(principal.key) as account:
            body = await request_body.receive(
                request,
                self._config.max_http_bytes,
                account,
                for_images=request_body.IMAGES_BYTES,
            )
            large = len(body) > request_body.LARGE_BYTES
            turn = self._large.turn() if large else contextlib.nullcontext()
            key = request.headers.get("idempotency-key")
            async with turn:
                create = await request_body.parse_body(
                    body,
                    lambda fields: command.with_key(
                        parse(fields, self._pools.catalog), key, fields
                    ),
                )
                return principal, await submit(create, principal)

    async def _wait_for_end(
        self,
        principal: Principal,
        stream: Followable[Any],
        request: Request,
    ) -> None:
        """Wait for the end of the response, unless the client leaves, its credential is revoked or
        this process drains.

        Raises:
            errors.ApiError: the log lost the response; 401; or 503, the response continues without
                this request.
        """
        with stream, self._gate.admitted.revoked(principal) as revoked:
            tasks = [
                asyncio.ensure_future(t)
                for t in (
                    stream.to_end(),
                    event_stream.wait_for_disconnect(request.receive),
                    self._draining.wait(),
                    revoked,
                )
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if tasks[0].done():
                    tasks[0].result()
            except log.HistoryLost as error:
                raise errors.history_lost(stream.rid) from error
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        self._gate.permit(principal)
        if not stream.ended:
            raise errors.unavailable(
                f"This instance is shutting down; the response goes on as {stream.rid}."
            )
