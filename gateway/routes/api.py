"""The HTTP surface: the table of routes, and models, tickets, health and what the page needs.

Routes take the raw request, so that no error shape of the framework ever shows.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import fastapi
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.load import breakers, canaries, worker_registry
from gateway.requests import submission
from gateway.routes import completions as completion_routes
from gateway.routes import conversations as conversation_routes
from gateway.routes import create as create_routes
from gateway.routes import files as file_routes
from gateway.routes import lists as list_routes
from gateway.routes import responses as response_routes
from gateway.routes import revocations as revocation_routes
from gateway.routes import search, session
from gateway.routes import shares as share_routes
from gateway.routes import vector_stores as vector_store_routes
from gateway.sockets import accepted_input
from tailrace import settings
from tailrace.delivery import delivery
from tailrace.log import interfaces
from tailrace.protocol import errors
from tailrace.store import tickets
from tailrace.store.redis_store import RedisStore, StoreUnavailable
from tailrace.web import access

Handler = Callable[[Request], Awaitable[Response]]
NO_STORE: Final = {"cache-control": "no-store"}


class Api:
    """The handlers over one gateway's parts."""

    def __init__(
        self,
        config: settings.GatewaySettings,
        pools: settings.CurrentPools,
        gate: access.Access,
        submit: submission.Submission,
        create: create_routes.CreateRoutes,
        responses: response_routes.ResponseRoutes,
        completions: completion_routes.CompletionRoutes,
        lists: list_routes.ListRoutes,
        revocations: revocation_routes.RevocationRoutes,
        conversations: conversation_routes.ConversationRoutes,
        searches: search.SearchRoutes,
        shares: share_routes.ShareRoutes,
        sessions: session.SessionRoutes,
        files: file_routes.FileRoutes,
        vector_stores: vector_store_routes.VectorStoreRoutes | None,
        deliver: delivery.Delivery,
        redis: RedisStore,
        workers: worker_registry.WorkerRegistry,
        broken: breakers.Breakers,
        weighed: canaries.Canaries,
        tails: Sequence[interfaces.TailReader],
        *,
        version: str,
        started: int,
    ) -> None:
        """`vector_stores`: None where the deployment has none. `tails`: readers besides those of
        the delivery."""
        self._config = config
        self._pools = pools
        self._gate = gate
        self._submit = submit
        self._create = create
        self._responses = responses
        self._completions = completions
        self._lists = lists
        self._revocations = revocations
        self._conversations = conversations
        self._searches = searches
        self._shares = shares
        self._sessions = sessions
        self._files = files
        self._vector_stores = vector_stores
        self._delivery = deliver
        self._redis = redis
        self._tickets = tickets.Tickets(redis)
        self._workers = workers
        self._breakers = broken
        self._canaries = weighed
        self._tails = tails
        self._version = version
        self._started = started

    def router(self) -> fastapi.APIRouter:
        router = fastapi.APIRouter()
        for method, path, handler in (
            ("POST", "/v1/responses", self._create.create),
            ("POST", "/v1/responses/input_tokens", self._create.count),
            ("POST", "/v1/responses/compact", self._create.compact),
            ("POST", "/v1/responses/{response_id}/cancel", self._responses.cancel),
            ("DELETE", "/v1/responses/{response_id}", self._responses.delete),
            ("GET", "/v1/responses/{response_id}/input_items", self._responses.input_items),
            ("GET", "/v1/responses", self._lists.responses),
            ("POST", "/v1/chat/completions", self._create.chat),
            ("GET", "/v1/chat/completions", self._lists.chats),
            ("POST", "/v1/chat/completions/{completion_id}", self._lists.update),
            ("POST", "/v1/completions", self._create.text),
            ("POST", "/v1/embeddings", self._create.embeddings),
            ("GET", "/v1/chat/completions/{completion_id}", self._completions.show),
            ("DELETE", "/v1/chat/completions/{completion_id}", self._completions.delete),
            ("GET", "/v1/chat/completions/{completion_id}/messages", self._completions.messages),
            ("POST", "/v1/files", self._files.create),
            ("GET", "/v1/files", self._files.listed),
            ("GET", "/v1/files/{file_id}", self._files.show),
            ("GET", "/v1/files/{file_id}/content", self._files.content),
            ("DELETE", "/v1/files/{file_id}", self._files.delete),
            *self._of_conversations(),
            *self._of_shares(),
            *self._of_vector_stores(),
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{model:path}", self.model),
            ("POST", "/v1/tickets", self.ticket),
            ("POST", "/v1/session", self._sessions.begin),
            ("GET", "/v1/session", self._sessions.show),
            ("DELETE", "/v1/session", self._sessions.end),
            ("POST", "/v1/admin/revocations", self._revocations.create),
            ("GET", "/v1/admin/revocations", self._revocations.listed),
            ("DELETE", "/v1/admin/revocations/{revocation_id}", self._revocations.lift),
            ("GET", "/config.json", self.public_config),
            ("GET", "/dev/credential", self.dev_credential),
            ("GET", "/health", self.health),
            ("GET", "/ready", self.ready),
        ):
            router.add_api_route(path, handler, methods=[method], response_model=None)
        return router

    def _of_conversations(self) -> list[tuple[str, str, Handler]]:
        routes, one = self._conversations, "/v1/conversations/{conversation_id}"
        return [
            ("POST", "/v1/conversations", routes.create),
            ("GET", "/v1/conversations", routes.listed),
            ("GET", "/v1/conversations/search", self._searches.search),  # before an id
            ("GET", one, routes.show),
            ("POST", one, routes.change),
            ("DELETE", one, routes.delete),
            ("GET", f"{one}/nodes", routes.nodes),
            ("GET", f"{one}/turns", routes.turns),
            ("GET", f"{one}/items", routes.items),
            ("POST", f"{one}/items", routes.add),
            ("GET", f"{one}/items/{{item_id}}", routes.item),
            ("DELETE", f"{one}/items/{{item_id}}", routes.remove),
        ]

    def _of_shares(self) -> list[tuple[str, str, Handler]]:
        routes, one = self._shares, "/v1/conversations/{conversation_id}"
        return [
            ("POST", f"{one}/share", routes.create),
            ("GET", f"{one}/shares", routes.listed),
            ("DELETE", f"{one}/shares/{{share_id}}", routes.revoke),
            ("GET", "/v1/shared/{token:path}", routes.show),
        ]

    def _of_vector_stores(self) -> list[tuple[str, str, Handler]]:
        routes, one = self._vector_stores, "/v1/vector_stores/{store_id}"
        if routes is None:
            return []  # `not_offered` says so
        file, batch = f"{one}/files/{{file_id}}", f"{one}/file_batches/{{batch_id}}"
        return [
            ("POST", "/v1/vector_stores", routes.create),
            ("GET", "/v1/vector_stores", routes.listed),
            ("DELETE", "/v1/vector_stores", routes.delete_all),
            ("GET", one, routes.show),
            ("POST", one, routes.change),
            ("DELETE", one, routes.delete),
            ("POST", f"{one}/search", routes.search),
            ("POST", f"{one}/files", routes.attach),
            ("GET", f"{one}/files", routes.files),
            ("GET", file, routes.file),
            ("POST", file, routes.describe),
            ("DELETE", file, routes.detach),
            ("GET", f"{file}/content", routes.content),
            ("POST", f"{one}/file_batches", routes.attach_batch),
            ("GET", batch, routes.batch),
            ("POST", f"{batch}/cancel", routes.cancel_batch),
            ("GET", f"{batch}/files", routes.batch_files),
        ]

    # ---- models

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`."""
        await self._gate.principal(request)
        return JSONResponse(
            {
                "object": "list",
                "data": [self._model(name) for name in self._pools.catalog.listed],
            }
        )

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/{id}`; names of models may contain slashes."""
        await self._gate.principal(request)
        name = request.path_params["model"]
        if name not in self._pools.catalog.listed:
            raise errors.model_not_found(name)
        return JSONResponse(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "tailrace"}

    # ---- for browsers

    async def ticket(self, request: Request) -> Response:
        """`POST /v1/tickets`: a one-time stand-in for the credential, for a WebSocket handshake
        from the same origin."""
        self._gate.check_origin(request)
        principal = await self._gate.principal(request)
        self._gate.rates.ticket(principal)
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
            "models": list(self._pools.catalog.listed),
            "default_model": self._pools.catalog.default_model,
            "takes": accepted_input.by_model(
                self._pools.catalog, self._workers.workers, self._config.records_version
            ),
            "version": self._version,
            "conversations": bool(self._config.archive),
            "searches": bool(self._config.archive),
            "titles": self._config.page_titles == 1,
            "shares": bool(self._config.session_keys and self._config.archive),
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

    # ---- health

    async def health(self, _request: Request) -> Response:
        """`GET /health`: the process runs."""
        return JSONResponse({"status": "ok"})

    async def ready(self, _request: Request) -> Response:
        """`GET /ready`."""
        state = await self.readiness()
        return JSONResponse(state, 200 if state["ready"] else 503, headers=NO_STORE)

    async def readiness(self) -> dict[str, Any]:
        """Return the JSON of `/ready`. The log decides; Redis and engines may come later."""
        revisions = self._canaries.shown()
        kafka = self._submit.answered and all(reader.answers for reader in self._tails)
        return {
            "ready": self._submit.accepting
            and kafka
            and self._gate.revocations.ready
            and not self._submit.leaving,
            "kafka": kafka,
            "redis": await self._redis.reachable(),
            "draining": self._submit.leaving,
            "engine": self._workers.state(),
            "pools": self._breakers.shown(),
            **({"revisions": revisions} if revisions else {}),
        }


def same_origin_loopback(request: Request) -> bool:
    """Return whether the page of this machine asks.

    The address must be a loopback one, and so must the `Host`: otherwise another site's name could
    be rebound to this machine.
    """
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
