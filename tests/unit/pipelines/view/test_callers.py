"""Who may see the view: what a gateway says, and in doubt none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.requests import Request

from pipelines.view import callers
from pipelines.view.callers import Callers, Refused
from tests.support import cases


class FakeGateway:
    """Answers `/v1/session` in the order given; the last one again and again."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


def who(*scopes: str, subject: str | None = "ann", **headers: str) -> httpx.Response:
    told = {"object": "session", "subject": subject, "scopes": scopes, "token": "t"}
    return httpx.Response(200, json=told, headers=headers)


def request(method: str = "GET", body: bytes = b"", **headers: str) -> Request:
    sent = [body[:9], body[9:]]

    async def receive() -> dict[str, object]:
        part = sent.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(sent)}

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request(
        {
            "type": "http",
            "method": method,
            "path": "/",
            "query_string": b"",
            "headers": raw,
            "client": ("10.0.0.9", 4711),
        },
        receive,
    )


clock = [0.0]


def made(gateway: FakeGateway) -> Callers:
    clock[0] = 100.0
    return Callers("http://gateway", transport=httpx.MockTransport(gateway), clock=lambda: clock[0])


@pytest.fixture
async def admin() -> AsyncIterator[tuple[Callers, FakeGateway]]:
    gateway = FakeGateway(who("read", "admin"))
    callers = made(gateway)
    yield callers, gateway
    await callers.close()


async def test_the_gateway_is_asked_once_for_a_while(admin: tuple[Callers, FakeGateway]) -> None:
    found, gateway = admin
    for _ in range(3):
        await found.admit(request(authorization="Bearer a"))
    assert len(gateway.asked) == 1
    assert gateway.asked[0].headers["authorization"] == "Bearer a"
    await found.admit(request(authorization="Bearer b"))
    assert len(gateway.asked) == 2
    clock[0] += callers.CACHE_S
    await found.admit(request(authorization="Bearer a"))
    assert len(gateway.asked) == 3
    # A caller whose address changes is the same one.
    await found.admit(request(authorization="Bearer a", x_forwarded_for="192.0.2.8"))
    assert len(gateway.asked) == 3


async def test_a_caller_who_shows_nothing_costs_the_gateway_nothing(
    admin: tuple[Callers, FakeGateway],
) -> None:
    found, gateway = admin
    with pytest.raises(Refused) as error:
        await found.admit(request(cookie="other=1"))
    assert (error.value.status, gateway.asked) == (401, [])


async def test_a_page_of_another_origin_is_another_caller(
    admin: tuple[Callers, FakeGateway],
) -> None:
    """It sends the same cookie, and the gateway refuses it by its headers."""
    found, gateway = admin
    await found.admit(request(cookie="tailrace-80=v", sec_fetch_site="same-origin"))
    gateway.answers = [httpx.Response(403, json={"error": {"code": "o", "message": "m"}})]
    with pytest.raises(Refused) as error:
        await found.admit(request(cookie="tailrace-80=v", sec_fetch_site="cross-site"))
    assert error.value.status == 403
    assert gateway.asked[-1].headers["sec-fetch-site"] == "cross-site"


@cases.each(
    ("answer", "status", "code"),
    [
        (who("create", "read"), 403, "insufficient_scope"),
        (who("admin", subject=None), 401, "invalid_api_key"),
        (
            httpx.Response(401, json={"error": {"code": "invalid_api_key", "message": "no"}}),
            *(401, "invalid_api_key"),
        ),
        (httpx.Response(302, headers={"location": "http://elsewhere"}), 502, "http_302"),
        (httpx.Response(200, text="hello"), 401, "invalid_api_key"),
        (httpx.Response(200, json={"subject": "ann", "scopes": "admin"}), 403, None),
        (httpx.Response(500, text="?"), 500, "http_500"),
        (httpx.ConnectError("away"), 503, "gateway_unavailable"),
        (httpx.ReadTimeout("slow"), 503, "gateway_unavailable"),
    ],
)
async def test_in_doubt_all_are_refused(
    answer: httpx.Response | Exception, status: int, code: str | None
) -> None:
    gateway = FakeGateway(answer)
    callers = made(gateway)
    for asked in (1, 2):  # a refusal is not kept
        with pytest.raises(Refused) as error:
            await callers.admit(request(authorization="Bearer a"))
        assert error.value.status == status
        assert code in (None, error.value.code)
        assert len(gateway.asked) == asked
    await callers.close()


async def test_how_long_to_wait_is_handed_on() -> None:
    limited = httpx.Response(429, json={}, headers={"retry-after": "7"})
    callers = made(FakeGateway(limited))
    with pytest.raises(Refused) as error:
        await callers.admit(request(authorization="Bearer a"))
    assert error.value.answer().headers["retry-after"] == "7"
    await callers.close()


async def test_a_session_is_the_gateways_with_its_cookie_alone() -> None:
    gateway = FakeGateway(who("admin", **{"set-cookie": "tailrace-8090=v; HttpOnly"}))
    callers = made(gateway)
    body = json.dumps({"credential": "c"}).encode()
    answer = await callers.session(
        request(
            "POST",
            body,
            host="127.0.0.1:8090",
            cookie="theirs=1; tailrace-8090=old; __Host-tailrace=x",
            content_type="application/json",
            x_forwarded_for="192.0.2.7, 10.0.0.1",
        )
    )
    [asked] = gateway.asked
    assert (asked.method, asked.url.path, asked.content) == ("POST", "/v1/session", body)
    assert asked.headers["host"] == "127.0.0.1:8090"
    assert asked.headers["cookie"] == "tailrace-8090=old; __Host-tailrace=x"
    # Its own hop is the last one: a gateway believes what stands before it of its proxies only.
    assert asked.headers["x-forwarded-for"] == "192.0.2.7, 10.0.0.1, 10.0.0.9"
    assert answer.headers["set-cookie"] == "tailrace-8090=v; HttpOnly"
    await callers.close()


async def test_the_next_caller_has_no_cookie_of_this_one() -> None:
    """httpx keeps cookies by default: the next caller was signed in as the one before."""
    gateway = FakeGateway(who("admin", **{"set-cookie": "tailrace-8090=v; Path=/"}))
    callers = made(gateway)
    await callers.session(request("POST", b"{}", content_type="application/json"))
    await callers.session(request("GET"))
    assert "cookie" not in gateway.asked[1].headers
    await callers.close()


async def test_a_long_body_is_refused_before_the_gateway_has_it() -> None:
    gateway = FakeGateway(who("admin"))
    gate = made(gateway)
    with pytest.raises(Refused) as error:
        await gate.session(request("POST", b"x" * (callers.MAX_BODY_BYTES + 1)))
    assert (error.value.status, gateway.asked) == (413, [])
    await gate.close()


async def test_who_signs_out_is_asked_about_again(admin: tuple[Callers, FakeGateway]) -> None:
    found, gateway = admin
    await found.admit(request(cookie="tailrace-80=v"))
    await found.session(request("DELETE", cookie="tailrace-80=v"))
    await found.admit(request(cookie="tailrace-80=v"))
    assert len(gateway.asked) == 3
