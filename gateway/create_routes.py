"""The HTTP routes that create responses, in both dialects.

Routes take the raw request: `gateway.parsing` validates, so that no error shape of the framework
ever shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import (
    chat_completions,
    request_body,
    response_stream,
    submission,
)
from gateway.parsing import chat_api, command, responses_api
from tailrace import log, settings, telemetry
from tailrace.auth.principal import CredentialScope, Principal
from tailrace.delivery import kept_bytes
from tailrace.protocol import errors, events
from tailrace.settings.shapes import Pool
from tailrace.web import access, drain, encoded_json, error_mapping, event_stream, write_deadline

Parse = Callable[[dict[str, Any], Sequence[Pool]], command.Create]


class CreateRoutes:
    """`POST /v1/responses` and `POST /v1/chat/completions`."""

    def __init__(
        self,
        config: settings.GatewaySettings,
        gate: access.Access,
        submit: submission.Submission,
        draining: drain.Draining,
        checks: write_deadline.DeadlineChecks,
        kept: kept_bytes.KeptBytes,
    ) -> None:
        self._kept = kept
        self._config = config
        self._gate = gate
        self._submit = submit
        self._draining = draining
        self._checks = checks

    def in_front_of(self, app: ASGIApp) -> ASGIApp:
        """`app` with these routes in front of it, unless spans are exported.

        Between them and the server a framework's layers take a tenth of a request's cost, and a
        call each for every event. The layers make the spans, so with spans `app` has the routes.
        """
        if telemetry.exporting():
            return app
        hot = {"/v1/responses": self.create, "/v1/chat/completions": self.chat}

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
        principal, create, stream = await self._created(request, responses_api.parse)
        if create.stream:
            return self._body_of(principal, stream, events.Event.sse)
        if create.background:
            with stream:
                return encoded_json.EncodedJSON(
                    stream.subscription.response, headers=stream.headers
                )
        whole = await self._whole(principal, stream, request)
        return encoded_json.EncodedJSON(whole, headers=stream.headers)

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        principal, create, stream = await self._created(request, chat_api.parse)
        if create.stream:
            chunks = chat_completions.Chunks(stream.echo, include_usage=create.usage_in_stream)
            return self._body_of(principal, stream, chunks.of)
        whole = await self._whole(principal, stream, request)
        return encoded_json.EncodedJSON(chat_completions.completion(whole), headers=stream.headers)

    def _body_of(
        self,
        principal: Principal,
        stream: response_stream.ResponseStream,
        encode: Callable[[events.Event], bytes],
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
        )

    async def _created(
        self, request: Request, parse: Parse
    ) -> tuple[Principal, command.Create, response_stream.ResponseStream]:
        """Parse and submit."""
        principal = await self._gate.principal(request, CredentialScope.CREATE)
        # What the submission makes of it counts from then on.
        with self._kept.account(principal.key) as account:
            body = await request_body.read(request, self._config.max_http_bytes, account)
            create = command.with_key(
                parse(body, self._config.pools), request.headers.get("idempotency-key"), body
            )
            stream = await self._submit.submit(create, principal)
        stream.headers.update(create.headers)
        return principal, create, stream

    async def _whole(
        self, principal: Principal, stream: response_stream.ResponseStream, request: Request
    ) -> dict[str, Any]:
        """Wait for the final Response object, until the client leaves, its credential is revoked or
        this process drains.

        Raises:
            errors.ApiError: the log lost the response, 401, or 503 when the response goes on
                without this request.
        """
        with stream, self._gate.admitted.revoked(principal) as revoked:
            tasks = [
                asyncio.ensure_future(t)
                for t in (
                    stream.to_end(),
                    event_stream.gone(request.receive),
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
        if stream.final is None:
            raise errors.unavailable(
                f"This instance is shutting down; the response goes on as {stream.rid}."
            )
        return stream.final
