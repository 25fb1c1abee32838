"""An HTTP answer without an application, in the shape of the API's errors."""

from __future__ import annotations

import json
from http import HTTPStatus

from tailrace.protocol import errors


def answer(error: errors.ApiError) -> bytes:
    """A whole HTTP answer that ends the connection."""
    body = json.dumps(errors.http_body(error)).encode()
    headers = {
        **error.headers,
        "content-type": "application/json",
        "content-length": str(len(body)),
        "x-content-type-options": "nosniff",
        "connection": "close",
    }
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
