"""Chat messages as requests carry them (pure)."""

from __future__ import annotations

from typing import Any


def text_of(content: Any) -> str:
    """A message's text: a string, or the text parts of a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(
            part["text"]
            for part in content
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return ""


def plain(messages: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Messages as role and text only, which every chat template understands. `developer` is the
    newer name of `system`."""
    roles = {"developer": "system"}
    return [
        {
            "role": roles.get(role := str(m.get("role", "user")), role),
            "content": text_of(m.get("content")),
        }
        for m in messages
    ]
