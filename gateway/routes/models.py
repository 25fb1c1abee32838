"""`/v1/models`: what this deployment offers."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tailrace import settings
from tailrace.protocol import errors
from tailrace.web import access


class ModelRoutes:
    """The two calls. `started`: when this process began, in seconds since the epoch."""

    def __init__(self, gate: access.Access, pools: settings.CurrentPools, started: int) -> None:
        self._gate = gate
        self._pools = pools
        self._started = started

    async def list_all(self, request: Request) -> Response:
        """`GET /v1/models`."""
        await self._gate.principal(request)
        return JSONResponse(
            {
                "object": "list",
                "data": [self._model(name) for name in self._pools.catalog.listed],
            }
        )

    async def show(self, request: Request) -> Response:
        """`GET /v1/models/{id}`; names of models may contain slashes."""
        await self._gate.principal(request)
        name = request.path_params["model"]
        if name not in self._pools.catalog.listed:
            raise errors.model_not_found(name)
        return JSONResponse(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "tailrace"}
