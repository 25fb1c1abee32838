"""The built page in a browser, with a script in place of the services: a test decides which events
arrive, and when."""

from __future__ import annotations

import base64
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


def credential(subject: str) -> str:
    """In the form of a credential, with this user and without a signature."""
    claims = base64.urlsafe_b64encode(json.dumps({"sub": subject}).encode()).decode().rstrip("=")
    return f"e30.{claims}.c2ln"


class Services:
    """What the pages of one browser profile reach under ORIGIN.

    Attributes:
        events: of the newest response, as far as it has come.
        asked: bodies of the requests for responses.
        refusals: what the next requests for responses are answered instead: status, code and
            `retry-after`.
        watched: the positions that watches began behind; -1 is the beginning.
        user: who is signed in; None: no user, as after the session has ended.
        development_user: whose credential the gateway hands out; None: it hands out none.
        askers: by request for a response, who was signed in.
        begins_anew: the events so far are not those of the response that is asked for next.
        loses_reply: the next request for a response is accepted, and its reply is lost.
    """

    def __init__(self, context: sync_api.BrowserContext) -> None:
        self.events: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.refusals: list[tuple[int, str, str]] = []
        self.watched: list[int] = []
        self.user: str | None = "reader"
        self.development_user: str | None = None
        self.askers: list[str] = []
        self.begins_anew = False
        self.loses_reply = False
        self._keys: dict[str, str] = {}
        self._open_sockets: list[sync_api.WebSocketRoute] = []
        self._sockets: list[sync_api.WebSocketRoute] = []  # those that watch the newest response
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

    def close_sockets(self, code: int) -> None:
        for socket in list(self._open_sockets):
            socket.close(code=code)
        self._open_sockets.clear()
        self._sockets.clear()

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
        if path == "/v1/session":
            self._change_session(route)
            return
        if path.startswith("/v1/") and (refusal := self._refusal(route.request)) is not None:
            status, code = refusal
            error = {"message": code, "type": "requests", "param": None, "code": code}
            route.fulfill(status=status, json={"error": error})
            return
        if path == "/v1/responses":
            self._ask(route)
            return
        known: dict[str, Any] = {
            "/config.json": CONFIG,
            "/ready": {"ready": True, "engine": {"state": "ready", "workers": 1, "detail": ""}},
            "/v1/tickets": {"ticket": "ticket", "expires_in": 30},
            "/v1/files": {"id": "file_1", "expires_at": 4_000_000_000},
        }
        if self.development_user is not None:
            known["/dev/credential"] = {"credential": credential(self.development_user)}
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

    def _change_session(self, route: sync_api.Route) -> None:
        if route.request.method == "POST":
            given: str = (route.request.post_data_json or {})["credential"]
            self.user = json.loads(base64.urlsafe_b64decode(given.split(".")[1] + "=="))["sub"]
        elif route.request.method == "DELETE":
            self.user = None
        token = None if self.user is None else f"token of {self.user}"
        route.fulfill(json={"subject": self.user, "token": token})

    def _refusal(self, request: sync_api.Request) -> tuple[int, str] | None:
        if self.user is None:
            return 401, "invalid_api_key"
        token = request.headers.get("x-tailrace-session")
        if request.method == "POST" and token != f"token of {self.user}":
            return 403, "session_token_missing"
        return None

    def _ask(self, route: sync_api.Route) -> None:
        key = route.request.headers["idempotency-key"]
        self.askers.append(self.user or "")
        if key not in self._keys:
            self.asked.append(route.request.post_data_json or {})
            self._keys[key] = self.response_id
            if self.begins_anew:
                self.begins_anew = False
                self.next_response()
        if self.loses_reply:
            self.loses_reply = False
            route.abort()
        else:
            route.fulfill(json={"id": self._keys[key], "status": "queued"})

    def _open(self, socket: sync_api.WebSocketRoute) -> None:
        def heard(message: str | bytes) -> None:
            command = json.loads(message)
            if command["type"] != "watch" or command["response_id"] != self.response_id:
                return
            after = command.get("starting_after", -1)
            self.watched.append(after)
            self._sockets.append(socket)
            self._send(socket, self.events[after + 1 :])

        def closed(*_: object) -> None:
            for sockets in (self._open_sockets, self._sockets):
                if socket in sockets:
                    sockets.remove(socket)

        self._open_sockets.append(socket)
        socket.on_message(heard)
        socket.on_close(closed)

    def _send(self, socket: sync_api.WebSocketRoute, events: Sequence[dict[str, Any]]) -> None:
        if events:
            message = {"type": "watch.events", "response_id": self.response_id, "events": events}
            socket.send(json.dumps(message))
