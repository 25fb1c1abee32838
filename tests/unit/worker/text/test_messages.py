"""Messages as chat templates take them."""

from __future__ import annotations

from typing import Any

from tests.support import cases
from worker.text.messages import characters, chat, plain


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


CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "what is it like?"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "I look.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city":"Zürich"}'},
            },
            {"id": "call_2", "type": "custom", "custom": {"name": "note", "input": 'say "é"'}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "done"}]},
]


@cases.each(
    ("said", "sent"),
    [
        ('{"city":"Z', '{"arguments": "{\\"city\\":\\"Z"}'),
        ("[1]", '{"arguments": "[1]"}'),
        ("null", "{}"),
        ("", "{}"),
    ],
)
def test_arguments_that_are_no_object_are_one_for_a_server(said: str, sent: str) -> None:
    """A server that reads them refused every further turn of such a dialogue."""
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": said}}
    (message,) = chat([{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert message["tool_calls"][0]["function"] == {"name": "weather", "arguments": sent}


def test_a_server_gets_calls_and_outputs_and_custom_tools_as_functions() -> None:
    calls = CALLED[1]["tool_calls"]
    noted = {"name": "note", "arguments": '{"input": "say \\"é\\""}'}
    assert chat(CALLED) == [
        {"role": "user", "content": "what is it like?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [calls[0], {"id": "call_2", "type": "function", "function": noted}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_2", "content": "done"},
    ]


def test_a_server_gets_a_users_images_as_data_urls() -> None:
    image = {"type": "image", "sha256": "0", "media": "image/png", "width": 1, "height": 1}
    text = {"type": "text", "text": "?"}
    shown = [text, {**image, "data": "AA=="}, {**image, "data": "AQ==", "detail": "low"}]
    assert chat([{"role": "user", "content": shown}]) == [
        {
            "role": "user",
            "content": [
                text,
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
                {
                    "type": "image_url",
                    "image_url": {"url": "data:image/png;base64,AQ==", "detail": "low"},
                },
            ],
        }
    ]


def test_all_that_is_said_counts() -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    alone = [characters([message], []) for message in CALLED]
    assert alone[0] == len("what is it like?")
    assert alone[1] > len("I look.") + len('{"city":"Zürich"}')
    assert characters(CALLED, tools) > sum(alone)
