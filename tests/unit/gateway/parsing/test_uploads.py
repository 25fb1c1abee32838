"""Uploads: what is taken, for how long, and by which name it is shown."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parsing import images, multipart, uploads
from tailrace.protocol import errors, topics
from tests.support import cases, pictures

PICTURE = pictures.png(1)


def form(data: bytes | None = b"hello", filename: str = "a.txt", **fields: str) -> multipart.Form:
    arguments = {"purpose": "user_data", **{n.replace("__", "[", 1): v for n, v in fields.items()}}
    arguments = {f"{n}]" if "[" in n else n: v for n, v in arguments.items()}
    return multipart.Form(arguments, filename, None if data is None else bytearray(data))


def test_an_image_is_known_by_its_bytes_and_not_by_its_name() -> None:
    actual = uploads.parse(form(PICTURE, "a.exe", purpose="vision"))
    assert (actual.media, actual.purpose, actual.data) == ("image/png", "vision", PICTURE)
    assert (actual.width, actual.height) == images.size(PICTURE)[1:]  # type: ignore[index]
    assert actual.lives_s == topics.UPLOAD_S


def test_anything_else_is_text() -> None:
    actual = uploads.parse(form("größe\n".encode(), "notes.md"))
    assert (actual.media, actual.width, actual.data) == ("text/plain", 0, "größe\n".encode())


@cases.each(
    ("given", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\temp\\a.png", "a.png"),
        ("a\r\nSet-Cookie: x.txt", "aSet-Cookie: x.txt"),
        ("\u202etxt.exe", "txt.exe"),
        ("", "file"),
        ("///", "file"),
        ("x" * 999, "x" * images.MAX_NAME_CHARS),
    ],
)
def test_a_name_is_shown_without_path_and_control_characters(given: str, shown: str) -> None:
    assert uploads.parse(form(filename=given)).filename == shown


@cases.each(
    ("seconds", "lives"),
    [("3600", 3_600), ("7200", 7_200), ("2592000", topics.UPLOAD_S)],
)
def test_it_lives_as_long_as_asked_for_and_no_longer_than_the_log_keeps_it(
    seconds: str, lives: int
) -> None:
    form_ = form(expires_after__anchor="created_at", expires_after__seconds=seconds)
    assert uploads.parse(form_).lives_s == lives


REFUSED: dict[str, tuple[multipart.Form, str, str]] = {
    "no file": (form(None), "file", "missing_required_parameter"),
    "empty": (form(b""), "file", "invalid_value"),
    "no purpose": (
        multipart.Form({}, "a", bytearray(b"x")),
        "purpose",
        "missing_required_parameter",
    ),
    "purpose": (form(purpose="fine-tune"), "purpose", "unsupported_value"),
    "pdf": (form(b"%PDF-1.7 ..."), "file", "unsupported_value"),
    "zeros": (form(b"a\0b"), "file", "unsupported_value"),
    "not utf-8": (form(b"\xff\xfe\xfd"), "file", "unsupported_value"),
    "long text": (form(b"x" * (images.MAX_FILE_BYTES + 1)), "file", "invalid_value"),
    "wide": (form(pictures.png_header(images.MAX_SIDE + 1, 1)), "file", "invalid_value"),
    "bomb": (form(pictures.png_header(8_192, 8_192)), "file", "invalid_value"),
    "large image": (form(PICTURE + bytes(images.MAX_BYTES)), "file", "invalid_value"),
    "anchor": (
        form(expires_after__anchor="now", expires_after__seconds="3600"),
        "expires_after[anchor]",
        "unsupported_value",
    ),
    "no seconds": (
        form(expires_after__anchor="created_at"),
        "expires_after[seconds]",
        "invalid_type",
    ),
    "no number": (
        form(expires_after__anchor="created_at", expires_after__seconds="1e9"),
        "expires_after[seconds]",
        "invalid_type",
    ),
    "too short": (
        form(expires_after__anchor="created_at", expires_after__seconds="3599"),
        "expires_after[seconds]",
        "invalid_value",
    ),
}


@cases.each("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    arguments, param, code = REFUSED[name]
    with pytest.raises(errors.ApiError) as error:
        uploads.parse(arguments)
    assert (error.value.status, error.value.param, error.value.code) == (400, param, code)


def test_a_name_of_a_form_is_never_part_of_another_message() -> None:
    wrong: dict[str, Any] = {"purpose": "vision\r\nX: y"}
    with pytest.raises(errors.ApiError) as error:
        uploads.parse(form(**wrong))
    assert "\r" not in error.value.message
