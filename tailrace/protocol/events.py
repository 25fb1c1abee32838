"""From the fold to the events that clients receive, with dense `sequence_number`s (pure).

Events are a function of the request's `echo` and of the accepted records in log order, never of
time or instance. So every instance derives the same bytes for the same response, also after a
takeover. An event is encoded once; all sockets that send it share its bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tailrace.protocol import fold, ids, records

# Types of the event that ends a response; nothing follows it.
TERMINAL_TYPES: Final = frozenset({"response.completed", "response.failed", "response.incomplete"})
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `body` is its JSON. Only text deltas have `delta`, only lifecycle events have
    `response`, the public object."""

    type: str
    sequence_number: int
    body: bytes
    delta: str | None = None
    response: dict[str, Any] | None = None

    @property
    def terminal(self) -> bool:
        """Whether nothing follows."""
        return self.type in TERMINAL_TYPES

    def sse(self) -> bytes:
        """The event as server-sent event."""
        return b"event: %s\ndata: %s\n\n" % (self.type.encode(), self.body)

    def on_lane(self, lane: str | None) -> bytes:
        """The event as a WebSocket text frame of a named lane; None is the default lane, whose
        events carry no `stream_id`."""
        if lane is None:
            return self.body
        return b'{"stream_id":%s,%s' % (_encode(lane), self.body[1:])


def echo(
    rid: str,
    created_at: int,
    model: str,
    *,
    instructions: str | None = None,
    previous_response_id: str | None = None,
    max_output_tokens: int | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    top_logprobs: int = 0,
    truncation: str = "disabled",
    store: bool = True,
    background: bool = False,
    metadata: dict[str, str] | None = None,
    user: str | None = None,
    safety_identifier: str | None = None,
    prompt_cache_key: str | None = None,
    parallel_tool_calls: bool = True,
) -> dict[str, Any]:
    """The static part of a Response object: all members that OpenAI's types or the Open Responses
    specification require."""
    return {
        "id": rid,
        "object": "response",
        "created_at": created_at,
        "model": model,
        "previous_response_id": previous_response_id,
        "instructions": instructions,
        "tools": [],
        "tool_choice": "auto",
        "truncation": truncation,
        "parallel_tool_calls": parallel_tool_calls,
        "text": {"format": {"type": "text"}},
        "temperature": temperature,
        "top_p": top_p,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "top_logprobs": top_logprobs,
        "reasoning": None,
        "max_output_tokens": max_output_tokens,
        "max_tool_calls": None,
        "store": store,
        "background": background,
        "service_tier": "default",
        "metadata": metadata or {},
        "safety_identifier": safety_identifier,
        "prompt_cache_key": prompt_cache_key,
        "user": user,
    }


# The members of an echo that code reads. Members of later versions are not listed, because during
# a rolling upgrade older instances would not recognise running responses.
ESSENTIAL = frozenset({"id", "created_at", "model", "background", "store"})


def is_echo(found: dict[str, Any], rid: str) -> bool:
    """Whether `found` is the static part of response `rid`. It comes from a record, and a series
    must not fail later because a member is missing."""
    return found.get("id") == rid and found.keys() >= ESSENTIAL


def response_object(
    base: dict[str, Any],
    status: str,
    output: list[dict[str, Any]],
    *,
    usage: dict[str, Any] | None = None,
    completed_at: int | None = None,
    error: dict[str, Any] | None = None,
    incomplete: str | None = None,
) -> dict[str, Any]:
    """The public Response object in one state."""
    return {
        **base,
        "status": status,
        "completed_at": completed_at,
        "incomplete_details": {"reason": incomplete} if incomplete else None,
        "error": error,
        "output": output,
        "usage": usage,
    }


