"""Files that requests name: their chunks, and the places that stand for them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tailrace.protocol import files, images, records, topics
from tests.support import cases

PLACE = {"p": 2, "at": [7, 9], "bytes": 600_000, "ms": 1_000}


def test_a_file_comes_back_from_its_chunks_and_nothing_else_does() -> None:
    data = bytes(range(256)) * 5_000
    pieces = list(files.chunks(data))
    assert [len(piece) for piece in pieces] == [files.CHUNK_BYTES] * 2 + [231_424]
    place = files.Place(0, (3, 9, 5), len(data), 1)
    found = dict(zip(place.at, pieces, strict=True))
    assert files.span(place) == (3, 10)
    assert files.join(files.digest(data), place, found) == data
    for wrong in ({**found, 9: b"x"}, {3: pieces[0]}, {}):
        with pytest.raises(files.Differs):
            files.join(files.digest(data), place, wrong)


def test_the_largest_file_and_its_record_fit() -> None:
    assert len(list(files.chunks(bytes(files.MAX_BYTES)))) == files.MAX_CHUNKS
    assert files.CHUNK_BYTES <= records.MAX_RECORD_BYTES // 2


def test_a_place_is_named_until_it_is_half_a_day_old() -> None:
    place = files.parse_place(PLACE)
    assert place.member() == PLACE
    assert place.reusable(1_000 + topics.FILE_REUSE_MS - 1)
    assert not place.reusable(1_000 + topics.FILE_REUSE_MS)


@cases.each(
    "change",
    [
        {"p": -1},
        {"at": []},
        {"at": [-1]},
        {"at": [0] * (files.MAX_CHUNKS + 1)},
        {"bytes": 0},
        {"bytes": files.MAX_BYTES + 1},
        {"ms": "now"},
        {"at": None},
    ],
)
def test_what_is_no_place_is_said_to_be_none(change: dict[str, Any]) -> None:
    for value in ({**PLACE, **change}, None, "x"):
        with pytest.raises(files.NoPlace):
            files.parse_place(value)


def test_messages_are_changed_where_they_show_images_and_nowhere_else() -> None:
    part = {"type": "image", "sha256": "0", "media": "image/png", "width": 1, "height": 1}
    plain = {"role": "user", "content": "hi"}
    call = {"role": "assistant", "tool_calls": []}
    text = {"type": "text", "text": "See:"}
    shows = {"role": "user", "content": [text, {**part, "data": "AA=="}]}
    changed = images.map_images([plain, call, shows], lambda _: {**part, "file": PLACE})
    assert changed == [plain, call, {"role": "user", "content": [text, {**part, "file": PLACE}]}]
    assert images.has_files(changed)
    assert not images.has_files([plain, shows])


@cases.each("size", [0, 1, 2, 3, 196_607, 196_608, 196_609, 500_000])
def test_base64_in_steps_is_base64(size: int) -> None:
    data = (b"0123456789" * 50_001)[:size]
    assert files.encode_base64(data) == base64.b64encode(data).decode()
    assert files.decode_base64(files.encode_base64(data)) == data


@cases.each(
    "text",
    [
        "A",
        "AAA",
        "AA==AAAA",
        "A" * 262_140 + "AAA=" + "AAAA",
        "AA A",
        "A" * 262_145,
        "AAAé",
        "====",
    ],
)
def test_what_is_no_base64(text: str) -> None:
    with pytest.raises(ValueError):
        files.decode_base64(text)
