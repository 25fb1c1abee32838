"""Images in the messages of a request (pure).

A message's `content` is a text, or a list of parts where it shows images:

    {"type": "text", "text"}
    {"type": "image", "sha256", "media", "width", "height", "detail"?, "data" | "file"}

`sha256` is the digest of the image file in hexadecimal, `data` the file in base64. A large file
lies in `llm.files`, and `file` says where (`tailrace.protocol.files`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

# An image of this many pixels in each direction is about one token. No model's own figure: the
# engine counts exactly, this is for admission.
PIXELS_PER_TOKEN_SIDE: Final = 28
MAX_TOKENS_GUESS: Final = 4_096
BYTES_PER_TOKEN: Final = 1_024

REFERENCE: Final = "sha256:"


def parts(messages: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """All image parts, in order."""
    for message in messages:
        content = message.get("content")
        if type(content) is list:
            for part in content:
                if type(part) is dict and part.get("type") == "image":
                    yield part


def any_in(messages: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the messages show an image."""
    return next(parts(messages), None) is not None


def has_files(messages: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a file of the messages lies in `llm.files`."""
    return any("file" in part for part in parts(messages))


def map_images(
    messages: Iterable[dict[str, Any]], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Messages with each image part replaced by `change` of it."""
    return [
        {
            **message,
            "content": [
                change(part) if part.get("type") == "image" else part for part in message["content"]
            ],
        }
        if type(message.get("content")) is list
        else message
        for message in messages
    ]


def tokens(messages: Iterable[Mapping[str, Any]]) -> int:
    """About how many tokens the images are."""
    return sum(_tokens(part) for part in parts(messages))


def _tokens(part: Mapping[str, Any]) -> int:
    side = PIXELS_PER_TOKEN_SIDE
    by_pixels = -(-part["width"] // side) * -(-part["height"] // side)
    # The log's bytes count too: a file may be large and its picture small.
    size: int = part["file"]["bytes"] if "file" in part else len(part.get("data", "")) // 4 * 3
    return int(max(min(by_pixels, MAX_TOKENS_GUESS), size // BYTES_PER_TOKEN))


def url(part: Mapping[str, Any]) -> str:
    """The data URL of a part; its digest if the file lies in `llm.files`."""
    if "data" not in part:
        return f"{REFERENCE}{part['sha256']}"
    return f"data:{part['media']};base64,{part['data']}"


def as_input(part: Mapping[str, Any]) -> dict[str, Any]:
    """The part for an item of a request's `input`. It names the image by its digest, because the
    messages contain the file."""
    return {
        "type": "input_image",
        "detail": part.get("detail", "auto"),
        "image_url": f"{REFERENCE}{part['sha256']}",
    }


def digests_in(items: Iterable[dict[str, Any]]) -> set[str]:
    """Digests of the images that items name."""
    digests = set[str]()
    for item in items:
        content = item.get("output" if "output" in item else "content")
        for part in content if type(content) is list else ():
            if part.get("type") == "input_image":
                digests.add(part["image_url"].removeprefix(REFERENCE))
    return digests


def with_urls(
    items: Iterable[dict[str, Any]], messages: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Items with the data URLs of the messages' images instead of their digests."""
    urls = {f"{REFERENCE}{part['sha256']}": url(part) for part in parts(messages)}
    if not urls:
        return list(items)
    return [_with_urls(item, urls) for item in items]


def _with_urls(item: dict[str, Any], urls: Mapping[str, str]) -> dict[str, Any]:
    name = "output" if "output" in item else "content"
    content = item.get(name)
    if type(content) is not list:
        return item
    return {
        **item,
        name: [
            {**part, "image_url": urls.get(part["image_url"], part["image_url"])}
            if part.get("type") == "input_image"
            else part
            for part in content
        ],
    }
