"""The built page in a browser, with a script in place of the services: a test decides which events
arrive, and when."""

from __future__ import annotations

import itertools
import json
import mimetypes
from collections.abc import Sequence
from typing import Any, Final

from playwright import sync_api

from gateway.routes import page as served
from tailrace.local import paths

ORIGIN: Final = "http://page.test"
CONFIG: Final[dict[str, Any]] = {
    "models": ["m"],
    "default_model": "m",
    "push_urls": [],
    "takes": {"m": {"images": True, "files": True, "max_output_tokens": 1000}},
    "version": "",
}


class Services:
    """What the pages of one browser profile reach under ORIGIN.

    Attributes:
        events: of the newest response, as far as it has come.
        asked: bodies of the requests for responses.
        refusals: what the next requests for responses are answered instead: status, code and
            `retry-after`.
        watched: the positions that watches began behind; -1 is the beginning.
    """

    def __init__(self, context: sync_api.BrowserContext) -> None:
        self.events: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.refusals: list[tuple[int, str, str]] = []
        self.watched: list[int] = []
        self._sockets: list[sync_api.WebSocketRoute] = []
        self._ids = itertools.count(1)
        context.route(f"{ORIGIN}/**", self._answer)
        context.route_web_socket(f"{ORIGIN.replace('http', 'ws')}/v1/watch", self._open)

    @property
    def response_id(self) -> str:
        return f"resp_{len(self.asked)}"

    def feed(self, events: Sequence[dict[str, Any]]) -> None:
        """These events happen now."""
        self.events += events
        for socket in self._sockets:
            self._send(socket, events)

    def next_response(self) -> None:
        """What is fed from now on belongs to the response that is asked for next."""
        self.events = []

    def _answer(self, route: sync_api.Route) -> None:
        path = route.request.url.removeprefix(ORIGIN).partition("#")[0].partition("?")[0]
        if path == "/v1/responses" and self.refusals:
            status, code, after = self.refusals.pop(0)
            error = {"message": code, "type": "requests", "param": None, "code": code}
            route.fulfill(status=status, json={"error": error}, headers={"retry-after": after})
            return
        if path == "/v1/responses":
            self.asked.append(route.request.post_data_json or {})
        known: dict[str, Any] = {
            "/config.json": CONFIG,
            "/ready": {"ready": True, "engine": {"state": "ready", "workers": 1, "detail": ""}},
            "/v1/session": {"subject": "reader", "token": "t"},
            "/v1/tickets": {"ticket": "ticket", "expires_in": 30},
            "/v1/responses": {"id": self.response_id, "status": "queued"},
        }
        if path in known:
            route.fulfill(json=known[path])
            return
        file = paths.PAGE / (path.lstrip("/") or "index.html")
        if not file.is_file():
            route.fulfill(status=404, json={"error": {"message": "no", "code": "not_found"}})
            return
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        route.fulfill(
            body=file.read_bytes(),
            headers={"content-type": kind, **served.security_headers(path, [])},
        )

    def _open(self, socket: sync_api.WebSocketRoute) -> None:
        def heard(message: str | bytes) -> None:
            command = json.loads(message)
            if command["type"] != "watch" or command["response_id"] != self.response_id:
                return
            after = command.get("starting_after", -1)
            self.watched.append(after)
            self._sockets.append(socket)
            self._send(socket, self.events[after + 1 :])

        socket.on_message(heard)
        socket.on_close(
            lambda *_: self._sockets.remove(socket) if socket in self._sockets else None
        )

    def _send(self, socket: sync_api.WebSocketRoute, events: Sequence[dict[str, Any]]) -> None:
        if events:
            message = {"type": "watch.events", "response_id": self.response_id, "events": events}
            socket.send(json.dumps(message))
