"""JSON answers whose content may hold parts that are encoded already (`msgspec.Raw`)."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

_encode = msgspec.json.Encoder().encode


class EncodedJSON(Response):
    """An answer with Response objects whose log probabilities are already encoded."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _encode(content)
