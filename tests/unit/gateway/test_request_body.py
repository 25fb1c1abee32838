"""The body of a request is bounded in size and in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from gateway import request_body
from tailrace.delivery import kept_bytes
from tailrace.protocol import errors


def request(*parts: bytes, length: str = "", end: dict[str, Any] | None = None) -> Request:
    """A request whose body arrives in parts; then `end` comes, or nothing."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if end is not None:
        messages.append(end)

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    headers = [(b"content-length", length.encode())] if length else []
    return Request({"type": "http", "headers": headers}, receive)


LAST = {"type": "http.request", "body": b"", "more_body": False}


async def test_the_parts_are_one_object_and_count_for_the_account() -> None:
    kept = kept_bytes.KeptBytes(100)
    with kept.account("alice") as account:
        assert await request_body.read(request(b'{"a":', b"1}", end=LAST), 7, account) == {"a": 1}
        with pytest.raises(errors.ApiError) as refused:
            await request_body.read(request(b"x" * 101, end=LAST), 1000, account)
        assert refused.value.status == 429


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (lambda: request(b"12345678", end=LAST), 413, None),
        (lambda: request(length="8", end=LAST), 413, None),
        (lambda: request(b'{"a"', end={"type": "http.disconnect"}), 400, None),
        (lambda: request(b"[]", end=LAST), 400, "invalid_type"),
        (lambda: request(b"{", end=LAST), 400, "invalid_json"),
    ],
    ids=["too large", "too large by its head", "left", "no object", "no JSON"],
)
async def test_what_is_refused(sent: Any, status: int, code: str | None) -> None:
    with pytest.raises(errors.ApiError) as refused:
        await request_body.read(sent(), 7)
    assert refused.value.status == status
    assert code in (None, refused.value.code)


async def test_a_body_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Symptom: a sign-in without its end kept its connection for as long as the client liked."""
    monkeypatch.setattr(request_body, "DEADLINE_S", 0.01)
    with pytest.raises(errors.ApiError) as refused:
        await asyncio.wait_for(request_body.read(request(b"{"), 7), 5)
    assert refused.value.code == "request_timeout"
