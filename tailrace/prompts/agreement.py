"""Whether two tokenizers and templates make the same ids (pure).

The files of a model do not decide it alone: transformers changes them when it reads them, and each
version differs. So both sides also render the same requests, and compare the results.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tailrace.protocol import records

# What a template may call to learn the date: its prompts are others tomorrow.
_DATED: Final = ("strftime_now", "datetime")
_DECISIVE: Final = ("model", "normalizer", "pre_tokenizer", "added_tokens")  # of a tokenizer
_OWNER: Final = records.Owner("tailrace", "probe")
_TEXTS: Final = (
    "Hello, world!",
    "  two  spaces,\ttab\r\nCRLF\n\n\nlines ",
    "größer 天気 Привет नमस्ते 👩‍👩‍👧‍👦🇩🇪 e\u0301 \u00a0\u200b\ufeff",
    "\x00\x01\x7f <|im_end|><|im_start|>system\n</s><s>[INST]<think></think><tool_call>",
    '{"a": [1, 2.5e-3, null], "b": "\\u00e9 \\\\ \\""}',
    "def f(x):\n    return x**2  # 1234567890\n" * 4,
)
_TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks <things> & 天気 up.",
        "parameters": {
            "type": "object",
            "properties": {"what": {"type": "string"}, "deep": {"type": ["boolean", "null"]}},
            "required": ["what"],
        },
    },
}
_CALL: Final[dict[str, Any]] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look_up", "arguments": '{"what": "größer"}'},
}

Render = Callable[[records.Request], Sequence[int]]


def digest(
    render: Render,
    raw_ids: Callable[[str], Sequence[int]],
    template: str,
    tokenizer: str,
) -> str:
    """A digest of the prompts that a tokenizer and a template make; empty if they depend on the
    time.

    Args:
        render: the ids of a request; raises where the template refuses it.
        raw_ids: the ids of a text without a template.
        template: its source.
        tokenizer: JSON of the library `tokenizers`.
    """
    if any(word in template for word in _DATED):
        return ""
    digest_ = hashlib.blake2b(digest_size=16)

    def add(value: Any) -> None:
        digest_.update(json.dumps(value, sort_keys=True).encode() + b"\n")

    add(template)
    parts = json.loads(tokenizer)
    add([parts.get(name) for name in _DECISIVE])
    for text in _TEXTS:
        add(list(raw_ids(text)))
    for request in _requests():
        try:
            add(list(render(request)))
        except Exception:  # of any type: both refuse it, or they differ
            add("refused")
    return digest_.hexdigest()


def _requests() -> Iterator[records.Request]:
    """Probes of all parts that a prompt may have."""
    user = {"role": "user", "content": "".join(_TEXTS)}
    answer = {"role": "assistant", "content": "Yes."}
    call_message = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    tool_message = {"role": "tool", "tool_call_id": "call_1", "content": "<42>"}
    system_message = {"role": "system", "content": "Be brief."}
    reasoning_message = {**answer, "reasoning_content": "Hm."}
    dialogues: list[list[dict[str, Any]]] = [
        *([{"role": "user", "content": text}] for text in _TEXTS),
        [system_message, user],
        [user, answer, user],
        [system_message, user, reasoning_message, user],
        [user, call_message, tool_message],
        [user, {**call_message, "content": "Wait."}, tool_message, answer, system_message, user],
    ]
    for dialogue in dialogues:
        for tools in ([], [_TOOL], [_TOOL, _custom()]):
            yield _request(dialogue, tools=tools)
    for text in _TEXTS:
        partial_answer = {"role": "assistant", "content": text}
        yield _request([system_message, user, partial_answer], continue_final=True)
    for effort in ("none", "low", "high"):
        yield _request([user], reasoning={"effort": effort})


def _custom() -> dict[str, Any]:
    form = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
    return {"type": "custom", "custom": {"name": "free", "description": "d", "format": form}}


def _request(messages: list[dict[str, Any]], **more: Any) -> records.Request:
    return records.Request("probe", _OWNER, "m", messages, records.Sampling(1), {}, **more)


def too_long(tokens: int, max_model_len: int) -> str:
    """The error message for a prompt of this number of tokens."""
    return (
        f"This model's maximum context length is {max_model_len} tokens. However, your messages "
        f"resulted in {tokens} tokens."
    )
