"""The request to an OpenAI-compatible server: the body of a streamed chat completion.

Members that only some servers know are sent only where the client set them.
"""

from __future__ import annotations

from typing import Any, Final

from tailrace.protocol import records
from worker.engines import base
from worker.text.messages import chat

# vLLM's members to continue one message; used with servers that support it (`openai_canary`).
CONTINUED: Final = {"continue_final_message": True, "add_generation_prompt": False}


def body(
    request: records.Request,
    model: str,
    max_tokens: int,
    text_so_far: str = "",
    tokens_so_far: int = 0,
) -> dict[str, Any]:
    """The body.

    Args:
        max_tokens: tokens that may still be generated.
        text_so_far: the text to continue: the last message where the request sets that, then the
            answer so far.
        tokens_so_far: tokens of the answer so far.

    Raises:
        Refused: the server has no such format.
    """
    s = request.sampling
    messages = request.messages[:-1] if request.continue_final else request.messages
    members: dict[str, Any] = {
        "model": model,
        "messages": chat(messages),
        "max_tokens": max_tokens,
        "temperature": s.temperature,
        "top_p": s.top_p,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    optional = {
        "presence_penalty": s.presence_penalty or None,
        "frequency_penalty": s.frequency_penalty or None,
        "stop": list(s.stop) or None,
        # The same seed would repeat the draws of the beginning.
        "seed": None if s.seed is None else s.seed + tokens_so_far,
        "logit_bias": s.logit_bias or None,
        # vLLM's own, and of most other servers.
        "top_k": s.top_k or None,
        "min_p": s.min_p or None,
        "repetition_penalty": s.repetition_penalty if s.repetition_penalty != 1 else None,
        "min_tokens": min(max(0, s.min_tokens - tokens_so_far), max_tokens) or None,
        "ignore_eos": s.ignore_eos or None,
        "response_format": _format(request.format) if request.format else None,
        **_tools(request),
    }
    members |= {k: v for k, v in optional.items() if v is not None}
    if text_so_far:
        members["messages"] = [*members["messages"], {"role": "assistant", "content": text_so_far}]
        members |= CONTINUED
    return members


def _format(form: dict[str, Any]) -> dict[str, Any]:
    if form["type"] == "json_object":
        return {"type": "json_object"}
    if form["type"] != "json_schema":
        raise base.Refused(
            "unsupported_parameter",
            f"The model does not support a format of type `{form['type']}` here.",
            "text.format",
        )
    schema = {"name": "answer", "schema": form["schema"], "strict": bool(form.get("strict"))}
    return {"type": "json_schema", "json_schema": schema}


def _tools(request: records.Request) -> dict[str, Any]:
    """Where only some tools are allowed, the others are left out."""
    choice = request.tool_choice
    tools = [
        tool
        for tool in request.tools
        if not choice.names or tool.get("function", {}).get("name") in choice.names
    ]
    if not tools:
        return {}
    mode: Any = choice.mode
    if mode == "required" and len(choice.names) == 1:
        mode = {"type": "function", "function": {"name": choice.names[0]}}
    alone = {} if request.parallel_tool_calls else {"parallel_tool_calls": False}
    return {"tools": tools, "tool_choice": mode, **alone}
