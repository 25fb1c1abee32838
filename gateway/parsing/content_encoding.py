"""Compressed bodies of requests (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Final

import cramjam

from tailrace.protocol import errors

# By content coding (RFC 9110, 8.4.1), what may decode it. Clients send `deflate` with and without
# zlib's frame.
CODINGS: Final[Mapping[str, tuple[ModuleType, ...]]] = {
    "gzip": (cramjam.gzip,),
    "x-gzip": (cramjam.gzip,),
    "deflate": (cramjam.zlib, cramjam.deflate),
    "br": (cramjam.brotli,),
    "zstd": (cramjam.zstd,),
}
ACCEPTED: Final = "gzip, deflate, br, zstd"
# What is larger than FREE_BYTES may be so many times the compressed size. Text is ten times.
MAX_RATIO: Final = 100
FREE_BYTES: Final = 1024 * 1024
# Memory is taken for so many times the compressed size, and for more if that is too little.
_FIRST_RATIO: Final = 8
_NO_ROOM: Final = "failed to write whole buffer"


def coding_of(header: str | None) -> str | None:
    """The coding that a `Content-Encoding` names; None for none.

    Raises:
        errors.ApiError: 415, an unknown one, or several.
    """
    names = [name.strip().lower() for name in (header or "").split(",")]
    named = [name for name in names if name not in ("", "identity")]
    if not named:
        return None
    if len(named) > 1 or named[0] not in CODINGS:
        raise errors.unsupported_encoding(", ".join(named), ACCEPTED)
    return named[0]


def decode(body: bytes | bytearray, coding: str, most: int) -> bytearray:
    """The decoded body.

    Args:
        body: compressed.
        coding: one of CODINGS.
        most: bytes that the result may have.

    Raises:
        errors.ApiError: 413, the result has more than `most` bytes, or than FREE_BYTES and
            MAX_RATIO times the body's size; 400, it is not in this coding, or incomplete.
    """
    most = min(most, max(FREE_BYTES, MAX_RATIO * len(body)))
    size = min(_FIRST_RATIO * len(body), most)
    while True:
        out = bytearray(size)
        for codec in CODINGS[coding]:
            try:
                written: int = codec.decompress_into(body, out)
            except cramjam.DecompressionError as error:
                failure = error
                if _NO_ROOM in str(error):
                    break
            else:
                del out[written:]
                return out
        if _NO_ROOM not in str(failure):
            raise errors.invalid_request(
                f"The body is not valid '{coding}', which its Content-Encoding says.",
                code="invalid_encoding",
            ) from failure
        if size == most:
            raise errors.decoded_too_large(most) from failure
        size = min(4 * size, most)
