"""Embeddings of the scripted engine: a vector is a function of its input's ids alone."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import Final

from tailrace.protocol import records
from worker.engines import base

DIMENSIONS: Final = 32


def text_ids(text: str) -> list[int]:
    """One id for each four bytes, which is enough to count with."""
    raw = text.encode()
    return [int.from_bytes(raw[at : at + 3], "big") for at in range(0, len(raw), 4)]


def encode(embed: records.Embed, max_model_len: int) -> list[list[int]]:
    """The ids of each input.

    Raises:
        base.Refused: one is too long or empty, or `dimensions` is too high.
    """
    if embed.dimensions is not None and not 1 <= embed.dimensions <= DIMENSIONS:
        raise base.Refused(
            "invalid_value", f"'dimensions' must be from 1 to {DIMENSIONS}.", "dimensions"
        )
    inputs = []
    for index, each in enumerate(embed.inputs, embed.first):
        ids = text_ids(each) if isinstance(each, str) else list(each)
        if embed.truncate:
            ids = ids[:max_model_len]
        base.check_input(index, len(ids), max_model_len)
        inputs.append(ids)
    return inputs


def vector(ids: Sequence[int], dimensions: int | None = None) -> bytes:
    """Its first `dimensions`; their length is one."""
    digest = hashlib.shake_256(b"".join(i.to_bytes(4, "little") for i in ids))
    count = dimensions or DIMENSIONS
    values = [b - 127.5 for b in digest.digest(count)]
    length = math.hypot(*values)
    return struct.pack(f"<{count}f", *(v / length for v in values))
