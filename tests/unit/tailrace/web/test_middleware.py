"""What the outer middleware does with every answer, and with what nothing caught."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from tailrace.protocol import errors
from tailrace.web import middleware, session_cookie
from tests.support import cases

ROOT = Path(__file__).resolve().parents[4]
LISTED = "https://page.example"


async def plain(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("hi", headers={"vary": "accept"})(scope, receive, send)


async def fails(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise KeyError("a prompt")


async def fails_later(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise KeyError("a prompt")


def client(app: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(middleware.OuterMiddleware(app, [LISTED]))
    return httpx.AsyncClient(transport=transport, base_url="http://here")


async def test_every_answer_has_an_id_and_the_security_headers() -> None:
    async with client(plain) as http:
        first, second = await http.get("/"), await http.get("/")
    assert first.headers["x-request-id"].startswith("req_")
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    for name, value in middleware.SECURITY_HEADERS.items():
        assert first.headers[name] == value


async def test_a_listed_origin_may_read_and_any_other_is_told_nothing() -> None:
    async with client(plain) as http:
        listed = await http.get("/", headers={"origin": LISTED})
        other = await http.get("/", headers={"origin": "https://evil.example"})
    assert listed.headers["access-control-allow-origin"] == LISTED
    assert listed.headers["vary"] == "accept, origin"
    assert listed.headers["cross-origin-resource-policy"] == "cross-origin"
    assert "access-control-allow-origin" not in other.headers


async def test_a_listed_origin_may_read_what_says_whether_and_when_to_try_again() -> None:
    async with client(plain) as http:
        listed = await http.get("/", headers={"origin": LISTED})
    exposed = listed.headers["access-control-expose-headers"].split(", ")
    for error in (
        errors.idempotency_key_reused(),
        errors.overloaded(1),
        errors.outcome_unknown("r"),
    ):
        assert error.headers
        assert set(error.headers) <= set(exposed)


def test_every_header_of_an_answer_that_is_ours_may_be_read_by_a_listed_origin() -> None:
    """What a request has (the token of a session) is not among them."""
    named = {
        name
        for room in ("gateway", "push", "tailrace")
        for path in (ROOT / room).rglob("*.py")
        for name in re.findall(r'"(x-tailrace-[a-z-]+)"', path.read_text())
    }
    assert len(named) > 3
    assert named - {session_cookie.TOKEN_HEADER} <= set(middleware.EXPOSED.split(", "))


@pytest.mark.parametrize(("origin", "status"), [(LISTED, 204), ("https://evil.example", 200)])
async def test_a_preflight_of_a_listed_origin_is_answered_here(origin: str, status: int) -> None:
    asked = {"origin": origin, "access-control-request-method": "POST"}
    async with client(plain) as http:
        answer = await http.options("/", headers={**asked, "access-control-request-headers": "x"})
    assert answer.status_code == status
    assert answer.headers.get("access-control-allow-headers") == ("x" if status == 204 else None)


async def test_an_exception_that_nothing_caught_is_the_apis_error_and_a_line_with_its_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", "tailrace"):
        async with client(fails) as http:
            answer = await http.get("/")
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert answer.headers["x-frame-options"] == "DENY"
    (record,) = caplog.records
    assert record.getMessage() == "request_failed"
    assert record.exc_info is not None
    assert record.exc_info[2] is not None
    assert record.__dict__["fields"]["request_id"] == answer.headers["x-request-id"]


async def run(app: Any, scope: Scope) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    await middleware.OuterMiddleware(app, [LISTED])({"headers": [], **scope}, receive, send)
    return sent


async def test_a_body_that_has_begun_is_broken_off_and_not_completed() -> None:
    sent = await run(fails_later, {"type": "http", "method": "GET", "path": "/"})
    assert [m["type"] for m in sent] == ["http.response.start"]


WEBSOCKET = {
    "type": "websocket",
    "path": "/",
    "extensions": {"websocket.http.response": {}},
    "subprotocols": [],
}


async def test_a_socket_that_fails_before_its_answer_is_refused_with_500() -> None:
    sent = await run(fails, WEBSOCKET)
    assert [m["type"] for m in sent] == [
        "websocket.http.response.start",
        "websocket.http.response.body",
    ]
    assert sent[0]["status"] == 500
    names = [name for name, _ in sent[0]["headers"]]
    assert b"x-request-id" in names
    assert b"x-content-type-options" in names


async def test_a_socket_that_fails_after_its_answer_is_closed_as_an_internal_error() -> None:
    async def accepts_and_fails(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        raise KeyError("a prompt")

    sent = await run(accepts_and_fails, WEBSOCKET)
    assert [m["type"] for m in sent] == ["websocket.accept", "websocket.close"]
    assert [name for name, _ in sent[0]["headers"]] == [b"x-request-id"]


async def endless(scope: Scope, receive: Receive, send: Send) -> None:
    """A stream that ends when its client leaves."""
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"x", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    text = f"{scope['method']} {scope['query_string'].decode()}"
    await PlainTextResponse(text)(scope, receive, send)


@pytest.mark.parametrize("app", [plain, endless], ids=["a text", "a stream"])
async def test_head_is_the_head_of_get(app: Any) -> None:
    async with client(app) as http:
        head = await asyncio.wait_for(http.head("/"), 10)
        assert (head.status_code, head.content) == (200, b"")
        if app is plain:
            get = await http.get("/")
            assert head.headers["content-length"] == get.headers["content-length"]
        assert head.headers["x-request-id"]
    async with client(echo) as http:
        assert (await http.head("/")).headers["content-length"] == "4"  # it sees GET


@cases.each(
    ("query", "body", "seen"),
    [
        ("", {"stream": True, "starting_after": 3}, "stream=true&starting_after=3"),
        ("?stream=false&a=", {"stream": True, "a": 1, "b": "x&y"}, "stream=false&a=&b=x%26y"),
        ("?a=1", {"b": None, "c": [1], "d": {}}, "a=1"),
        ("?a=1", ["stream"], "a=1"),
        ("", {"a": "x" * middleware.PARAMETERS_BYTES}, ""),
    ],
)
async def test_parameters_of_a_get_may_stand_in_its_body(query: str, body: Any, seen: str) -> None:
    async with client(echo) as http:
        answer = await http.request("GET", f"/{query}", json=body)
        assert answer.text == f"GET {seen}"
        untyped = await http.request("GET", f"/{query}", content=json.dumps(body))  # openai-go
        assert "content-type" not in untyped.request.headers
        assert untyped.text == f"GET {seen}"
        other = await http.request(
            "GET", f"/{query}", content=json.dumps(body), headers={"content-type": "text/plain"}
        )
        assert other.text == f"GET {query.removeprefix('?')}"


async def test_a_body_of_get_that_is_no_json_is_ignored() -> None:
    async with client(echo) as http:
        lone = b'{"a": "\\ud800"}'
        for body in (b"", b"{", b"\xff", b"[" * 5_000, lone):
            for headers in ({}, {"content-type": "application/json"}):
                answer = await http.request("GET", "/?a=1", content=body, headers=headers)
                assert answer.text == "GET a=1"
