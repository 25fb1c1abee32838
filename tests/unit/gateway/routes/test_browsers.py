"""Who may have the development credential."""

from __future__ import annotations

from starlette.requests import Request

from gateway.routes import browsers
from tests.support import cases


def request(client: str | None, **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw, "client": (client, 1) if client else None})


@cases.each(
    ("client", "headers", "expected"),
    [
        ("127.0.0.1", {"host": "127.0.0.1:8000"}, True),
        ("127.0.0.9", {"host": "localhost"}, True),
        ("::1", {"host": "[::1]:8000"}, True),
        ("127.0.0.1", {"host": "LOCALHOST:8000", "sec_fetch_site": "same-origin"}, True),
        ("127.0.0.1", {"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"}, True),
        ("10.0.0.1", {"host": "127.0.0.1:8000"}, False),
        (None, {"host": "127.0.0.1:8000"}, False),
        ("testclient", {"host": "127.0.0.1:8000"}, False),
        ("127.0.0.1", {}, False),
        ("127.0.0.1", {"host": "rebound.example"}, False),
        ("127.0.0.1", {"host": "localhost.example"}, False),
        ("127.0.0.1", {"host": "user@evil.example"}, False),
        ("127.0.0.1", {"host": "127.0.0.1", "sec_fetch_site": "cross-site"}, False),
        ("127.0.0.1", {"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:9000"}, False),
        ("127.0.0.1", {"host": "127.0.0.1:8000", "origin": "null"}, False),
        ("127.0.0.1", {"host": "[::1"}, False),
        ("127.0.0.1", {"host": "127.0.0.1", "x_forwarded_for": "127.0.0.1"}, False),
        ("127.0.0.1", {"host": "127.0.0.1", "x_forwarded_proto": "http"}, False),
        ("127.0.0.1", {"host": "127.0.0.1", "forwarded": "for=127.0.0.1"}, False),
        ("127.0.0.1", {"host": "127.0.0.1", "via": "1.1 a"}, False),
        ("127.0.0.1", {"host": "127.0.0.1", "x_real_ip": "127.0.0.1"}, False),
    ],
)
def test_who_may_have_the_development_credential(
    client: str | None, headers: dict[str, str], expected: bool
) -> None:
    assert browsers.same_origin_loopback(request(client, **headers)) is expected
