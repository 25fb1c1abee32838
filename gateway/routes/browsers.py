"""Endpoints for the page: tickets for sockets, its configuration, a credential in development."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.load import worker_registry
from gateway.sockets import accepted_input
from tailrace import settings
from tailrace.protocol import errors
from tailrace.store import tickets
from tailrace.store.redis_store import StoreUnavailable
from tailrace.web import access

NO_STORE: Final = {"cache-control": "no-store"}
# Beside `x-forwarded-…`: what proxies add.
_FORWARDED: Final = frozenset(
    {"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"}
)


class BrowserRoutes:
    """The three calls."""

    def __init__(
        self,
        config: settings.GatewaySettings,
        pools: settings.CurrentPools,
        gate: access.Access,
        ticket_store: tickets.Tickets,
        workers: worker_registry.WorkerRegistry,
        version: str,
    ) -> None:
        self._config = config
        self._pools = pools
        self._gate = gate
        self._tickets = ticket_store
        self._workers = workers
        self._version = version

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
        """`GET /config.json`: the page's configuration."""
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
        """`GET /dev/credential`: only for a page on this machine, and only if enabled for
        development."""
        path = self._config.dev_credential
        if path is None or not same_origin_loopback(request):
            raise errors.not_found(request.url.path)
        try:
            credential = (await asyncio.to_thread(path.read_text, encoding="ascii")).strip()
        except (OSError, UnicodeError) as error:
            raise errors.not_found(request.url.path) from error
        return JSONResponse({"credential": credential}, headers=NO_STORE)


def same_origin_loopback(request: Request) -> bool:
    """Return whether the request comes from a page on this machine.

    The address must be a loopback one, and so must the `Host`: otherwise another site's name could
    be rebound to this machine. No proxy has forwarded it: behind one, everybody is on this machine.
    """
    if any(name in _FORWARDED or name.startswith("x-forwarded-") for name in request.headers):
        return False
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
