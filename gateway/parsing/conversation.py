"""The items of a conversation, and their chat messages for a model (pure).

Both APIs' inputs become these items. `messages` converts them for chat templates:

    {"role": "user" | "system" | "assistant", "content": text}
    {"role": "user", "content": parts (tailrace.protocol.images)}
    {"role": "assistant", "content": text, "reasoning_content"?: text, "tool_calls"?: [
        {"id", "type": "function", "function": {"name", "arguments": JSON text}}
        {"id", "type": "custom", "custom": {"name", "input": text}}]}
    {"role": "tool", "tool_call_id": id, "content": text or parts}

A part that names an uploaded file is one of these until it is looked up
(`gateway.responses.references`):

    {"type": UPLOAD, "id", "image": whether it must be one, "detail", "where": its path in the body}

In a continued conversation, an incomplete answer has `"cut": true` next to its calls
(`gateway.responses.context`). A model does not get this member.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.parsing.tool_kinds import flat_name
from tailrace.protocol import errors, images


@dataclass(frozen=True, slots=True)
class Message:
    """A text, or parts of which at least one is an image (`tailrace.protocol.images`). `where`: the
    item's path in the body, for errors; the same in all items. `developer`: clients call the role
    so; models get `system`."""

    role: Literal["user", "system", "assistant"]
    content: str | list[dict[str, Any]]
    where: str
    developer: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool by the model. `input`: the arguments as JSON text, or a custom tool's
    input."""

    call_id: str
    name: str
    input: str
    where: str
    namespace: str | None = None
    custom: bool = False


@dataclass(frozen=True, slots=True)
class CallOutput:
    """The client's answer to a call: a text, or parts like in a `Message`."""

    call_id: str
    output: str | list[dict[str, Any]]
    where: str
    custom: bool = False


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The model's reasoning. `sealed`: `encrypted_content`."""

    text: str
    where: str
    id: str | None = None
    summary: tuple[str, ...] = ()
    sealed: str | None = None

    @property
    def readable(self) -> str:
        """Its text, or else its summary, which has the text where one was requested."""
        return self.text or "\n\n".join(self.summary)


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to an item of an earlier response, by its id."""

    id: str
    where: str


@dataclass(frozen=True, slots=True)
class Compaction:
    """A summarized conversation. `summary`: empty until it is opened."""

    sealed: str
    where: str
    id: str | None = None
    summary: str = ""


UPLOAD: Final = "upload"
SUMMARY: Final = "Summary of the conversation so far:\n{}"

Item = Message | Call | CallOutput | Reasoning | Reference | Compaction


def messages(items: Iterable[Item]) -> list[dict[str, Any]]:
    """The chat messages of items. Unresolved references and sealed content add nothing.

    Reasoning joins the assistant's message after it, and calls join the one right before them. A
    summary becomes a user message.
    """
    chat: list[dict[str, Any]] = []
    reasoning = ""
    answering: dict[str, Any] | None = None  # the assistant's message that calls may join
    for item in items:
        match item:
            case Message(role="assistant", content=str(content)):
                answering = _answer(content, reasoning)
                chat.append(answering)
                reasoning = ""
            case Message(role=role, content=content):
                chat.append({"role": role, "content": content})
                answering, reasoning = None, ""
            case Call():
                if answering is None:
                    answering = _answer("", reasoning)
                    chat.append(answering)
                    reasoning = ""
                answering.setdefault("tool_calls", []).append(_call(item))
            case CallOutput(call_id=call_id, output=output):
                chat.append({"role": "tool", "tool_call_id": call_id, "content": output})
                answering, reasoning = None, ""
            case Reasoning():
                reasoning += item.readable
                answering = answering if not item.readable else None
            case Compaction(summary=summary) if summary:
                chat.append({"role": "user", "content": SUMMARY.format(summary)})
                answering, reasoning = None, ""
    return chat


def _answer(content: str, reasoning: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    return {**message, "reasoning_content": reasoning} if reasoning else message


def _call(call: Call) -> dict[str, Any]:
    name = flat_name(call.namespace, call.name)
    if call.custom:
        return {"id": call.call_id, "type": "custom", "custom": {"name": name, "input": call.input}}
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": name, "arguments": call.input},
    }


def characters(messages: Iterable[Mapping[str, Any]]) -> int:
    """Length of all texts in messages."""
    total = 0
    for message in messages:
        content = message["content"]
        texts = [content] if isinstance(content, str) else [p.get("text", "") for p in content]
        total += sum(map(len, texts)) + len(message.get("reasoning_content", ""))
        for call in message.get("tool_calls", ()):
            total += sum(len(text) for text in call.get(call["type"], {}).values())
    return total


def check_calls(
    items: Iterable[Item],
    before: Iterable[dict[str, Any]] = (),
    *,
    complete: bool,
    member: str = "call_id",
) -> set[str]:
    """Check that calls and outputs match: each output is the only one of an earlier call. An id may
    be used again after its output, because some clients number the calls of each turn anew.

    Args:
        before: the messages that the items continue.
        complete: each call needs an output, except those of incomplete answers.
        member: the API's name for the id of the call.

    Returns:
        ids of the calls without an output.

    Raises:
        errors.ApiError: 400 naming the call.
    """
    output_by_call: dict[str, bool] = {}  # by the id of a call
    cut_short: set[str] = set()
    for message in before:
        calls = [call["id"] for call in message.get("tool_calls", ())]
        output_by_call |= dict.fromkeys(calls, False)
        if "cut" in message:
            cut_short.update(calls)
        else:
            cut_short.difference_update(calls)
        if message["role"] == "tool":
            output_by_call[message["tool_call_id"]] = True
    for item in items:
        match item:
            case Call(call_id=call_id, where=where):
                if output_by_call.get(call_id) is False:
                    raise errors.invalid_value(
                        f"{where}.{member}",
                        f"Duplicate item found with call_id {call_id}. Remove duplicate items "
                        "from your input and try again.",
                    )
                output_by_call[call_id] = False
            case CallOutput(call_id=call_id, where=where):
                if output_by_call.get(call_id) is not False:
                    what = "No tool call found for function call output"
                    if call_id in output_by_call:
                        what = "Duplicate function call output"
                    raise errors.invalid_value(
                        f"{where}.{member}", f"{what} with call_id {call_id}."
                    )
                output_by_call[call_id] = True
    open_calls = [call_id for call_id, has_output in output_by_call.items() if not has_output]
    if complete and (missing := [call_id for call_id in open_calls if call_id not in cut_short]):
        raise errors.invalid_value("input", f"No tool output found for function call {missing[0]}.")
    return set(open_calls)


def to_resolve(items: Iterable[Item]) -> list[Item]:
    """The items that need the log or a seal's key."""
    return [
        item
        for item in items
        if isinstance(item, (Reference, Compaction))
        or (isinstance(item, Reasoning) and item.sealed is not None)
        or uploads(item)
    ]