def _usage(u: records.Usage) -> dict[str, Any]:
    return {
        "input_tokens": u.input_tokens,
        "input_tokens_details": {"cached_tokens": u.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": u.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": u.input_tokens + u.output_tokens,
    }


_TERMINAL_OF_STATUS = {"completed": "response.completed", "failed": "response.failed"}


@dataclass(slots=True)
class Series:
    """The event series of one response.

    Feed it the effects of the fold in order; each call returns the events that follow from it.

    Attributes:
        base: the request's echo; never changed.
        next: the next sequence_number.
        parts: text deltas so far; joined only when the whole text is wanted.
        opened: whether the output item was announced.
        claimed: whether a worker ever had the response.
        final: the terminal Response object; None until the end.
    """

    base: dict[str, Any]
    next: int = 0
    parts: list[str] = field(default_factory=list)
    opened: bool = False
    claimed: bool = False
    final: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self.parts)

    def open(self) -> list[Event]:
        """The events that follow from the acknowledged request alone: `response.created`, and for
        a background response `response.queued`."""
        if not self.base["background"]:
            return [self._lifecycle("response.created", "in_progress")]
        return [
            self._lifecycle("response.created", "queued"),
            self._lifecycle("response.queued", "queued"),
        ]

    def apply(self, effect: fold.Effect) -> list[Event]:
        """Events that follow from one effect of the fold."""
        match effect:
            case fold.Accepted():
                return self._tokens(effect.text)
            case fold.Claimed():
                return self._claimed()
            case fold.Ended():
                return self._end(effect)
            case fold.Yielded():
                return []

    def snapshot(self) -> dict[str, Any]:
        """The Response object as it stands."""
        if self.final is not None:
            return self.final
        status = "in_progress" if self.claimed or not self.base["background"] else "queued"
        return response_object(
            self.base, status, [self._item("in_progress")] if self.opened else []
        )

    def _claimed(self) -> list[Event]:
        # A takeover continues the series without a reset, because SDKs know no reset.
        if self.claimed:
            return []
        self.claimed = True
        return [self._lifecycle("response.in_progress", "in_progress")]

    def _tokens(self, text: str) -> list[Event]:
        out = self._open_item()
        if text:
            out.append(self._delta(text))
        return out

    def _open_item(self) -> list[Event]:
        if self.opened:
            return []
        self.opened = True
        item = {**self._item("in_progress"), "content": []}
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return [
            self._event("response.output_item.added", {"output_index": 0, "item": item}),
            self._event("response.content_part.added", {**self._place(), "part": part}),
        ]

    def _delta(self, text: str) -> Event:
        self.parts.append(text)
        number = self._number()
        body = (
            b'{"type":"response.output_text.delta","sequence_number":%d,"item_id":"%s",'
            b'"output_index":0,"content_index":0,"delta":%s,"logprobs":[]}'
            % (
                number,
                self._item_id().encode(),
                _encode(text),
            )
        )
        return Event("response.output_text.delta", number, body, delta=text)

    def _end(self, end: fold.Ended) -> list[Event]:
        out: list[Event] = []
        if end.text_tail:
            out += self._tokens(end.text_tail)
        if end.reason in ("stop", "length"):
            out += self._open_item()  # an answer of no tokens is still an (empty) message
        item_status = "completed" if end.status == "completed" else "incomplete"
        if self.opened:
            item = self._item(item_status)
            out += [
                self._event(
                    "response.output_text.done",
                    {**self._place(), "text": self.text, "logprobs": []},
                ),
                self._event(
                    "response.content_part.done", {**self._place(), "part": item["content"][0]}
                ),
                self._event("response.output_item.done", {"output_index": 0, "item": item}),
            ]
        out.append(self._terminal(end, [self._item(item_status)] if self.opened else []))
        return out

    def _terminal(self, end: fold.Ended, output: list[dict[str, Any]]) -> Event:
        error = None
        if end.status == "failed":
            code, message = end.error or (
                "server_error",
                _FAILURES.get(end.reason, "The response failed."),
            )
            error = {"code": code, "message": message}
        self.final = response_object(
            self.base,
            end.status,
            output,
            usage=_usage(end.usage),
            completed_at=math.floor(end.timestamp / 1000) if end.status == "completed" else None,
            error=error,
            incomplete="max_output_tokens" if end.reason == "length" else None,
        )
        kind = _TERMINAL_OF_STATUS.get(end.status, "response.incomplete")
        return self._event(kind, {"response": self.final}, response=self.final)

    def _lifecycle(self, kind: str, status: str) -> Event:
        response = response_object(self.base, status, [])
        return self._event(kind, {"response": response}, response=response)

    def _event(
        self, kind: str, fields: dict[str, Any], response: dict[str, Any] | None = None
    ) -> Event:
        number = self._number()
        return Event(
            kind,
            number,
            _encode({"type": kind, "sequence_number": number, **fields}),
            response=response,
        )

    def _number(self) -> int:
        number = self.next
        self.next += 1
        return number

    def _item_id(self) -> str:
        return ids.item_id(self.base["id"])

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id(), "output_index": 0, "content_index": 0}

    def _item(self, status: str) -> dict[str, Any]:
        part = {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}
        return {
            "id": self._item_id(),
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [part],
        }


_FAILURES = {
    "expired": "The response was not started before its deadline.",
    "failed": "The response failed.",
}
