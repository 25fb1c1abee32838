"""Chat Completions: responses in that API's form (pure).

A completion consists of one response for each choice. Its chunks come from their events, and its id
contains their ids. A client that loses the stream can follow a response by
`x-tailrace-response-id`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gateway.answers import failures
from tailrace.protocol import errors, events, ids, images

INPUT: Final = "messages"
_PREFIX: Final = "chatcmpl-"
_BETWEEN: Final = "."  # not in the alphabet of ids
# The API has no value for a cancel, so the answer is reported as incomplete.
FINISH: Final = {"completed": "stop", "incomplete": "length", "cancelled": "length"}
_CALLS: Final = {"function_call": "function", "custom_tool_call": "custom"}
# The member of the call's object that grows, in both APIs.
_GROWS: Final = {"function": "arguments", "custom": "input"}
_encode = msgspec.json.Encoder().encode
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _Likely(msgspec.Struct):
    logprobs: list[msgspec.Raw] = []


_likely = msgspec.json.Decoder(_Likely).decode


def completion_id(*rids: str) -> str:
    """The id of the completion whose choices are these responses."""
    return _PREFIX + _BETWEEN.join(rid[len(ids.PREFIX) :] for rid in rids)


def response_ids(completion: str, most: int) -> list[str]:
    """The response ids in a completion's id; empty if it is not the id of a completion with at most
    `most` choices."""
    if not completion.startswith(_PREFIX):
        return []
    rests = completion[len(_PREFIX) :].split(_BETWEEN)
    return [ids.PREFIX + rest for rest in rests] if len(rests) <= most else []


def usage(responses: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Usage of all choices, which have one prompt, under its Chat Completions names."""
    usages = [each["usage"] for each in responses if each["usage"]]
    prompt = max((each["input_tokens"] for each in usages), default=0)
    cached = max((each["input_tokens_details"]["cached_tokens"] for each in usages), default=0)
    out = sum(each["output_tokens"] for each in usages)
    reasoning = sum(each["output_tokens_details"]["reasoning_tokens"] for each in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": out,
        "total_tokens": prompt + out,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def completion(responses: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The whole answer as one object. `responses`: one for each choice, all ended.

    Raises:
        errors.ApiError: one of them failed.
    """
    for response in responses:
        if response["status"] == "failed":
            raise failures.error_of(response, INPUT)
    first = responses[0]
    return {
        "id": completion_id(*(each["id"] for each in responses)),
        "object": "chat.completion",
        "created": first["created_at"],
        "model": first["model"],
        "choices": [_choice(index, each) for index, each in enumerate(responses)],
        "usage": usage(responses),
        "service_tier": first.get("service_tier"),
        "metadata": first.get("metadata") or {},
        **marks(responses),
    }


def marks(responses: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Members in addition to OpenAI's: whether all choices are cached answers."""
    all_cached = all(each.get(events.CACHED_ANSWER) for each in responses)
    return {events.CACHED_ANSWER: True} if all_cached else {}


def _choice(index: int, response: dict[str, Any]) -> dict[str, Any]:
    texts, thoughts, logprobs, calls = [], [], [], []
    for item in response["output"]:
        if item["type"] == "message":
            for part in item["content"]:
                texts.append(part["text"])
                logprobs += _elements(part["logprobs"]) if part["logprobs"] else []
        elif item["type"] == "reasoning":
            thoughts += [part["text"] for part in (*item["content"], *item["summary"])]
        elif (kind := _CALLS.get(item["type"])) is not None:
            calls.append(_call(item, kind, item[_GROWS[kind]]))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts), "refusal": None}
    if not any(texts) and (calls or any(thoughts)):
        message["content"] = None
    if any(thoughts):
        message["reasoning_content"] = message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return {
        "index": index,
        "message": message,
        "logprobs": _logprobs_json(logprobs) if logprobs else None,
        "finish_reason": _finish(response),
    }


def _call(item: dict[str, Any], kind: str, content: str) -> dict[str, Any]:
    function = {"name": item["name"], _GROWS[kind]: content}
    return {"id": item["call_id"], "type": kind, kind: function}


def _finish(response: dict[str, Any]) -> str:
    has_calls = any(item["type"] in _CALLS for item in response["output"])
    completed = response["status"] == "completed"
    if not has_calls or not completed or _names_function(response.get("tool_choice")):
        return FINISH[response["status"]]
    return "tool_calls"


def _names_function(choice: Any) -> bool:
    """Whether a `tool_choice` names one function. OpenAI finishes such an answer with `stop`,
    because its caller knows that it is a call."""
    return isinstance(choice, dict) and choice.get("type") == "function"


def _logprobs_json(logprobs: Sequence[msgspec.Raw]) -> dict[str, Any]:
    return {"content": list(logprobs), "refusal": None}


