"""The JSON body of an HTTP request, bounded in size and time."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request

from gateway.parsing import json_body
from tailrace.delivery import kept_bytes
from tailrace.protocol import errors

DEADLINE_S: Final = 60.0


async def read(
    request: Request, limit: int, account: kept_bytes.Account | None = None
) -> dict[str, Any]:
    """The body's object. What arrives is charged to `account`.

    Raises:
        errors.ApiError: larger than `limit` bytes, too slow, too much for the account, no JSON
            object, or the client left.
    """
    if int(request.headers.get("content-length") or 0) > limit:
        raise errors.payload_too_large(limit)
    parts, size = [], 0
    try:
        async with asyncio.timeout(DEADLINE_S):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise errors.payload_too_large(limit)
                if account is not None:
                    account.take(len(part))
                parts.append(part)
    except TimeoutError as error:
        raise errors.invalid_request(
            f"The request did not arrive within {DEADLINE_S:.0f} s.", code="request_timeout"
        ) from error
    except ClientDisconnect as error:
        # No client reads this answer; it shows in the metrics.
        raise errors.invalid_request("The client left.") from error
    return json_body.decode(b"".join(parts))
