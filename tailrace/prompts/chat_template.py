"""A model's chat template: its variables besides messages, and the rendering of requests (pure).

A template ignores variables that it does not know, so tools or an effort would be dropped silently.
Rendering it with and without a variable shows which ones it uses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from tailrace.protocol import images, records

_PROBE: Final = [{"role": "user", "content": "?"}]
_PROBE_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "tailrace_probe",
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {}},
    },
}
_PROBE_CALL: Final[dict[str, Any]] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call", "type": "function", "function": {"name": "tailrace_probe", "arguments": {}}}
    ],
}
_SWITCHES: Final[dict[str, tuple[Any, Any]]] = {
    "reasoning_effort": ("low", "high"),
    "enable_thinking": (False, True),
    "thinking": (False, True),
}
# A stand-in for a text that is continued: templates trim, split and search their texts.
_OPEN: Final = "tailrace-continues-here"
_NONE: Final = ("none", "minimal")
_EFFORTS: Final = {"minimal": "low", "xhigh": "high", "max": "high"}


class Unrenderable(Exception):
    """The template cannot make a prompt of a request. `code` and `message` are for the client."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class Tokenizer(Protocol):
    """The tokenizer of transformers, or one with the same behaviour."""

    @property
    def chat_template(self) -> str | dict[str, str] | None:
        """The template's source; some models have several, by name."""

    @property
    def apply_chat_template(self) -> Callable[..., Any]:
        """Makes the prompt of messages: ids with `tokenize`, else text. Raises any type."""

    @property
    def encode(self) -> Callable[..., list[int]]:
        """The ids of a text; with `add_special_tokens=False` of nothing else."""


class Template:
    """A model's chat template.

    Attributes:
        takes_tools: it shows tools to the model.
        takes_images, takes_tool_images: it has a marker for images that a user, or a tool, shows.
        switches: its variables that say how much the model thinks.
        continues: it shows the text of a last message of the assistant as it is, and once.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.takes_tools = "tailrace_probe" in self._probe(tools=[_PROBE_TOOL])
        self.takes_images = self._takes_images([], {"role": "user"})
        tool_message = {"role": "tool", "tool_call_id": "call", "name": "tailrace_probe"}
        self.takes_tool_images = self._takes_images([*_PROBE, _PROBE_CALL], tool_message)
        self.switches = frozenset(
            name
            for name, (one, second) in _SWITCHES.items()
            if self._probe(**{name: one}) != self._probe(**{name: second})
        )
        partial = [*_PROBE, {"role": "assistant", "content": _OPEN}]
        self.continues = self._probe(partial, add_generation_prompt=False).count(_OPEN) == 1

    @property
    def text(self) -> str:
        """Its source; of several the one for tools."""
        template = self._tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("tool_use") or template.get("default")
        return template or ""

    @property
    def opens_thinking(self) -> bool:
        """The prompt ends within the model's reasoning."""
        return "<think>" in self._probe().rstrip()[-len("<think>") :]

    def render(self, request: records.Request) -> list[int]:
        """The prompt's ids. Where the last message is continued, they end with its text, exactly.

        Raises:
            Unrenderable: the template does not support the messages, or the requested
                reasoning.
        """
        tools = (
            [tool_for_template(t) for t in request.tools]
            if request.tool_choice.mode != "none"
            else []
        )
        variables = self.variables(request)
        render = self._open if request.continue_final else self._closed
        try:
            ids = render(messages(request.messages), tools=tools or None, **variables)
        except Exception as error:  # templates raise any type, for example on the order of roles
            raise Unrenderable(
                "invalid_prompt",
                f"The model's chat template refused the messages: {type(error).__name__}",
            ) from error
        return list(ids)

    def _closed(self, messages_: list[dict[str, Any]], **variables: Any) -> list[int]:
        """The ids of messages that the model answers."""
        return list(
            self._tokenizer.apply_chat_template(
                messages_, tokenize=True, add_generation_prompt=True, return_dict=False, **variables
            )
        )

    def _open(self, messages_: list[dict[str, Any]], **variables: Any) -> list[int]:
        """The ids of messages of which the model continues the last one."""
        text = messages_[-1]["content"]
        rendered = self._tokenizer.apply_chat_template(
            [*messages_[:-1], {**messages_[-1], "content": _OPEN}],
            tokenize=False,
            add_generation_prompt=False,
            **variables,
        )
        before = rendered[: rendered.rindex(_OPEN)]  # of several the last: a user may write it too
        return list(self._tokenizer.encode(before + text, add_special_tokens=False))

    def variables(self, request: records.Request) -> dict[str, Any]:
        """What `reasoning.effort` means to this template.

        Raises:
            Unrenderable: nothing, and it asks for some.
        """
        effort = (request.reasoning or {}).get("effort")
        if effort is None:
            return {}
        thinks = effort not in _NONE
        variables: dict[str, Any] = {
            name: thinks for name in ("enable_thinking", "thinking") if name in self.switches
        }
        if "reasoning_effort" in self.switches and (thinks or not variables):
            variables["reasoning_effort"] = _EFFORTS.get(effort, effort)
        if not variables and effort != "none":
            raise Unrenderable(
                "unsupported_parameter",
                "The model does not support `reasoning.effort`: its template has no use for it.",
            )
        return variables

    def _takes_images(self, before: list[dict[str, Any]], message: dict[str, Any]) -> bool:
        """Whether it marks an image in `message`, which has no content yet."""
        text: dict[str, Any] = {"type": "text", "text": "?"}
        with_text = self._probe([*before, {**message, "content": [text]}])
        with_both = self._probe([*before, {**message, "content": [{"type": "image"}, text]}])
        # A template that does not know parts may write them out as they are.
        return with_both not in ("", with_text) and "'type'" not in with_both

    def _probe(self, messages: Any = _PROBE, **variables: Any) -> str:
        """A prompt with these variables; empty where the template refuses them."""
        arguments = {"add_generation_prompt": True, **variables}
        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False, **arguments))
        except Exception:  # templates raise any type
            return ""


