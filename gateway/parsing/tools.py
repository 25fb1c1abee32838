"""Tools, as both APIs ask for them: none are supported yet (pure)."""

from __future__ import annotations

from gateway.parsing.json_body import Body
from tailrace.protocol import errors


def refuse(body: Body) -> None:
    """
    Raises:
        errors.ApiError: the body offers tools, or asks for one.
    """
    if body.get("tools"):
        raise errors.unsupported_parameter("tools", "Tools are not supported.")
    if body.get("tool_choice") not in (None, "auto", "none"):
        raise errors.unsupported_value("tool_choice", "Tools are not supported.")
