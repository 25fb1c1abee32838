"""Messages as chat templates take them."""

from __future__ import annotations

from typing import Any

from worker.messages import plain


def test_parts_become_text_and_developer_becomes_system() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": "be brief"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "a"},
                {"type": "input_image", "image_url": "x"},
                {"text": "b"},
            ],
        },
        {"role": "assistant", "content": None},
    ]
    assert plain(messages) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": ""},
    ]