def uploads(item: Item) -> list[dict[str, Any]]:
    """The parts of an item that name uploaded files."""
    match item:
        case Message(content=list(parts)) | CallOutput(output=list(parts)):
            return [part for part in parts if part["type"] == UPLOAD]
    return []


def as_json(item: Item) -> dict[str, Any]:
    """An item in the form of `GET …/input_items`."""
    match item:
        case Message(role=role, content=list(parts)):
            content = _parts(parts)
            return {"type": "message", "role": role, "status": "completed", "content": content}
        case Message(role=role, content=content, developer=developer):
            kind = "output_text" if role == "assistant" else "input_text"
            part: dict[str, Any] = {"type": kind, "text": content}
            if kind == "output_text":
                part["annotations"] = []
            speaker = "developer" if developer else role
            return {"type": "message", "role": speaker, "status": "completed", "content": [part]}
        case Call(custom=True):
            return _call_as_json(item, "custom_tool_call", "input")
        case Call():
            return _call_as_json(item, "function_call", "arguments")
        case CallOutput(call_id=call_id, output=output, custom=custom):
            kind = "custom_tool_call_output" if custom else "function_call_output"
            output_json = output if isinstance(output, str) else _parts(output)
            return {"type": kind, "call_id": call_id, "output": output_json, "status": "completed"}
        case Reasoning():
            return {
                "type": "reasoning",
                **({"id": item.id} if item.id else {}),
                "summary": [{"type": "summary_text", "text": text} for text in item.summary],
                "content": [{"type": "reasoning_text", "text": item.text}] if item.text else [],
                "encrypted_content": item.sealed,
                "status": "completed",
            }
        case Reference(id=id_):
            return {"type": "item_reference", "id": id_}
    own = {"id": item.id} if item.id else {}
    return {"type": "compaction", **own, "encrypted_content": item.sealed}


def _parts(parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_part(part) for part in parts]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "image":
        return images.as_input(part)
    if part["type"] == UPLOAD:
        return {"type": "input_image" if part["image"] else "input_file", "file_id": part["id"]}
    # The text of a file comes with the file's name.
    of_file = {"filename": part["filename"]} if "filename" in part else {}
    return {"type": "input_text", "text": part["text"], **of_file}


def _call_as_json(call: Call, kind: str, member: str) -> dict[str, Any]:
    return {
        "type": kind,
        "call_id": call.call_id,
        "name": call.name,
        **({"namespace": call.namespace} if call.namespace else {}),
        member: call.input,
        "status": "completed",
    }
