"""The HTTP surface: Responses, Chat Completions, models, tickets, and what the page needs.

Routes take the raw request: `request_parsing` validates, so that no framework error shape ever
shows.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import fastapi
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import (
    chat_completions,
    created_response_body,
    page,
    request_parsing,
    response_operations,
    response_stream,
    submission,
    worker_registry,
)
from tailrace import log, settings, telemetry
from tailrace.auth.principal import Principal
from tailrace.delivery import delivery
from tailrace.protocol import errors, events, records
from tailrace.settings.shapes import Pool
from tailrace.store import tickets
from tailrace.store.redis_store import RedisStore, StoreUnavailable
from tailrace.web import access, drain, error_mapping, event_stream

BODY_DEADLINE_S: Final = 60.0
LIST_LIMIT: Final = 20
LIST_MOST: Final = 100
NO_STORE: Final = {"cache-control": "no-store"}


class Api:
    """The handlers over one gateway's parts."""

    def __init__(
        self,
        config: settings.GatewaySettings,
        gate: access.Access,
        submit: submission.Submission,
        operations: response_operations.ResponseOperations,
        deliver: delivery.Delivery,
        redis: RedisStore,
        workers: worker_registry.WorkerRegistry,
        draining: drain.Draining,
        *,
        version: str,
        started: int,
    ) -> None:
        self._config = config
        self._gate = gate
        self._submit = submit
        self._operations = operations
        self._delivery = deliver
        self._redis = redis
        self._tickets = tickets.Tickets(redis)
        self._workers = workers
        self._draining = draining
        self._version = version
        self._started = started
        self._page = page.load(config.page)
        self._csp = page.content_security_policy(config.push_urls)

    @property
    def files(self) -> list[str]:
        """Paths of the page; each becomes a route of its own, so that all other paths stay the
        API's."""
        return list(self._page)

    def router(self) -> fastapi.APIRouter:
        router = fastapi.APIRouter()
        for method, path, handler in (
            ("POST", "/v1/responses", self.create),
            (
                "POST",
                "/v1/responses/input_tokens",
                self.absent,
            ),  # else these two would look like ids that take no POST
            ("POST", "/v1/responses/compact", self.absent),
            ("POST", "/v1/responses/{response_id}/cancel", self.cancel),
            ("DELETE", "/v1/responses/{response_id}", self.delete),
            ("GET", "/v1/responses/{response_id}/input_items", self.input_items),
            ("POST", "/v1/chat/completions", self.chat),
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{model:path}", self.model),
            ("POST", "/v1/tickets", self.ticket),
            ("GET", "/config.json", self.public_config),
            ("GET", "/dev/credential", self.dev_credential),
            ("GET", "/health", self.health),
            ("GET", "/ready", self.ready),
        ):
            router.add_api_route(path, handler, methods=[method], response_model=None)
        return router

    def before(self, app: ASGIApp) -> ASGIApp:
        """`app` with the routes that create responses in front of it: between them and the server a
        framework's layers take a tenth of what a request costs, and a call each for every event.
        Where spans are exported `app` has them all, because its layers make the spans."""
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
                response = error_response(error)
            await response(scope, receive, send)

        return app if telemetry.exporting() else dispatch

    # ---- creating
    # ------------------------------------------------------------------------------------

    async def create(self, request: Request) -> Response:
        """`POST /v1/responses`."""
        create, run = await self._created(request, request_parsing.of_responses)
        if create.stream:
            return created_response_body.CreatedResponseBody(
                run, self._submit, self._draining, events.Event.sse
            )
        if create.background:
            self._submit.keep(run)
            return JSONResponse(
                (await self._delivery.find(run.rid, run.owner)).response, headers=run.headers
            )
        return JSONResponse(await self._whole(run, request), headers=run.headers)

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        create, run = await self._created(request, request_parsing.of_chat)
        if create.stream:
            return created_response_body.CreatedResponseBody(
                run,
                self._submit,
                self._draining,
                chat_completions.Chunks(run.echo, include_usage=create.usage_in_stream).of,
            )
        return JSONResponse(
            chat_completions.completion(await self._whole(run, request)), headers=run.headers
        )

    async def _created(
        self,
        request: Request,
        read: Callable[[dict[str, Any], Sequence[Pool]], request_parsing.Create],
    ) -> tuple[request_parsing.Create, response_stream.ResponseStream]:
        """Whether the caller was revoked is asked in one round trip with what else is needed from
        Redis; nothing is written before the answer."""
        principal = await self._gate.verified(request)
        permitted = asyncio.ensure_future(self._gate.permit(principal))
        permitted.add_done_callback(submission.consume_exception)
        try:
            create = _with_key(read(await self._body(request), self._config.pools), request)
            return create, await self._submit.submit(create, principal, permitted=permitted)
        except errors.ApiError:
            await permitted  # whoever may not ask at all is told nothing else
            raise
        finally:
            permitted.cancel()

    async def _whole(self, run: response_stream.ResponseStream, request: Request) -> dict[str, Any]:
        """Wait for the end of a run; a client that leaves meanwhile gives it back."""
        tasks = [
            asyncio.ensure_future(t)
            for t in (_to_end(run), event_stream.gone(request.receive), self._draining.wait())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
        except log.HistoryLost as error:
            raise errors.history_lost(run.rid) from error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if run.final is not None:
                self._submit.finished(run)
            else:
                self._submit.continue_in_background(run)
        if run.final is None:  # the client is gone and reads nothing, or this process is leaving
            raise errors.unavailable(
                f"This instance is shutting down; the response goes on as {run.rid}."
            )
        return run.final

    # ---- what exists
    # ---------------------------------------------------------------------------------

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/responses/{id}/cancel`."""
        rid, owner = await self._addressed(request)
        try:
            return JSONResponse(await self._operations.cancel(rid, owner))
        except error_mapping.DELIVERY_ERRORS as error:
            raise error_mapping.api_error(rid, error) from error

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/responses/{id}`."""
        rid, owner = await self._addressed(request)
        try:
            await self._operations.delete(rid, owner)
        except error_mapping.DELIVERY_ERRORS as error:
            raise error_mapping.api_error(rid, error) from error
        return JSONResponse({"id": rid, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        """`GET /v1/responses/{id}/input_items`."""
        rid, owner = await self._addressed(request)
        query = request.query_params
        try:
            items = await self._operations.input_items(rid, owner)
        except error_mapping.DELIVERY_ERRORS as error:
            raise error_mapping.api_error(rid, error) from error
        return JSONResponse(
            listed(items, query.get("limit"), query.get("order"), query.get("after"))
        )

    # ---- models
    # --------------------------------------------------------------------------------------

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`."""
        await self._principal(request)
        return JSONResponse(
            {
                "object": "list",
                "data": [self._model(name) for pool in self._config.pools for name in pool.models],
            }
        )

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/{id}`; names of models may contain slashes."""
        await self._principal(request)
        name = request.path_params["model"]
        if not any(name in pool.models for pool in self._config.pools):
            raise errors.model_not_found(name)
        return JSONResponse(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "tailrace"}

    # ---- for browsers
    # --------------------------------------------------------------------------------

    async def ticket(self, request: Request) -> Response:
        """`POST /v1/tickets`: a one-time stand-in for the credential, for a WebSocket handshake
        from the same origin."""
        self._gate.check_origin(request)
        principal = await self._principal(request)
        try:
            ticket = await self._tickets.mint_ticket(
                principal, request.headers.get("origin"), self._gate.clock()
            )
        except StoreUnavailable as error:
            raise errors.unavailable("Tickets cannot be issued right now.") from error
        return JSONResponse(
            {"ticket": ticket, "expires_in": tickets.TICKET_TTL_S}, headers=NO_STORE
        )

    async def public_config(self, _request: Request) -> Response:
        """`GET /config.json`: what the page must know."""
        body = {
            "push_urls": list(self._config.push_urls),
            "models": [name for pool in self._config.pools for name in pool.models],
            "default_model": self._config.default_model,
            "version": self._version,
        }
        return JSONResponse(body, headers={"cache-control": "no-cache"})

    async def dev_credential(self, request: Request) -> Response:
        """`GET /dev/credential`: only for the page of this very machine, and only where development
        switched it on."""
        path = self._config.dev_credential
        if path is None or not same_origin_loopback(request):
            raise errors.not_found(request.url.path)
        try:
            credential = (await asyncio.to_thread(path.read_text, encoding="ascii")).strip()
        except (OSError, UnicodeError) as error:
            raise errors.not_found(request.url.path) from error
        return JSONResponse({"credential": credential}, headers=NO_STORE)

    async def file(self, request: Request) -> Response:
        """A file of the page."""
        found = self._page.get(request.scope["path"])
        if found is None:
            raise errors.not_found(request.scope["path"])
        headers = {
            "etag": found.etag,
            "cache-control": "public, max-age=31536000, immutable" if found.fixed else "no-cache",
            "content-security-policy": self._csp,
        }
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        return Response(found.body, media_type=found.content_type, headers=headers)

    # ---- health
    # --------------------------------------------------------------------------------------

    async def health(self, _request: Request) -> Response:
        """`GET /health`: the process runs."""
        return JSONResponse({"status": "ok"})

    async def ready(self, _request: Request) -> Response:
        """`GET /ready`."""
        state = await self.readiness()
        return JSONResponse(state, 200 if state["ready"] else 503, headers=NO_STORE)

    async def readiness(self) -> dict[str, Any]:
        """A question may be asked as soon as the log is there; Redis and engines may come later."""
        return {
            "ready": self._submit.accepting and not self._submit.leaving,
            "kafka": self._delivery.ready,
            "redis": await self._redis.reachable(),
            "draining": self._submit.leaving,
            "engine": self._workers.state(),
        }

    async def absent(self, request: Request) -> Response:
        """Parts of the API that are not offered."""
        raise errors.not_found(request.scope["path"])

    # ---- shared
    # --------------------------------------------------------------------------------------

    async def _principal(self, request: Request) -> Principal:
        return await self._gate.principal(request)

    async def _addressed(self, request: Request) -> tuple[str, records.Owner]:
        return request.path_params["response_id"], access.owner_of(await self._principal(request))

    async def _body(self, request: Request) -> dict[str, Any]:
        limit = self._config.max_http_bytes
        if int(request.headers.get("content-length") or 0) > limit:
            raise errors.payload_too_large(limit)
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_DEADLINE_S):
                async for part in request.stream():
                    size += len(part)
                    if size > limit:
                        raise errors.payload_too_large(limit)
                    parts.append(part)
        except TimeoutError as error:
            raise errors.invalid_request(
                f"The request did not arrive within {BODY_DEADLINE_S:.0f} s.",
                code="request_timeout",
            ) from error
        except ClientDisconnect as error:
            raise errors.invalid_request(
                "The client left."
            ) from error  # nobody reads it; only our own books see it
        return request_parsing.decode(b"".join(parts))


async def _to_end(run: response_stream.ResponseStream) -> None:
    while await run.next_events():
        pass


def _with_key(create: request_parsing.Create, request: Request) -> request_parsing.Create:
    return request_parsing.with_key(create, request.headers.get("idempotency-key"))


def listed(
    items: list[dict[str, Any]], limit: str | None, order: str | None, after: str | None
) -> dict[str, Any]:
    """One page of a list; `items` are oldest first.

    Raises:
        errors.ApiError
    """
    if order not in (None, "asc", "desc"):
        raise errors.invalid_value("order", "Invalid 'order': expected 'asc' or 'desc'.")
    if limit is not None and not (
        limit.isascii() and limit.isdigit() and len(limit) <= 4 and 1 <= int(limit) <= LIST_MOST
    ):
        raise errors.out_of_range("limit", 1, LIST_MOST)
    rows = items if order == "asc" else items[::-1]
    if after is not None:
        place = next((i for i, item in enumerate(rows) if item["id"] == after), None)
        if place is None:
            raise errors.invalid_value("after", "Invalid 'after': no such item.")
        rows = rows[place + 1 :]
    shown = rows[: int(limit) if limit is not None else LIST_LIMIT]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(rows) > len(shown),
    }


def same_origin_loopback(request: Request) -> bool:
    """Whether the page of this machine asks: from a loopback address, by a loopback name (so that
    no other name can be rebound to us), not from elsewhere."""
    host = request.headers.get("host", "")
    if (
        request.client is None
        or not _loopback_address(request.client.host)
        or not _loopback_name(host)
    ):
        return False
    if request.headers.get("sec-fetch-site") not in (None, "same-origin"):
        return False
    origin = request.headers.get("origin")
    return origin is None or origin == f"http://{host}"


def _loopback_address(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False


def _loopback_name(host: str) -> bool:
    try:
        return urlsplit(f"//{host}").hostname in ("127.0.0.1", "localhost", "::1")
    except ValueError:
        return False


def error_response(error: errors.ApiError, headers: dict[str, str] | None = None) -> Response:
    """The one shape of HTTP errors."""
    telemetry.ERRORS.labels(code=error.code or error.type, status=str(error.status)).inc()
    return JSONResponse(
        errors.http_body(error), error.status, headers={**(headers or {}), **error.headers}
    )
