"""Compressed bodies, made by other libraries than the one that decodes them."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable

import brotli  # type: ignore[import-untyped]
import cramjam
import pytest

from gateway.parsing import content_encoding
from tailrace.protocol import errors
from tests.support import cases


def raw(data: bytes) -> bytes:
    """Deflate without zlib's frame."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def zstd(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data))


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "gzip in two members": (
        "x-gzip",
        lambda data: gzip.compress(data[:7]) + gzip.compress(data[7:]),
    ),
    "zlib": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw),
    "brotli": ("br", brotli.compress),
    "zstd": ("zstd", zstd),
}


@pytest.mark.parametrize("name", PACKERS)
def test_what_clients_send_is_decoded(name: str) -> None:
    coding, pack = PACKERS[name]
    noise = random.Random(1).randbytes(5_000)
    for data in (b'{"model":"m","input":"Hello"}', b'"' + b"a" * 20_000 + b'"', noise):
        assert content_encoding.decode(pack(data), coding, len(data)) == data


@pytest.mark.parametrize("name", PACKERS)
def test_it_has_bounds(name: str) -> None:
    coding, pack = PACKERS[name]
    packed = pack(random.Random(1).randbytes(5_000))
    with pytest.raises(errors.ApiError) as large:
        content_encoding.decode(packed, coding, 4_999)
    assert (large.value.status, large.value.code) == (413, "payload_too_large")
    packed = pack(bytes(3_000_000))
    assert len(packed) < 2_500_000 / content_encoding.MAX_RATIO
    with pytest.raises(errors.ApiError) as dense:
        content_encoding.decode(packed, coding, 10_000_000)
    assert dense.value.status == 413


@pytest.mark.parametrize("name", PACKERS)
def test_what_is_incomplete_or_something_else_is_named(name: str) -> None:
    coding, pack = PACKERS[name]
    packed = pack(b'{"model":"m","input":"Hello"}' * 10)
    for wrong in (packed[: len(packed) // 2], b'{"model":"m","input":"Hello"}'):
        with pytest.raises(errors.ApiError) as refused:
            content_encoding.decode(wrong, coding, 10_000)
        assert (refused.value.status, refused.value.code) == (400, "invalid_encoding")
        assert coding in refused.value.message


@cases.each(
    ("header", "coding"),
    [(None, None), ("", None), ("identity", None), (" GZip ", "gzip"), ("identity, br", "br")],
)
def test_the_coding_that_is_named(header: str | None, coding: str | None) -> None:
    assert content_encoding.coding_of(header) == coding


@cases.each("header", ["compress", "gzip, zstd", "gzip,gzip", "utf-8"])
def test_others_are_refused(header: str) -> None:
    with pytest.raises(errors.ApiError) as refused:
        content_encoding.coding_of(header)
    assert refused.value.status == 415
    assert refused.value.headers["accept-encoding"] == content_encoding.ACCEPTED
