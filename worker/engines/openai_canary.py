"""Abilities of an OpenAI-compatible server, found by test requests.

A server that ignores unknown members must not pass for one that honours them. So status 200 alone
proves nothing:

    continuation   by the tokens of prompts, which the server counts. Of a last assistant message,
                   the prompt with `continue_final_message` has to be shorter than without (there
                   the message ends and another one begins), shorter than with only
                   `add_generation_prompt: false` (there it ends), and longer than without the
                   message. A server that ignores the members counts the same each time.
    formats        a schema that only one strange word satisfies, for a question with another answer
    tools          a call of a tool has to come back as a call
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from worker.engines import openai_body

Ask = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]]
"""Requests a chat completion without streaming. None: the server refuses the request (4xx)."""

WORD: Final = "zyzzyva"
TOOL: Final = "ring_bell"
_MOST_TOKENS: Final = 256  # a model may think before it answers
_USER: Final = {"role": "user", "content": "Count from one to nine, in words."}
_PREFIX: Final = "one two three"
_SCHEMA: Final = {
    "type": "object",
    "properties": {"word": {"type": "string", "enum": [WORD]}},
    "required": ["word"],
    "additionalProperties": False,
}
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": TOOL,
        "description": "Rings the bell.",
        "parameters": {
            "type": "object",
            "properties": {"times": {"type": "integer", "enum": [1]}},
            "required": ["times"],
            "additionalProperties": False,
        },
    },
}


class Continuation(NamedTuple):
    """How a server continues text.

    Attributes:
        offered: it continues the last message of an assistant.
        keeps_space: white space at the end of that message counts. Many chat templates trim it.
    """

    offered: bool
    keeps_space: bool = True


NO_CONTINUATION: Final = Continuation(offered=False)


async def continuation(ask: Ask) -> Continuation:
    """How the server continues text. At most six requests of one token; two to a server that does
    not."""

    async def prompt_tokens(text: str, **more: Any) -> int:
        last = [{"role": "assistant", "content": text}] if text else []
        answer = await ask({"messages": [_USER, *last], "max_tokens": 1, "temperature": 0, **more})
        usage = (answer or {}).get("usage")
        count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        return count if isinstance(count, int) else 0

    open_length = await prompt_tokens(_PREFIX, **openai_body.CONTINUED)
    if not 0 < open_length < await prompt_tokens(_PREFIX):
        return NO_CONTINUATION
    closed_length = await prompt_tokens(_PREFIX, add_generation_prompt=False)
    if not 0 < await prompt_tokens("") < open_length < closed_length:
        return NO_CONTINUATION
    # Counts that differ on repetition prove nothing: some servers omit cached tokens.
    if await prompt_tokens(_PREFIX, **openai_body.CONTINUED) != open_length:
        return NO_CONTINUATION
    spaced_length = await prompt_tokens(f"{_PREFIX}\n\n", **openai_body.CONTINUED)
    return Continuation(offered=True, keeps_space=spaced_length > open_length)


async def formats(ask: Ask) -> bool:
    """Whether the server obeys a JSON schema."""
    schema = {"name": "word", "schema": _SCHEMA, "strict": True}
    message = await _message(
        ask, "Say hello.", response_format={"type": "json_schema", "json_schema": schema}
    )
    try:
        return bool(json.loads(message.get("content") or "") == {"word": WORD})
    except (TypeError, ValueError):
        return False


async def tools(ask: Ask) -> bool:
    """Whether the server supports function calls: a required one and an optional one."""
    must = {"type": "function", "function": {"name": TOOL}}
    message = await _message(ask, "Ring the bell.", tools=[_TOOL], tool_choice=must)
    try:
        if message["tool_calls"][0]["function"]["name"] != TOOL:
            return False
    except (KeyError, IndexError, TypeError):
        return False
    # vLLM refuses this one if it was started without a parser of calls.
    may = await _message(ask, "Hello.", tools=[_TOOL], tool_choice="auto", max_tokens=1)
    return bool(may)


async def _message(ask: Ask, text: str, **more: Any) -> dict[str, Any]:
    """The message of the response; empty without one."""
    question = [{"role": "user", "content": text}]
    members = {"messages": question, "max_tokens": _MOST_TOKENS, "temperature": 0}
    answer = await ask(members | more)
    try:
        message = (answer or {})["choices"][0]["message"]
    except (KeyError, IndexError, TypeError):
        return {}
    return message if isinstance(message, dict) else {}
