"""Parts of OpenAI's API that this server, or this deployment, does not offer: the error of each,
and the alternative."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from tailrace.protocol import errors
from tailrace.web import error_mapping

GENERATES: Final = (
    "It generates text: POST /v1/responses, WS /v1/responses, POST /v1/chat/completions and "
    "POST /v1/completions; and embeds it: POST /v1/embeddings."
)
# By the path below /v1.
INSTEAD: Final = {
    "uploads": "Upload a file in one piece: POST /v1/files.",
    "containers": GENERATES,
    "images": GENERATES,
    "videos": GENERATES,
    "audio": GENERATES,
    "realtime": "It streams text over WS /v1/responses.",
    "moderations": GENERATES,
    "assistants": "Use POST /v1/responses with 'tools'.",
    "threads": "POST /v1/conversations, and 'conversation' in POST /v1/responses.",
    "vector_stores": (
        "This deployment has no vector database (TAILRACE_VECTORS). Search by a function tool of "
        "your own, in POST /v1/responses."
    ),
    "batches": "POST /v1/responses with 'service_tier': 'flex' and 'background': true is cheaper.",
    "fine_tuning": "GET /v1/models has its models.",
    "evals": GENERATES,
    "skills": "Send what the model must know as 'instructions' in POST /v1/responses.",
    "chatkit": "Use POST /v1/responses, or GET /v1/watch to follow responses.",
    "organization": "Tenants and credentials are the issuer's of the deployment.",
    "projects": "Tenants and credentials are the issuer's of the deployment.",
    "edits": GENERATES,
    "engines": "GET /v1/models has its models.",
}
_METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def error_of(path: str) -> errors.ApiError:
    """The error for a path."""
    below = path.removeprefix("/v1/")
    part = next((name for name in INSTEAD if below == name or below.startswith(f"{name}/")), None)
    return errors.not_offered(path, INSTEAD[part]) if part else errors.not_found(path)


async def answer(request: Request) -> Response:
    """Handle every path of a part that is not offered."""
    raise error_of(request.scope["path"])


async def _refuse(socket: WebSocket) -> None:
    await socket.send_denial_response(error_mapping.error_response(error_of(socket.url.path)))


def routes() -> list[BaseRoute]:
    """Routes to be registered after those of offered parts."""
    out: list[BaseRoute] = [
        WebSocketRoute("/v1/realtime", _refuse),
    ]
    for name in INSTEAD:
        paths = (f"/v1/{name}", f"/v1/{name}/{{rest:path}}")
        out += [Route(path, answer, methods=_METHODS) for path in paths]
    return out
