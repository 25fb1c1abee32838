"""Images and files that a client sends with a message (pure).

They are in the request, as data URLs, or were uploaded before: then a part names the file until it
is looked up (`gateway.responses.references`). This server fetches nothing from an address that a
client names. Only an image's header is read here: its format and its size in pixels, which bounds
the cost of decoding. A text file becomes text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from gateway.parsing import conversation
from tailrace.protocol import errors, files, images

MAX_IMAGES: Final = 16
MAX_BYTES: Final = files.MAX_BYTES  # of all images of a request
MAX_SIDE: Final = 8_192
MAX_PIXELS: Final = 16_777_216  # 48 MiB in a worker's memory
MAX_PIXELS_TOGETHER: Final = 2 * MAX_PIXELS
MAX_FILE_BYTES: Final = 262_144
MAX_SEGMENTS: Final = 256  # of a JPEG before its size
MAX_NAME_CHARS: Final = 256

_DETAILS: Final = ("auto", "low", "high", "original")
_DATA_URL: Final = re.compile(r"data:([^;,]{0,127})((?:;[^;,]{0,127}){0,8}),", re.IGNORECASE)
_ONLY_TEXT: Final = "Only text files in UTF-8 are supported, no PDF and no other format."
_TEXT_MEDIA: Final = frozenset(
    {"", "application/json", "application/xml", "application/yaml", "application/x-yaml"}
)


class Size(NamedTuple):
    """The header of an image file."""

    media: str
    width: int
    height: int


def of_responses(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    """An `input_image` as a part of a message.

    Raises:
        errors.ApiError: 400 naming what is wrong in it.
    """
    if part.get("file_id") is not None:
        _alone(part, ("image_url",), where)
        detail = _detail(part.get("detail"), where)
        return _upload(part["file_id"], where, image=True, detail=detail)
    return _part(part.get("image_url"), f"{where}.image_url", part.get("detail"), where)


def of_chat(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    """An `image_url` as a part of a message. Raises like `of_responses`."""
    where = f"{where}.image_url"
    inner = part.get("image_url")
    if inner is None:
        raise errors.missing_required_parameter(where)
    if not isinstance(inner, dict):
        raise errors.invalid_type(where, "an object")
    return _part(inner.get("url"), f"{where}.url", inner.get("detail"), where)


def file(part: Mapping[str, Any], where: str) -> str | dict[str, Any]:
    """The text of an `input_file`, or of a `file` of Chat Completions; or the upload that it names.

    Raises:
        errors.ApiError: 400 naming what is wrong in it, also for a file that is not text.
    """
    if part.get("file_id") is not None:
        _alone(part, ("file_data", "file_url"), where)
        return _upload(part["file_id"], where, image=False)
    if part.get("file_url") is not None:
        raise errors.unsupported_parameter(f"{where}.file_url", _not_fetched("A file", "file_data"))
    name = part.get("filename")
    if name is not None and (not isinstance(name, str) or len(name) > MAX_NAME_CHARS):
        raise errors.invalid_type(
            f"{where}.filename", f"a string of at most {MAX_NAME_CHARS} characters"
        )
    path = f"{where}.file_data"
    value = part.get("file_data")
    if value is None:
        raise errors.missing_required_parameter(path)
    if not isinstance(value, str):
        raise errors.invalid_type(path, "a string")
    media, _, data = _data(value, path, MAX_FILE_BYTES)
    if not media.startswith("text/") and media not in _TEXT_MEDIA:
        raise errors.unsupported_value(path, _ONLY_TEXT)
    return as_text(name, text_of(data, path))


def as_text(name: str | None, text: str) -> str:
    """The text of a file in a message, without a byte order mark."""
    text = text.removeprefix("\ufeff")
    return f"File {name}:\n{text}\n" if name else f"{text}\n"


def text_of(data: bytes, path: str) -> str:
    """The text of a file.

    Raises:
        errors.ApiError: 400, it is not a text, or is too long.
    """
    if data.startswith(b"%PDF-") or b"\0" in data:
        raise errors.unsupported_value(path, _ONLY_TEXT)
    try:
        text = data.decode()
    except ValueError as error:
        raise errors.unsupported_value(path, _ONLY_TEXT) from error
    if len(data) > MAX_FILE_BYTES:
        raise _too_large(path, MAX_FILE_BYTES)
    return text


def check_image(header: Size, data: bytes, path: str) -> None:
    """Check the size of an image.

    Raises:
        errors.ApiError: 400, it is too large, or has no pixels.
    """
    if len(data) > MAX_BYTES:
        raise _too_large(path, MAX_BYTES)
    if not (0 < header.width <= MAX_SIDE and 0 < header.height <= MAX_SIDE):
        raise errors.invalid_value(
            path, f"An image has at least 1 and at most {MAX_SIDE} pixels in each direction."
        )
    if header.width * header.height > MAX_PIXELS:
        raise errors.invalid_value(path, f"An image has at most {MAX_PIXELS} pixels.")


def check_count(items: list[dict[str, Any]], param: str) -> None:
    """Check the number and the total size of images in messages. An image counts each time it
    appears.

    Raises:
        errors.ApiError
    """
    parts = list(images.parts(items))
    if len(parts) > MAX_IMAGES:
        raise errors.invalid_value(param, f"A request has at most {MAX_IMAGES} images.")
    if sum(_bytes(part) for part in parts) > MAX_BYTES:
        raise errors.invalid_value(
            param, f"The images of a request have at most {MAX_BYTES} bytes together."
        )
    if sum(part["width"] * part["height"] for part in parts) > MAX_PIXELS_TOGETHER:
        raise errors.invalid_value(
            param, f"The images of a request have at most {MAX_PIXELS_TOGETHER} pixels together."
        )


def first(items: Iterable[conversation.Item]) -> str | None:
    """The path in the body of the first image of the items."""
    for item in items:
        match item:
            case conversation.Message(content=list(parts), where=where):
                return f"{where}.content[{_index(parts)}]"
            case conversation.CallOutput(output=list(parts), where=where):
                return f"{where}.output[{_index(parts)}]"
    return None


def _index(parts: Iterable[Mapping[str, Any]]) -> int:
    return [part["type"] for part in parts].index("image")


def size(data: bytes) -> Size | None:
    """The header of a PNG, JPEG, WebP or GIF file; None for anything else."""
    if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR" and len(data) >= 24:
        return Size("image/png", _big(data[16:20]), _big(data[20:24]))
    if data[:6] in (b"GIF87a", b"GIF89a") and len(data) >= 10:
        return Size("image/gif", _little(data[6:8]), _little(data[8:10]))
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP" and len(data) >= 30:
        return _webp(data)
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg(data)
    return None


def _bytes(part: Mapping[str, Any]) -> int:
    if "file" in part:
        return files.parse_place(part["file"]).bytes
    base64: str = part["data"]
    return len(base64) // 4 * 3 - base64[-2:].count("=")


# ---- one image -----------------------------------------------------------------------------------


def _alone(part: Mapping[str, Any], others: Iterable[str], where: str) -> None:
    for name in others:
        if part.get(name) is not None:
            raise errors.invalid_value(
                f"{where}.{name}", f"Either 'file_id' or '{name}', not both."
            )


def _upload(file_id: Any, where: str, *, image: bool, detail: str | None = None) -> dict[str, Any]:
    """A part that refers to an upload until it is looked up."""
    path = f"{where}.file_id"
    if not isinstance(file_id, str):
        raise errors.invalid_type(path, "a string")
    return {
        "type": conversation.UPLOAD,
        "id": file_id,
        "image": image,
        "detail": detail,
        "where": path,
    }


def _detail(value: Any, where: str) -> str | None:
    if value is not None and value not in _DETAILS:
        raise errors.unsupported_value(
            f"{where}.detail", f"Supported details are: {', '.join(_DETAILS)}."
        )
    return None if value == "auto" else value


def image_part(sha256: str, header: Size, detail: str | None, **content: Any) -> dict[str, Any]:
    """An image as a part of a message; `content`: its `data`, or its `file`."""
    return {
        "type": "image",
        "sha256": sha256,
        "media": header.media,
        "width": header.width,
        "height": header.height,
        **({"detail": detail} if detail is not None else {}),
        **content,
    }


def _part(value: Any, path: str, detail: Any, where: str) -> dict[str, Any]:
    if value is None:
        raise errors.missing_required_parameter(path)
    if not isinstance(value, str):
        raise errors.invalid_type(path, "a string")
    detail = _detail(detail, where)
    if value[:5].lower() != "data:":
        if value[:8].lower().startswith(("http://", "https://")):
            raise errors.unsupported_value(path, _not_fetched("An image"))
        raise errors.invalid_value(path, "An image must be a data URL.")
    media, text, data = _data(value, path, MAX_BYTES)
    header = size(data)
    if header is None or (media and not media.startswith("image/")):
        raise errors.unsupported_value(path, "Supported images are: PNG, JPEG, WebP, GIF.")
    check_image(header, data, path)
    return image_part(files.digest(data), header, detail, data=text)


def _data(value: str, path: str, most: int) -> tuple[str, str, bytes]:
    """Media type, base64 and bytes of a data URL, or of base64 alone."""
    media, start = "", 0
    if value[:5].lower() == "data:":
        head = _DATA_URL.match(value[:1200])
        if head is None or not head[2].lower().endswith(";base64"):
            raise errors.invalid_value(path, "Expected 'data:<media type>;base64,<data>'.")
        media, start = head[1].strip().lower(), head.end()
    elif value[:8].lower().startswith(("http://", "https://")):
        raise errors.unsupported_value(path, _not_fetched("A file"))
    if (len(value) - start) // 4 * 3 > most + 3:
        raise _too_large(path, most)
    text = value[start:]
    try:
        data = files.decode_base64(text)
    except ValueError as error:
        raise errors.invalid_value(path, "The data is not base64.") from error
    if len(data) > most:
        raise _too_large(path, most)
    return media, text, data


def _too_large(path: str, most: int) -> errors.ApiError:
    return errors.invalid_value(path, f"Expected at most {most} bytes.")


def _not_fetched(what: str, member: str = "") -> str:
    how = f" in '{member}'" if member else ""
    return f"{what} is not fetched from an address. Send it as a data URL{how}."


# ---- headers -------------------------------------------------------------------------------------


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _webp(data: bytes) -> Size | None:
    kind = data[12:16]
    if kind == b"VP8X":
        return Size("image/webp", _little(data[24:27]) + 1, _little(data[27:30]) + 1)
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        return Size("image/webp", _little(data[26:28]) & 0x3FFF, _little(data[28:30]) & 0x3FFF)
    if kind == b"VP8L" and data[20] == 0x2F:
        bits = _little(data[21:25])
        return Size("image/webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    return None


# Start of frame: sixteen markers, without those of tables and of an extension.
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def _jpeg(data: bytes) -> Size | None:
    at = 2
    for _ in range(MAX_SEGMENTS):
        if len(data) < at + 9 or data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _FRAMES:
            return Size("image/jpeg", _big(data[at + 7 : at + 9]), _big(data[at + 5 : at + 7]))
        elif marker in (0xD8, 0xD9, 0xDA):  # no size before the image itself
            return None
        else:
            at += 2 + _big(data[at + 2 : at + 4])
    return None
