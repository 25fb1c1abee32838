"""A file that a client uploads (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.parsing import images, multipart
from tailrace.protocol import errors, files, topics

FILE: Final = "file"  # name of the form's part
MAX_FORM_BYTES: Final = files.MAX_BYTES + 65_536
PURPOSES: Final = ("assistants", "user_data", "vision")
LEAST_S: Final = 3_600
_TEXT: Final = "text/plain"


@dataclass(frozen=True, slots=True)
class UploadForm:
    """A parsed upload. An image has a size in pixels; anything else is text in UTF-8."""

    filename: str
    purpose: str
    media: str
    data: bytes
    lives_s: int
    width: int = 0
    height: int = 0


def parse(form: multipart.Form) -> UploadForm:
    """The upload of a form.

    Raises:
        errors.ApiError: 400 naming what is wrong in it.
    """
    if form.data is None:
        raise errors.missing_required_parameter(FILE)
    purpose = form.fields.get("purpose")
    if purpose is None:
        raise errors.missing_required_parameter("purpose")
    if purpose not in PURPOSES:
        raise errors.unsupported_value("purpose", f"Supported purposes are: {', '.join(PURPOSES)}.")
    lives_s = _lives_s(form.fields)
    data = bytes(form.data)
    if not data:
        raise errors.invalid_value(FILE, "The file is empty.")
    filename = _filename(form.filename or "")
    header = images.size(data)
    if header is not None:
        images.check_image(header, data, FILE)
        return UploadForm(
            filename, purpose, header.media, data, lives_s, header.width, header.height
        )
    images.text_of(data, FILE)
    return UploadForm(filename, purpose, _TEXT, data, lives_s)


def _filename(raw_name: str) -> str:
    """The name without a path and control characters. It is displayed, and never opened."""
    name = raw_name.replace("\\", "/").rpartition("/")[2]
    printable = "".join(c for c in name if c.isprintable())[: images.MAX_NAME_CHARS].strip()
    return printable or FILE


def _lives_s(fields: dict[str, str]) -> int:
    anchor = fields.get("expires_after[anchor]")
    seconds = fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return topics.UPLOAD_S
    if anchor != "created_at":
        raise errors.unsupported_value("expires_after[anchor]", "Supported is: created_at.")
    if seconds is None or not (seconds.isascii() and seconds.isdigit() and len(seconds) < 12):
        raise errors.invalid_type("expires_after[seconds]", "a whole number")
    if int(seconds) < LEAST_S:
        raise errors.invalid_value(
            "expires_after[seconds]", f"Expected at least {LEAST_S} seconds."
        )
    # A longer lifetime is reduced to the maximum; `expires_at` has the result.
    return min(int(seconds), topics.UPLOAD_S)