def raw_text(request: records.Request) -> str:
    """The prompt of a request without a template."""
    return "".join(str(message["content"]) for message in request.messages)


def messages(request_messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A request's messages as templates take them: texts, images as markers, arguments of calls as
    objects, outputs with the name of their tool. `developer` is the newer name of `system`."""
    names: dict[str, str] = {}
    prompt_messages = []
    for message in request_messages:
        role = str(message.get("role", "user"))
        one: dict[str, Any] = {
            "role": "system" if role == "developer" else role,
            "content": _content(message.get("content")),
        }
        if message.get("reasoning_content"):
            one["reasoning_content"] = message["reasoning_content"]
        if message.get("tool_calls"):
            one["tool_calls"] = [_call(call) for call in message["tool_calls"]]
            names |= {c.get("id", ""): c["function"]["name"] for c in one["tool_calls"]}
        if role == "tool":
            call_id = message.get("tool_call_id", "")
            one |= {"tool_call_id": call_id, "name": names.get(call_id, "")}
        prompt_messages.append(one)
    return prompt_messages


def content_text(content: Any) -> str:
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


def _content(content: Any) -> str | list[dict[str, Any]]:
    if not images.any_in([{"content": content}]):
        return content_text(content)
    return [
        {"type": "image"} if p["type"] == "image" else {"type": "text", "text": p["text"]}
        for p in content
    ]


def tool_for_template(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as templates take it: a function. A custom tool is one that takes a text."""
    if tool.get("type") == "custom":
        custom = tool["custom"]
        about = [custom.get("description") or "", _grammar_text(custom)]
        function = {
            "name": custom["name"],
            "description": "\n\n".join(filter(None, about)),
            "parameters": CUSTOM_PARAMETERS,
        }
    else:
        declaration = tool["function"]
        function = {
            "name": declaration["name"],
            "description": declaration.get("description") or "",
            "parameters": declaration.get("parameters") or {"type": "object", "properties": {}},
        }
    return {"type": "function", "function": function}


UNREADABLE: Final = "arguments"
CUSTOM_INPUT: Final = "input"
CUSTOM_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string", "description": "The whole input, as text."}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}


def _grammar_text(custom: dict[str, Any]) -> str:
    form = custom.get("format") or {}
    if form.get("type") != "grammar":
        return ""
    return f"The input obeys this {form.get('syntax')} grammar:\n{form.get('definition')}"


def _call(call: dict[str, Any]) -> dict[str, Any]:
    if call.get("type") == "custom":
        custom = call["custom"]
        arguments: Any = {CUSTOM_INPUT: custom.get("input", "")}
        name = custom["name"]
    else:
        name, arguments = call["function"]["name"], arguments_of(call)
    function = {"name": name, "arguments": arguments}
    return {"id": call.get("id", ""), "type": "function", "function": function}


def arguments_of(call: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of a function. Models also write what is no JSON object, and a
    dialogue with such a call must go on: templates and servers read members of an object. So such
    a text becomes one member, and no text, or null, no member."""
    text = call["function"].get("arguments") or "null"
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = text
    if isinstance(values, dict):
        return values
    return {} if values is None else {UNREADABLE: text}
