"""Image files for tests, made without an image library."""

from __future__ import annotations

import base64
import random
import struct
import zlib
from typing import Final

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"


def png(seed: int, width: int = 40, height: int = 30) -> bytes:
    """A picture of random coloured blocks."""
    draw = random.Random(seed)
    colours = [bytes(draw.randrange(256) for _ in range(3)) for _ in range(16)]
    widths = [-(-(i + 1) * width // 4) - -(-i * width // 4) for i in range(4)]
    rows = []
    for y in range(height):
        blocks = (colours[4 * (4 * y // height) + i] * widths[i] for i in range(4))
        rows.append(b"\0" + b"".join(blocks))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"".join(rows))
    return SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def png_header(width: int, height: int) -> bytes:
    """Only what says the size: a picture that is never decoded."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return SIGNATURE + _chunk(b"IHDR", head)


def url(data: bytes, media: str = "image/png") -> str:
    """The data URL of a file."""
    return f"data:{media};base64,{base64.b64encode(data).decode()}"


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
