"""Forms with a file: what is taken, and that nothing else ever raises anything but a refusal."""

from __future__ import annotations

import contextlib
import random

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.parsing import multipart
from tailrace.protocol import errors
from tests.support import cases

TYPE = "multipart/form-data; boundary=XX"


def part(headers: str, data: bytes) -> bytes:
    return b"--XX\r\n" + headers.encode() + b"\r\n\r\n" + data + b"\r\n"


def named(name: str, data: bytes, filename: str | None = None) -> bytes:
    more = "" if filename is None else f'; filename="{filename}"'
    return part(f'Content-Disposition: form-data; name="{name}"{more}', data)


END = b"--XX--\r\n"


def read(body: bytes, kind: str = TYPE) -> multipart.Form:
    return multipart.parse(kind, bytearray(body), "file")


def refused(body: bytes, kind: str = TYPE) -> str:
    with pytest.raises(errors.ApiError) as error:
        read(body, kind)
    assert (error.value.status, error.value.type) == (400, "invalid_request_error")
    return error.value.message


def test_a_form_as_httpx_makes_it() -> None:
    data = random.Random(3).randbytes(300_000) + b"\r\n--not the boundary\r\n"
    request = httpx.Request(
        "POST",
        "http://x/",
        data={"purpose": "vision", "expires_after[seconds]": "3600"},
        files={"file": ("größe.png", data, "image/png")},
    )
    form = multipart.parse(request.headers["content-type"], bytearray(request.read()), "file")
    assert form.data == data
    assert form.filename == "größe.png"
    assert form.fields == {"purpose": "vision", "expires_after[seconds]": "3600"}


@cases.each("more", ["", "\r\nContent-Type: text/plain", '; filename="other.md"'])
def test_a_name_beyond_ascii_as_pythons_requests_sends_it(more: str) -> None:
    encoded = "form-data; name=\"file\"; filename*=utf-8''gr%C3%B6%C3%9Fe%20%231.md"
    form = read(part(f"Content-Disposition: {encoded}{more}", b"hello") + END)
    assert form.filename == ("other.md" if "other" in more else "größe #1.md")
    assert form.data == b"hello"


def test_a_file_may_have_a_type_and_no_name() -> None:
    headers = 'Content-Disposition: form-data; name="file"\r\nContent-Type: text/plain'
    form = read(part(headers, b"hello") + END)
    assert (form.filename, form.data, form.fields) == ("", b"hello", {})


@cases.each("size", [0, 1, 65_535, 65_536, 65_537, 131_072])
def test_a_file_of_any_size_is_whole(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert read(named("file", data, "a") + END).data == data


@cases.each(
    ("kind", "body"),
    [
        ("", b""),
        ("application/json", b"{}"),
        ("multipart/form-data", END),
        ("multipart/form-data; boundary=", END),
        (f"multipart/form-data; boundary={'x' * 257}", END),
        ("multipart/mixed; boundary=XX", END),
        (TYPE, b""),
        (TYPE, b"no boundary at all"),
        (TYPE, named("file", b"cut", "a")),
        (TYPE, named("file", b"cut", "a")[:-5]),
        (TYPE, b"--XX\r\nContent-Disposition"),
        (TYPE, part("Content-Type: text/plain", b"without a name") + END),
        (TYPE, part('Content-Disposition: attachment; name="file"', b"x") + END),
        (TYPE, named("file", b"no file") + END),
        (TYPE, named("file", b"1", "a") + named("file", b"2", "b") + END),
        (TYPE, named("purpose", b"x" * 5_000) + END),
        (TYPE, b"".join(named(f"f{n}", b"") for n in range(17)) + END),
        (TYPE, part("\r\n".join(f"X-{n}: y" for n in range(50)), b"") + END),
        (TYPE, part("X: " + "y" * 10_000, b"") + END),
    ],
)
def test_what_is_no_such_form_is_refused(kind: str, body: bytes) -> None:
    assert "form" in refused(body, kind)


@given(st.binary(max_size=400), st.text(st.characters(max_codepoint=255), max_size=40))
def test_anything_is_a_form_or_a_refusal(body: bytes, kind: str) -> None:
    for each in (TYPE, kind):
        for payload in (body, b"--XX\r\n" + body, named("file", body, "a") + END):
            with contextlib.suppress(errors.ApiError):
                multipart.parse(each, bytearray(payload), "file")
