"""Chat Completions: a response's events in that API's form (pure).

A completion is a response. Its chunks come from the response's events and its id from the response
id. A client that loses the stream can follow the response by `x-tailrace-response-id`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tailrace.protocol import errors, events, ids

_FINISH: Final = {"completed": "stop", "incomplete": "length", "cancelled": "stop"}
_encode = msgspec.json.Encoder().encode


def completion_id(rid: str) -> str:
    return "chatcmpl-" + rid[len(ids.PREFIX) :]


def usage(response: dict[str, Any]) -> dict[str, Any]:
    """Usage under its Chat Completions names."""
    counted = response["usage"] or {
        "input_tokens": 0,
        "output_tokens": 0,
        "total_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0},
    }
    return {
        "prompt_tokens": counted["input_tokens"],
        "completion_tokens": counted["output_tokens"],
        "total_tokens": counted["total_tokens"],
        "prompt_tokens_details": {
            "cached_tokens": counted["input_tokens_details"]["cached_tokens"]
        },
    }


def failure(response: dict[str, Any]) -> errors.ApiError:
    """Return the error for a failed response. Chat Completions has no object for one."""
    error = response.get("error") or {}
    return errors.ApiError(
        500, errors.SERVER_ERROR, error.get("code"), error.get("message") or "The response failed."
    )


def completion(response: dict[str, Any]) -> dict[str, Any]:
    """The whole answer as one object.

    Raises:
        errors.ApiError: the response failed.
    """
    if response["status"] == "failed":
        raise failure(response)
    text = "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "logprobs": None,
        "finish_reason": _FINISH[response["status"]],
    }
    return {
        "id": completion_id(response["id"]),
        "object": "chat.completion",
        "created": response["created_at"],
        "model": response["model"],
        "choices": [choice],
        "usage": usage(response),
    }


class Chunks:
    """Turns events, in order, into the body of a Chat Completions stream.

    Attributes:
        _opened: the chunk that names the role was sent.
    """

    def __init__(self, echo: dict[str, Any], *, include_usage: bool) -> None:
        self._head = {
            "id": completion_id(echo["id"]),
            "object": "chat.completion.chunk",
            "created": echo["created_at"],
            "model": echo["model"],
        }
        self._include_usage = include_usage
        self._opened = False

    def of(self, event: events.Event) -> bytes:
        """Return the bytes that this event adds to the body. Many events add none."""
        if event.delta is not None and event.type == "response.output_text.delta":
            return self._open() + self._chunk({"content": event.delta})
        if event.terminal and event.response is not None:
            return self._end(event.response)
        return self._open() if event.type == "response.output_item.added" else b""

    def _open(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        return self._chunk({"role": "assistant", "content": ""})

    def _end(self, response: dict[str, Any]) -> bytes:
        if response["status"] == "failed":
            return _data(errors.http_body(failure(response)))
        out = self._open() + self._chunk({}, _FINISH[response["status"]])
        if self._include_usage:
            out += _data({**self._head, "choices": [], "usage": usage(response)})
        return out

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        body = {**self._head, "choices": [choice]}
        return _data({**body, "usage": None} if self._include_usage else body)


def _data(body: dict[str, Any]) -> bytes:
    return b"data: " + _encode(body) + b"\n\n"