def stored_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message of a request record as the API shows it: `content` is a text or null, and
    `content_parts` has parts with images."""
    content = message.get("content")
    if not isinstance(content, list):
        return {**message, "content": content, "content_parts": None}
    return {**message, "content": None, "content_parts": [_part(part) for part in content]}


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] != "image":
        return part
    url = {"url": images.url(part), "detail": part.get("detail", "auto")}
    return {"type": "image_url", "image_url": url}


class Chunks:
    """Turns the events of one choice, in order, into its part of a Chat Completions stream.

    Attributes:
        _opened: the chunk that names the role was sent.
        _calls: number of calls so far; the last one may be open.
        _kind: type of the open call.
    """

    def __init__(
        self,
        head: dict[str, Any],
        index: int = 0,
        *,
        include_usage: bool = False,
        logprobs: bool = False,
    ) -> None:
        """`head`: the members of all chunks. `logprobs`: whether chunks have log probabilities."""
        self._head = head
        self._index = index
        self._include_usage = include_usage
        self._logprobs = logprobs
        self._opened = False
        self._calls = 0
        self._kind = "function"

    def encode(self, event: events.Event) -> bytes:
        """Return the bytes that this event adds to the body. Many events add none."""
        if event.delta is not None:
            return self._delta(event, event.delta)
        if event.terminal and event.response is not None:
            return self._end(event.response)
        if event.type == "response.output_item.added" and event.item is not None:
            return self._begin_item(event.item)
        return b""

    def _delta(self, event: events.Event, text: str) -> bytes:
        match event.type:
            case "response.output_text.delta":
                logprobs = _likely(event.body).logprobs if self._logprobs else []
                return self.open() + self._chunk({"content": text}, logprobs=logprobs)
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                # The first name is DeepSeek's, the second vLLM's.
                return self._chunk({"reasoning_content": text, "reasoning": text})
        fragment = {"index": self._calls - 1, self._kind: {_GROWS[self._kind]: text}}
        return self._chunk({"tool_calls": [fragment]})

    def _begin_item(self, item: dict[str, Any]) -> bytes:
        kind = _CALLS.get(item["type"])
        if kind is None:
            return self.open("" if item["type"] == "message" else None)
        self._kind, self._calls = kind, self._calls + 1
        call = {"index": self._calls - 1, **_call(item, kind, "")}
        return self.open(None) + self._chunk({"tool_calls": [call]})

    def open(self, content: str | None = "") -> bytes:
        """The chunk that names the role, unless it was sent."""
        if self._opened:
            return b""
        self._opened = True
        return self._chunk({"role": "assistant", "content": content, "refusal": None})

    def _end(self, response: dict[str, Any]) -> bytes:
        if response["status"] == "failed":
            return _data(errors.http_body(failures.error_of(response, INPUT)))
        return self.open() + self._chunk({}, _finish(response))

    def _chunk(
        self, delta: dict[str, Any], finish: str | None = None, logprobs: Sequence[msgspec.Raw] = ()
    ) -> bytes:
        choice = {
            "index": self._index,
            "delta": delta,
            "logprobs": _logprobs_json(logprobs) if logprobs else None,
            "finish_reason": finish,
        }
        body = {**self._head, "choices": [choice]}
        return _data({**body, "usage": None} if self._include_usage else body)


class Stream:
    """The body of a Chat Completions stream, from the events of all its choices.

    Attributes:
        _opened: every choice was begun, in order. SDKs append choices to a list in the order of
            arrival, and fail if one arrives early.
        _ended: the final Response objects so far.
        _failed: a choice failed. No chunk follows the error.
    """

    def __init__(
        self, echoes: Sequence[dict[str, Any]], *, include_usage: bool, logprobs: bool = False
    ) -> None:
        """`echoes`: those of the responses, one for each choice."""
        self._head = {
            "id": completion_id(*(echo["id"] for echo in echoes)),
            "object": "chat.completion.chunk",
            "created": echoes[0]["created_at"],
            "model": echoes[0]["model"],
        }
        self._choices = [
            Chunks(self._head, index, include_usage=include_usage, logprobs=logprobs)
            for index in range(len(echoes))
        ]
        self._include_usage = include_usage
        self._opened = len(echoes) == 1
        self._ended: list[dict[str, Any]] = []
        self._failed = False

    def encode(self, event: events.Event, index: int = 0) -> bytes:
        """Return the bytes that this event of choice number `index` adds to the body."""
        if self._failed:
            return b""
        out = b""
        if event.response is not None and not index:  # it may differ from the requested one
            self._head["model"] = event.response["model"]
            if len(self._choices) == 1:
                self._head.update(marks([event.response]))
        if not self._opened:
            self._opened = True
            out = b"".join(choice.open() for choice in self._choices)
        out += self._choices[index].encode(event)
        if event.terminal and event.response is not None:
            self._ended.append(event.response)
            self._failed = event.response["status"] == "failed"
            if self._include_usage and len(self._ended) == len(self._choices) and not self._failed:
                out += _data({**self._head, "choices": [], "usage": usage(self._ended)})
        return out

    def encode_choice(self, choice_event: tuple[int, events.Event]) -> bytes:
        """Like `encode`, for a source with the events of several choices."""
        return self.encode(choice_event[1], choice_event[0])


def _data(body: dict[str, Any]) -> bytes:
    return b"data: " + _encode(body) + b"\n\n"
