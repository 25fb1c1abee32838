"""The body of an HTTP request, bounded in size and time, and decoded if it is compressed.

A body may exceed its limit by its images. An image is one long text, which is cheap to decode;
everything else may become many objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request

from gateway.parsing import content_encoding, images, json_body
from tailrace.delivery import kept_bytes
from tailrace.protocol import errors, files

T = TypeVar("T")

DEADLINE_S: Final = 60.0
# What images may add, in base64.
IMAGES_BYTES: Final = files.MAX_BYTES // 3 * 4 + 4 * images.MAX_IMAGES
# Bytes beyond the limit exist in this many copies, at most, until they are in the log.
WEIGHT: Final = 5
# A larger body is parsed in a thread.
LARGE_BYTES: Final = 262_144

_DATA_URL: Final = b'"data:'
_FEW: Final = 2 * images.MAX_IMAGES  # at most this many are searched


async def read(request: Request, limit: int) -> dict[str, Any]:
    """The JSON object of a small body.

    Raises:
        errors.ApiError: like `receive`; or the body is not a JSON object.
    """
    return json_body.decode(await receive(request, limit))


async def receive(
    request: Request,
    limit: int,
    account: kept_bytes.Account | None = None,
    *,
    for_images: int = 0,
) -> bytearray:
    """The body. Its bytes are charged to `account`; images may add `for_images` bytes.

    Raises:
        errors.ApiError: it is larger than `limit` bytes without its images, too slow, or too much
            for the account; it cannot be decoded; or the client left.
    """
    most = limit + for_images
    coding = content_encoding.coding_of(",".join(request.headers.getlist("content-encoding")))
    too_large = errors.payload_too_large(limit, without="its images" if for_images else "")
    content_length = int(request.headers.get("content-length") or 0)
    if content_length > most:
        raise too_large
    body = bytearray()
    charged = 0
    if account is not None and content_length > limit:
        charged = content_length
        account.reserve(_weight(0, charged, limit))  # refused before it is read
    try:
        async with asyncio.timeout(DEADLINE_S):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise too_large
                if account is not None and len(body) > charged:
                    account.reserve(_weight(charged, len(body), limit))
                    charged = len(body)
    except TimeoutError as error:
        raise errors.invalid_request(
            f"The request did not arrive within {DEADLINE_S:.0f} s.", code="request_timeout"
        ) from error
    except ClientDisconnect as error:
        # No client reads this answer; it shows in the metrics.
        raise errors.invalid_request("The client left.") from error
    if coding is not None and body:
        body = await asyncio.to_thread(content_encoding.decode, body, coding, most)
        if account is not None and len(body) > charged:
            account.reserve(_weight(charged, len(body), limit))
    if len(body) > limit and len(body) - of_images(body) > limit:
        raise too_large
    return body


def _weight(start: int, end: int, limit: int) -> int:
    """The charge for the bytes of a body from `start` to `end`."""
    return end - start + (WEIGHT - 1) * (max(0, end - limit) - max(0, start - limit))


def of_images(body: bytes | bytearray) -> int:
    """The number of bytes of a JSON text in data URLs; only the first ones count.

    Between two quotes there is a string, or the text is not JSON. So the counted bytes contain no
    objects.
    """
    total = at = 0
    for _ in range(_FEW):
        at = body.find(_DATA_URL, at)
        end = body.find(b'"', at + len(_DATA_URL))
        if at < 0 or end < 0:
            break
        total += end - at
        at = end
    return total


async def parse_body(body: bytearray, parse: Callable[[dict[str, Any]], T]) -> T:
    """The result of `parse` for the body's object. The body is emptied, because the object holds
    the same data.

    Raises:
        errors.ApiError: the body is not a JSON object; or like `parse`.
    """

    def read_once() -> T:
        fields = json_body.decode(body)
        body.clear()
        return parse(fields)

    return read_once() if len(body) <= LARGE_BYTES else await asyncio.to_thread(read_once)
