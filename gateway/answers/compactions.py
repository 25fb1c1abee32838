"""`POST /v1/responses/compact`: the model itself summarizes a conversation.

The summary is an ordinary response that is not stored. The client gets the input for its next
request: all user messages, and the summary, sealed for its owner.
"""

from __future__ import annotations

import os
from typing import Any, Final

from gateway.parsing import conversation
from tailrace.protocol import errors, ids, images, records, seals

PREFIX: Final = "cmp_"
_SUMMARY: Final = conversation.SUMMARY.format("")


def check(path: str, keys: seals.Keys | None) -> seals.Keys:
    """The keys that seal summaries. Raises ApiError: the deployment has none."""
    if keys is None:
        raise errors.not_offered(
            path, "Summaries are sealed with a session key, and this deployment has none."
        )
    return keys


def body(
    final: dict[str, Any],
    messages: list[dict[str, Any]],
    owner: records.Owner,
    keys: seals.Keys,
) -> dict[str, Any]:
    """The answer.

    Args:
        final: the Response object of the summary; it has not failed.
        messages: the summarized messages, with their files.

    Raises:
        errors.ApiError: the model gave no summary, or the summary is too long to be sent back.
    """
    text = "".join(
        part["text"]
        for item in final["output"]
        if item["type"] == "message"
        for part in item["content"]
    ).strip()
    if not text:
        raise errors.response_failed(None, "The model gave no summary.")
    entropy = os.urandom(ids.RANDOM_BYTES)
    name = ids.mint(ids.parse(final["id"]), entropy, PREFIX)
    sealed = keys.close(name, text, owner)
    if sealed is None:
        raise errors.response_failed(None, "The model's summary is too long to be sealed.")
    item = {"id": name, "type": "compaction", "encrypted_content": sealed}
    users = [m for m in messages if m["role"] == "user" and not _is_summary(m)]
    items = [_as_item(final["id"], n, message) for n, message in enumerate(users)]
    return {
        "id": final["id"],
        "object": "response.compaction",
        "created_at": final["created_at"],
        "output": [*images.with_urls(items, users), item],
        "usage": final["usage"],
    }


def _is_summary(message: dict[str, Any]) -> bool:
    """Whether a message is the summary of an earlier compaction, which this one includes."""
    content = message["content"]
    return isinstance(content, str) and content.startswith(_SUMMARY)


def _as_item(rid: str, number: int, message: dict[str, Any]) -> dict[str, Any]:
    item = conversation.Message("user", message["content"], "")
    return {"id": ids.item_id(rid, f"msg_{number}_"), **conversation.as_json(item)}
