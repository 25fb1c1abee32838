"""Images and files as input: what is taken, what is refused, what an image's header says."""

from __future__ import annotations

import base64
import hashlib
import struct
from typing import Any

import pytest

from gateway.load import admission, placement
from gateway.parsing import images
from tailrace.protocol import features, records
from tailrace.protocol import images as message_images
from tests.support import cases, pictures
from tests.unit.gateway.parsing.parsers import (
    chat,
    code_and_param,
    refused_chat,
    refused_responses,
    responses,
)

PICTURE = pictures.png(1)
URL = pictures.url(PICTURE)
TEXT = "data:text/plain;base64," + base64.b64encode("Grüße".encode()).decode()


def image(url: Any = URL, **more: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url, **more}


def saying(*parts: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": list(parts)}]}


def asking(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


PART = {
    "type": "image",
    "sha256": hashlib.sha256(PICTURE).hexdigest(),
    "media": "image/png",
    "width": 40,
    "height": 30,
    "data": base64.b64encode(PICTURE).decode(),
}


def test_both_apis_read_an_image_alike() -> None:
    words = {"type": "text", "text": "What is it?"}
    expected = [{"role": "user", "content": [words, PART]}]
    read = responses(saying({"type": "input_text", "text": "What is it?"}, image()))
    assert read.input == expected
    assert chat(asking(words, {"type": "image_url", "image_url": {"url": URL}})).input == expected


def test_a_detail_is_kept_where_it_is_not_the_default() -> None:
    [low, auto] = responses(saying(image(detail="low"), image(detail="auto"))).input[0]["content"]
    assert (low["detail"], auto) == ("low", PART)


def test_items_show_the_image_by_its_digest_and_get_it_back_from_the_messages() -> None:
    read = responses(saying({"type": "input_text", "text": "?"}, image(detail="high")))
    [item] = read.items
    assert str(PART["data"]) not in str(item)
    [restored_item] = message_images.with_urls(read.items, read.input)
    assert restored_item["content"] == [{"type": "input_text", "text": "?"}, image(detail="high")]


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
def test_a_tool_may_answer_with_an_image(kind: str) -> None:
    arguments = "arguments" if kind == "function_call" else "input"
    words = {"type": "input_text", "text": "There:"}
    output = {"type": f"{kind}_output", "call_id": "c", "output": [words, image(detail="low")]}
    call = {"type": kind, "call_id": "c", "name": "see", arguments: "{}"}
    read = responses({"input": [call, output]})
    assert read.input[-1] == {
        "role": "tool",
        "tool_call_id": "c",
        "content": [{"type": "text", "text": "There:"}, {**PART, "detail": "low"}],
    }
    assert str(PART["data"]) not in str(read.items)
    restored_item = message_images.with_urls(read.items, read.input)[-1]
    assert restored_item["output"] == [words, image(detail="low")]
    owner = records.Owner("i", "s")
    seeing = records.Request("r", owner, "m", read.input, records.Sampling(5), {})
    assert features.needs_of(seeing) == [("images", "input"), ("tool_images", "output")]


def test_outputs_that_are_texts_stay_texts_and_those_of_chat_completions_have_nothing_else() -> (
    None
):
    call = {"type": "function_call", "call_id": "c", "name": "see", "arguments": "{}"}
    words = {"type": "input_text", "text": "a"}
    output = {"type": "function_call_output", "call_id": "c", "output": [words, words]}
    read = responses({"input": [call, output]})
    assert (read.input[-1]["content"], read.items[-1]["output"]) == ("aa", "aa")
    bad = {**output, "output": [words, image("http://x")]}
    assert code_and_param(refused_responses({"input": [call, bad]})) == (
        "input[1].output[1].image_url",
        "unsupported_value",
    )
    function = {"name": "see", "arguments": "{}"}
    answer = {"role": "assistant", "tool_calls": [{"id": "c", "function": function}]}
    part = {"type": "image_url", "image_url": {"url": URL}}
    answered = {"role": "tool", "tool_call_id": "c", "content": [part]}
    assert code_and_param(refused_chat({"messages": [answer, answered]})) == (
        "messages[1].content[0].type",
        "unsupported_value",
    )


def test_a_message_with_an_image_makes_a_record_of_version_2_that_needs_the_feature() -> None:
    def made(messages: list[dict[str, Any]]) -> records.Request:
        owner = records.Owner("i", "s")
        return records.Request("r", owner, "m", messages, records.Sampling(5), {})

    plain = made([{"role": "user", "content": [{"type": "text", "text": "a list of texts"}]}])
    seeing = made(responses(saying(image())).input)
    assert (records.version_of(plain), records.version_of(seeing)) == (1, 2)
    assert features.needs_of(plain) == []
    assert features.needs_of(seeing) == [("images", "input")]
    decoded = records.decode_request(records.encode(seeing))
    assert decoded is not None
    assert decoded.messages == seeing.messages


def test_an_image_costs_tokens_and_does_not_lengthen_the_text() -> None:
    with_image = responses(saying(image(pictures.url(pictures.png_header(280, 56)))))
    without = responses(saying({"type": "input_text", "text": ""}))
    assert with_image.characters == without.characters
    assert admission.cost(with_image) - admission.cost(without) == 20


def test_placement_knows_images_by_their_digests() -> None:
    one, other = (responses(saying(image(pictures.url(pictures.png(n))))).input for n in (1, 2))
    same = responses(saying(image())).input
    chains = [placement.prefix("s", "m", messages) for messages in (one, other, same)]
    assert chains[0] == chains[2] != chains[1]


def test_the_text_of_a_file_is_text() -> None:
    part = {"type": "input_file", "filename": "a.txt", "file_data": TEXT}
    read = responses(saying({"type": "input_text", "text": "Sum up. "}, part))
    text = "Sum up. File a.txt:\nGrüße\n"
    assert read.input == [{"role": "user", "content": text}]
    inner = {"filename": "a.txt", "file_data": TEXT}
    parts = [{"type": "text", "text": "Sum up. "}, {"type": "file", "file": inner}]
    assert chat(asking(*parts)).input == [{"role": "user", "content": text}]


def test_the_mark_at_the_beginning_of_a_file_is_left_out() -> None:
    """Spreadsheets begin CSV files with it."""
    data = base64.b64encode("a;b".encode("utf-8-sig")).decode()
    part = {"type": "input_file", "file_data": f"data:text/csv;base64,{data}"}
    assert responses(saying(part)).input == [{"role": "user", "content": "a;b\n"}]


def test_an_image_beside_a_file() -> None:
    read = responses(saying({"type": "input_file", "file_data": TEXT}, image()))
    assert read.input[0]["content"] == [{"type": "text", "text": "Grüße\n"}, PART]


def riff(kind: bytes, body: bytes) -> bytes:
    return b"RIFF" + bytes(4) + b"WEBP" + kind + bytes(4) + body + bytes(16)


def jpeg(*segments: bytes) -> bytes:
    return b"\xff\xd8" + b"".join(segments)


def segment(marker: int, body: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", len(body) + 2) + body


FRAME = segment(0xC2, struct.pack(">BHHB", 8, 200, 300, 3) + bytes(9))
APP = segment(0xE0, b"JFIF\0" + bytes(9))
HEADERS = {
    "png": (pictures.png_header(300, 200), "image/png"),
    "gif": (b"GIF89a" + struct.pack("<HH", 300, 200) + bytes(3), "image/gif"),
    "webp lossy": (
        riff(b"VP8 ", bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", 300, 200)),
        "image/webp",
    ),
    "webp lossless": (
        riff(b"VP8L", b"\x2f" + struct.pack("<I", 299 | 199 << 14)),
        "image/webp",
    ),
    "webp extended": (
        riff(b"VP8X", bytes(4) + (299).to_bytes(3, "little") + (199).to_bytes(3, "little")),
        "image/webp",
    ),
    "jpeg": (jpeg(APP, FRAME), "image/jpeg"),
    "jpeg, fill bytes": (jpeg(APP, b"\xff\xff", FRAME), "image/jpeg"),
}


@cases.each("name", HEADERS)
def test_the_header_says_format_and_size(name: str) -> None:
    data, media = HEADERS[name]
    assert images.size(data) == (media, 300, 200)
    for end in range(len(data)):  # no part of it is an error of this server
        assert images.size(data[:end]) in (None, (media, 300, 200))


NO_IMAGES = {
    "nothing": b"",
    "text": b"hello",
    "pdf": b"%PDF-1.7",
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg' width='10' height='10'/>",
    "bmp": b"BM" + bytes(60),
    "tiff": b"II*\0" + bytes(60),
    "webp of another kind": riff(b"ANIM", bytes(20)),
    "jpeg without a size": jpeg(APP, segment(0xDA, bytes(9)), FRAME),
    "jpeg of endless segments": jpeg(*[segment(0xE1, b"")] * 5_000, FRAME),
}


@cases.each("name", NO_IMAGES)
def test_what_is_no_image_is_refused(name: str) -> None:
    url = pictures.url(NO_IMAGES[name])
    assert code_and_param(refused_responses(saying(image(url)))) == (
        "input[0].content[0].image_url",
        "unsupported_value",
    )


def of(width: int, height: int) -> str:
    return pictures.url(pictures.png_header(width, height))


REFUSED = {
    "address": ("https://example.com/a.png", "unsupported_value"),
    "address in capitals": ("HTTP://127.0.0.1/", "unsupported_value"),
    "file": ("file:///etc/passwd", "invalid_value"),
    "path": ("/etc/passwd", "invalid_value"),
    "number": (5, "invalid_type"),
    "nothing": (None, "missing_required_parameter"),
    "empty": ("", "invalid_value"),
    "no data": ("data:image/png;base64,", "unsupported_value"),
    "not base64": ("data:image/png,abc", "invalid_value"),
    "wrong base64": ("data:image/png;base64,a", "invalid_value"),
    "line ends in base64": (URL[:40] + "\n" + URL[40:], "invalid_value"),
    "another alphabet": ("data:image/png;base64,é___", "invalid_value"),
    "half padded": (f"data:image/png;base64,{PART['data']}=", "invalid_value"),
    "another medium": (pictures.url(PICTURE, "text/html"), "unsupported_value"),
    "long medium": (pictures.url(PICTURE, "image/" + "a" * 500), "invalid_value"),
    "no pixels": (of(0, 5), "invalid_value"),
    "too wide": (of(images.MAX_SIDE + 1, 1), "invalid_value"),
    "bomb": (of(images.MAX_SIDE, images.MAX_SIDE), "invalid_value"),
    "absurd bomb": (of(2**31, 2**31), "invalid_value"),
    "too many bytes": (pictures.url(PICTURE + bytes(images.MAX_BYTES)), "invalid_value"),
}


@cases.each("name", REFUSED)
def test_images_that_are_refused(name: str) -> None:
    url, code = REFUSED[name]
    path = "input[0].content[0].image_url"
    assert code_and_param(refused_responses(saying(image(url)))) == (path, code)
    part = {"type": "image_url", "image_url": {"url": url}}
    path = "messages[0].content[0].image_url.url"
    assert code_and_param(refused_chat(asking(part))) == (path, code)


def test_an_address_is_named_as_what_it_is() -> None:
    error = refused_responses(saying(image("https://example.com/a.png")))
    assert "not fetched" in error.message


@cases.each(
    ("part", "param", "code"),
    [
        (image(detail="huge"), "detail", "unsupported_value"),
        (image(file_id="file-1"), "image_url", "invalid_value"),
        ({"type": "input_image", "file_id": 5}, "file_id", "invalid_type"),
        ({"type": "input_image", "file_id": "f", "detail": "huge"}, "detail", "unsupported_value"),
        ({"type": "input_file", "file_id": 5}, "file_id", "invalid_type"),
        ({"type": "input_file", "file_id": "f", "file_data": TEXT}, "file_data", "invalid_value"),
        ({"type": "input_file", "file_id": "f", "file_url": "x"}, "file_url", "invalid_value"),
        ({"type": "input_file", "file_url": "http://x"}, "file_url", "unsupported_parameter"),
        ({"type": "input_file", "filename": "a"}, "file_data", "missing_required_parameter"),
        ({"type": "input_file", "file_data": "http://x"}, "file_data", "unsupported_value"),
        ({"type": "input_file", "file_data": 5}, "file_data", "invalid_type"),
        ({"type": "input_file", "filename": 5, "file_data": TEXT}, "filename", "invalid_type"),
        (
            {"type": "input_file", "file_data": "data:application/pdf;base64,JVBERi0="},
            "file_data",
            "unsupported_value",
        ),
        ({"type": "input_file", "file_data": "JVBERi0="}, "file_data", "unsupported_value"),
        ({"type": "input_file", "file_data": "/w=="}, "file_data", "unsupported_value"),
        (
            {
                "type": "input_file",
                "file_data": pictures.url(bytes(images.MAX_FILE_BYTES + 1), "text/plain"),
            },
            "file_data",
            "invalid_value",
        ),
    ],
)
def test_parts_that_are_refused(part: dict[str, Any], param: str, code: str) -> None:
    assert code_and_param(refused_responses(saying(part))) == (f"input[0].content[0].{param}", code)


@cases.each("role", ["system", "developer", "assistant"])
def test_only_a_user_shows_images(role: str) -> None:
    error = refused_responses({"input": [{"role": role, "content": [image()]}]})
    assert code_and_param(error) == ("input[0].content[0].type", "unsupported_value")


def test_so_many_images_bytes_and_pixels_are_the_most() -> None:
    many = [image()] * images.MAX_IMAGES
    assert len(responses(saying(*many)).input[0]["content"]) == images.MAX_IMAGES
    assert code_and_param(refused_responses(saying(*many, image()))) == ("input", "invalid_value")
    large = image(of(images.MAX_SIDE, images.MAX_PIXELS // images.MAX_SIDE))
    assert responses(saying(large, large))
    assert code_and_param(refused_responses(saying(large, large, image()))) == (
        "input",
        "invalid_value",
    )
    half = pictures.url(PICTURE + bytes(images.MAX_BYTES // 2 - len(PICTURE)))
    assert responses(saying(image(half), image(half)))
    assert code_and_param(refused_responses(saying(image(half), image(half), image()))) == (
        "input",
        "invalid_value",
    )
