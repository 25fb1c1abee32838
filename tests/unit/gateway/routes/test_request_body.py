"""The body of a request is bounded in size and in time."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest
from starlette.requests import Request

from gateway.parsing import images
from gateway.routes import request_body
from tailrace.delivery import kept_bytes
from tailrace.protocol import errors
from tests.support import cases


def request(
    *parts: bytes, length: str = "", coding: str = "", end: dict[str, Any] | None = None
) -> Request:
    """A request whose body arrives in parts; then `end` comes, or nothing."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if end is not None:
        messages.append(end)

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    headers = [(b"content-length", length.encode())] if length else []
    headers += [(b"content-encoding", coding.encode())] if coding else []
    return Request({"type": "http", "headers": headers}, receive)


LAST = {"type": "http.request", "body": b"", "more_body": False}


async def test_the_parts_are_one_object_and_count_for_the_account() -> None:
    budget = kept_bytes.KeptBytes(100)
    with budget.account("alice") as account:
        body = await request_body.receive(request(b'{"a":', b"1}", end=LAST), 7, account)
        assert await request_body.parse_body(body, dict) == {"a": 1}
        with pytest.raises(errors.ApiError) as error:
            await request_body.receive(request(b"x" * 101, end=LAST), 1000, account)
        assert error.value.status == 429


@cases.each(
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
    with pytest.raises(errors.ApiError) as error:
        await request_body.read(sent(), 7)
    assert error.value.status == status
    assert code in (None, error.value.code)


async def test_a_body_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Symptom: a sign-in without its end kept its connection for as long as the client liked."""
    monkeypatch.setattr(request_body, "DEADLINE_S", 0.01)
    with pytest.raises(errors.ApiError) as error:
        await asyncio.wait_for(request_body.read(request(b"{"), 7), 5)
    assert error.value.code == "request_timeout"


IMAGE = b'"data:image/png;base64,' + b"A" * 600 + b'"'


@cases.each(
    "body",
    [
        b'{"a":' + IMAGE + b"}",
        b'{"a":[' + IMAGE + b"," + IMAGE + b"]}",
        b'{"a":"\\"data:' + b"[" * 600 + b'"}',  # still a text
    ],
)
async def test_images_may_be_larger_than_the_rest_of_a_body(body: bytes) -> None:
    payload = request(body, end=LAST)
    assert await request_body.receive(payload, 100, for_images=2_000) == body
    with pytest.raises(errors.ApiError) as error:
        await request_body.receive(request(body, end=LAST), 100)
    assert error.value.status == 413


@cases.each(
    "body",
    [
        b"[" + b"{}," * 200 + b"]",
        b'{"a":' + IMAGE + b',"b":[' + b"{}," * 200 + b"]}",
        b'{"a":"data:\\"' + b"[],[],[]," * 80 + b'"}',
        b"[" + b'"data:",' * 400 + b"]",
        b'"data:' + b"[" * 600,  # no end
        b'{"a":' + IMAGE * 5 + b"}",
    ],
    ids=["objects", "beside an image", "behind an escape", "many", "no end", "too large together"],
)
async def test_nothing_but_images_may(body: bytes) -> None:
    """A body of objects costs many times its bytes."""
    with pytest.raises(errors.ApiError) as error:
        await request_body.receive(request(body, end=LAST), 100, for_images=2_000)
    assert error.value.status == 413
    assert "without its images" in error.value.message


def test_only_the_first_images_are_looked_for() -> None:
    """Symptom: a body of nothing but beginnings of data URLs took half a second to look through."""
    assert request_body.of_images(b'"data:",' * 1_000) == 6 * 2 * images.MAX_IMAGES


async def test_a_large_body_is_read_in_a_thread() -> None:
    import threading

    def thread(_: dict[str, Any]) -> int:
        return threading.get_ident()

    sizes = (9, request_body.LARGE_BYTES)
    small, large = (bytearray(b'{"a":"%s"}' % (b"x" * n)) for n in sizes)
    assert await request_body.parse_body(small, thread) == threading.get_ident()
    assert await request_body.parse_body(large, thread) != threading.get_ident()
    assert not large  # its bytes are not held twice


@pytest.mark.parametrize("announced", ["", "1000"])
async def test_what_is_beyond_the_limit_counts_as_often_as_it_is_held(announced: str) -> None:
    body = b'"data:' + b"A" * 993 + b'"'
    budget = kept_bytes.KeptBytes(100 + request_body.WEIGHT * 900)
    parts = (body[:50], body[50:300], body[300:])
    with budget.account("alice") as account:
        payload = request(*parts, length=announced, end=LAST)
        assert await request_body.receive(payload, 100, account, for_images=2_000) == body
        assert account.size == 100 + request_body.WEIGHT * 900
        again = request(length=announced or "101", end=LAST)
        with pytest.raises(errors.ApiError) as error:
            await request_body.receive(again, 100, account, for_images=2_000)
        assert error.value.status == 429


async def test_a_compressed_body_is_decoded_and_counts_as_decoded() -> None:
    text = b'{"a":"' + b"b" * 1_000 + b'"}'
    packed = gzip.compress(text)
    budget = kept_bytes.KeptBytes(len(text))
    with budget.account("alice") as account:
        sent = request(packed[:10], packed[10:], coding="gzip", end=LAST)
        assert await request_body.receive(sent, 2_000, account) == text
    with budget.account("alice") as account:
        await request_body.receive(request(b"x", end=LAST), 2_000, account)
        sent = request(packed, coding="gzip", end=LAST)
        with pytest.raises(errors.ApiError) as refused:
            await request_body.receive(sent, 2_000, account)
    assert refused.value.status == 429


@cases.each(
    ("coding", "status"), [("gzip", 413), ("zstd", 400), ("compress", 415), ("gzip, br", 415)]
)
async def test_what_cannot_be_decoded_is_refused(coding: str, status: int) -> None:
    packed = gzip.compress(b'"' + b"b" * 1_000 + b'"')
    with pytest.raises(errors.ApiError) as refused:
        await request_body.receive(request(packed, coding=coding, end=LAST), 500)
    assert refused.value.status == status
    if status == 415:
        assert refused.value.headers["accept-encoding"] == "gzip, deflate, br, zstd"
