"""From the fold to the events that clients receive, with dense `sequence_number`s (pure).

Events are a function of the request's `echo` and of the accepted records in log order, never of
time or instance. So every instance derives the same bytes for the same response, also after a
takeover. An event is encoded once; all sockets that send it share its bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tailrace.protocol import file_search, fold, items, queue_place, records, seals

# Types of the event that ends a response; nothing follows it.
TERMINAL_TYPES: Final = frozenset({"response.completed", "response.failed", "response.incomplete"})
# The encoder's buffer is up to half larger than its content and lives as long as the content. The
# bodies of a response live long, so larger ones are copied.
LARGE_BODY: Final = 1024
# The end of a message's delta without log probabilities.
_NOT_LIKELY: Final = b',"logprobs":[]}'
_TEXT_TO: Final = -len(_NOT_LIKELY)  # one object that all events share
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `body` is its JSON. Only deltas have `delta`: characters of the item that is open.
    Only lifecycle events have `response`, the public object; only events that open or close an item
    have `item`, its object then. Log probabilities in an object are encoded (`msgspec.Raw`).

    Attributes:
        text_at, text_to: where `body` has the JSON of `delta`, in an event of which nothing else
            but the number differs from another delta of its item; else both are 0. `text_to`
            counts from the end.
    """

    type: str
    sequence_number: int
    body: bytes
    delta: str | None = None
    response: dict[str, Any] | None = None
    item: dict[str, Any] | None = None
    text_at: int = 0
    text_to: int = 0

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
    tools: Sequence[dict[str, Any]] = (),
    tool_choice: str | dict[str, Any] = "auto",
    max_tool_calls: int | None = None,
    text: dict[str, Any] | None = None,
    reasoning: dict[str, Any] | None = None,
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
        "tools": list(tools),
        "tool_choice": tool_choice,
        "truncation": truncation,
        "parallel_tool_calls": parallel_tool_calls,
        "text": text or {"format": {"type": "text"}},
        "temperature": temperature,
        "top_p": top_p,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "top_logprobs": top_logprobs,
        "reasoning": reasoning,
        "max_output_tokens": max_output_tokens,
        "max_tool_calls": max_tool_calls,
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


def is_echo(fields: dict[str, Any], rid: str) -> bool:
    """Whether `fields` is the static part of response `rid`. It comes from a record, and a series
    must not fail later because a member is missing."""
    return fields.get("id") == rid and fields.keys() >= ESSENTIAL


DROPPED: Final = "dropped_messages"  # of a Response object; log rule §21

# Of a Response object whose answer may be shorter than requested: the bounds `from` and `to`.
SHORTENED: Final = "shortened"

FALLBACK: Final = "fallback"  # of a Response object; log rule §22
ITEMS: Final = "items"  # of `fallback`: from which item on which model answers; log rule §25

# Of a Response object whose text can be continued (log rule §23). In the echo: of one that is cut
# short.
CONTINUE: Final = "continue"
CACHED_ANSWER: Final = "cached_answer"  # true in a Response object; log rule §24

# Of a Response object whose echo has it: the model revision that answers, null before one does.
REVISION: Final = "model_revision"

EMBEDDINGS: Final = "embeddings"  # `object` in the echo of an embeddings request


def embeddings_echo(
    rid: str, created_at: int, model: str, metadata: dict[str, str] | None
) -> dict[str, Any]:
    """The static part of an embeddings request. Clients do not see it as an object."""
    return {
        "id": rid,
        "object": EMBEDDINGS,
        "created_at": created_at,
        "model": model,
        "store": False,
        "background": False,
        "metadata": metadata or {},
    }


def with_model(base: dict[str, Any], model: str) -> dict[str, Any]:
    """The static part of a Response object that `model` answers; empty: the requested model.
    `base` may name another model."""
    requested = base[FALLBACK]["from"] if FALLBACK in base else base["model"]
    fallback = {**base.get(FALLBACK, {}), "from": requested}
    fields = {**base, "model": model or requested, FALLBACK: fallback}
    if not model and ITEMS not in fallback:
        del fields[FALLBACK]
    return fields


def with_continuation(base: dict[str, Any], model: str, index: int) -> dict[str, Any]:
    """The static part of a Response object whose text `model` continues in another item, the one
    with this `output_index`. Arguments as of `with_model`."""
    fields = with_model(base, model)
    fallback = base.get(FALLBACK, {"from": base["model"]})
    before = fallback.get(ITEMS, [{"output_index": 0, "model": base["model"]}])
    items_ = [each for each in before if each["output_index"] < index]
    items_.append({"output_index": index, "model": fields["model"]})
    return {**fields, FALLBACK: {**fallback, ITEMS: items_}}


def is_response(fields: dict[str, Any]) -> bool:
    """Whether clients may read it as a response; `fields` is its echo."""
    return fields.get("object") != EMBEDDINGS


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
    response = {
        **base,
        "status": status,
        "completed_at": completed_at,
        "incomplete_details": {"reason": incomplete} if incomplete else None,
        "error": error,
        "output": output,
        "usage": usage,
    }
    response.pop(seals.MEMBER, None)
    response.pop(file_search.MEMBER, None)
    response.pop(CONTINUE, None)
    return response


def _usage(u: records.Usage) -> dict[str, Any]:
    return {
        "input_tokens": u.input_tokens,
        "input_tokens_details": {"cached_tokens": u.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": u.output_tokens,
        "output_tokens_details": {"reasoning_tokens": u.reasoning_tokens},
        "total_tokens": u.input_tokens + u.output_tokens,
    }


_TERMINAL_OF_STATUS = {"completed": "response.completed", "failed": "response.failed"}


@dataclass(slots=True)
class Series:
    """The event series of one response.

    Feed it the effects of the fold in order; each call returns the events that follow from it.

    Attributes:
        base: the request's echo, and from the first claim on how many messages the prompt lacks,
            which model answers if it is another one, its revision if that is shown, and whether
            it is a former answer.
        next: the next sequence_number.
        output: the items that were announced, without the call of a search.
        is_open: the last item is open.
        claimed: whether a worker ever had the response.
        parsed: its ids are parsed into items, by its owner's claim. Then ids without a character
            may belong to no item yet.
        early: log probabilities of such ids; those of a message if it opens without a mark.
        final: the terminal Response object; None until the end.
        search: whose call is the first item, from the first claim on; None: there was none.
    """

    base: dict[str, Any]
    next: int = 0
    output: list[items.Item] = field(default_factory=list)
    is_open: bool = False
    claimed: bool = False
    parsed: bool = False
    early: list[bytes] = field(default_factory=list)
    final: dict[str, Any] | None = None
    search: file_search.Search | None = field(init=False)

    def __post_init__(self) -> None:
        self.search = file_search.from_echo(self.base)

    @property
    def text(self) -> str:
        """All characters so far, of all items."""
        return "".join(item.text for item in self.output)

    @property
    def logprob_bytes(self) -> int:
        """Bytes of the log probabilities for its object, without the bodies of events."""
        return sum([item.logprob_bytes for item in self.output])

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
                return self._tokens(effect)
            case fold.Claimed():
                return self._on_claim(effect)
            case fold.Ended():
                return self._end(effect)
            case fold.Yielded():
                return []

    def waiting(self, place: queue_place.Place) -> Event:
        """The event with the queue place of a response that no worker has begun. It follows from no
        record, so it has no number of its own: it repeats the last one."""
        response = response_object(self.base, "queued", [])
        number = self.next - 1
        body = _encode(
            {
                "type": "response.queued",
                "sequence_number": number,
                "response": response,
                "queue": place.member(),
            }
        )
        return Event("response.queued", number, body)

    def snapshot(self) -> dict[str, Any]:
        """The Response object as it stands."""
        if self.final is not None:
            return self.final
        status = "in_progress" if self.claimed or not self.base["background"] else "queued"
        return response_object(self.base, status, self._objects())

    def _on_claim(self, effect: fold.Claimed) -> list[Event]:
        self.parsed = bool(effect.claim.parser)
        if effect.continues:
            return self._on_continuation(effect)
        base = with_model(self.base, effect.served)
        if REVISION in base:
            base[REVISION] = effect.model_rev
        base.pop(CACHED_ANSWER, None)
        if effect.answer_of:
            base[CACHED_ANSWER] = True
        # A takeover continues the series without a reset, because SDKs know no reset. Only a change
        # of the model causes an event; another model can answer while there is no token.
        silent = self.claimed and base["model"] == self.base["model"]
        if not self.claimed and effect.claim.dropped:
            base[DROPPED] = effect.claim.dropped
        if silent:
            self.base = base
            return []
        first, output = not self.claimed, self._objects()
        self.claimed, self.base = True, base
        out = [self._lifecycle("response.in_progress", "in_progress", output)]
        if first and self.search is not None:
            out += [self._event(*each) for each in self.search.call_events(base["id"])]
        return out

    def _on_continuation(self, effect: fold.Claimed) -> list[Event]:
        """Another model continues the text: its item is another one, which begins with its first
        token."""
        out = self._close("incomplete")
        self.early = []
        base = with_continuation(self.base, effect.served, self._next_index)
        if REVISION in base:
            base[REVISION] = effect.model_rev
        self.base = base
        return [*out, self._lifecycle("response.in_progress", "in_progress", self._objects())]

    def _tokens(self, effect: fold.Accepted) -> list[Event]:
        if effect.marks or effect.lp:
            return self._show(items.pieces(effect.text, effect.marks, len(effect.ids), effect.lp))
        # Nearly every frame continues the open item and has no marks.
        out = (
            [] if self.is_open or (self.parsed and not effect.text) else self._open(items.UNMARKED)
        )
        if effect.text:
            out.append(self._delta(effect.text))
            if self.search is not None:
                out += self._citations(effect.text)
        return out

    def _show(self, pieces: Iterable[items.Piece]) -> list[Event]:
        out: list[Event] = []
        for piece in pieces:
            if piece.mark is not None:
                self.early = []  # of a marker's ids
                out += self._close("completed")
                out += self._open(piece.mark)
            elif not self.is_open and (piece.text or (piece.ids and not self.parsed)):
                out += self._open(items.UNMARKED)
            message = not self.is_open or self.output[-1].begin.kind == "m"
            logprobs = self.early + items.encode_logprobs(piece.lp) if message else []
            self.early = [] if self.is_open else logprobs
            if self.is_open and (piece.text or logprobs):
                out.append(self._delta(piece.text, logprobs))
                out += self._citations(piece.text)
        return out

    def _open(self, begin: records.Mark) -> list[Event]:
        item = items.Item.from_mark(self.base, self._next_index, begin)
        if self.search is not None and begin.kind == "m":
            item.citations = file_search.Citations(self.search.sources)
        self.output.append(item)
        self.is_open = True
        return [self._event(kind, fields) for kind, fields in self.output[-1].opening()]

    def _close(self, status: str) -> list[Event]:
        """Close the open item, if there is one."""
        if not self.is_open:
            return []
        self.is_open = False
        return [self._event(kind, fields) for kind, fields in self.output[-1].closing(status)]

    def _delta(self, text: str, logprobs: Sequence[bytes] = ()) -> Event:
        item, likely = self.output[-1], b",".join(logprobs)
        item.add(text, likely)
        number = self._number()
        kind, encoded_text = item.delta_type, _encode(text)
        if item.begin.kind != "m":
            fields = {"type": kind, "sequence_number": number, **item.place, "delta": text}
            body = _encode(fields)
            return Event(
                kind, number, body, text, text_at=len(body) - len(encoded_text) - 1, text_to=-1
            )
        body = (
            b'{"type":"response.output_text.delta","sequence_number":%d,"item_id":"%s",'
            b'"output_index":%d,"content_index":0,"delta":%s,"logprobs":[%s]}'
            % (
                number,
                item.id.encode(),
                item.index,
                encoded_text,
                likely,
            )
        )
        if likely:
            return Event(kind, number, body, text)
        text_at = len(body) + _TEXT_TO - len(encoded_text)
        return Event(kind, number, body, text, text_at=text_at, text_to=_TEXT_TO)

    def _citations(self, text: str) -> list[Event]:
        return [self._event(*each) for each in self.output[-1].citing(text)]

    def _end(self, end: fold.Ended) -> list[Event]:
        out: list[Event] = []
        if end.text_tail or end.marks:
            out += self._show(items.pieces(end.text_tail, end.marks))
        if end.reason in ("stop", "length") and not self.output:
            out += self._open(items.UNMARKED)  # an answer of no tokens is still an (empty) message
        out += self._close("completed" if end.status == "completed" else "incomplete")
        out.append(self._terminal(end))
        return out

    def _terminal(self, end: fold.Ended) -> Event:
        error = None
        if end.status == "failed":
            code, message = end.error or (
                "server_error",
                _FAILURES.get(end.reason, "The response failed."),
            )
            error = {"code": code, "message": message}
            if end.param:
                error["param"] = end.param
        self.final = response_object(
            self.base,
            end.status,
            self._objects(),
            usage=_usage(end.usage),
            completed_at=math.floor(end.timestamp / 1000) if end.status == "completed" else None,
            error=error,
            incomplete="max_output_tokens" if end.reason == "length" else None,
        )
        cut_short = end.status in ("incomplete", "cancelled")
        if cut_short and self.base.get(CONTINUE) is True and items.ends_with_text(self.output):
            self.final[CONTINUE] = True
        kind = _TERMINAL_OF_STATUS.get(end.status, "response.incomplete")
        return self._event(kind, {"response": self.final}, response=self.final)

    def _lifecycle(self, kind: str, status: str, output: Sequence[dict[str, Any]] = ()) -> Event:
        response = response_object(self.base, status, list(output))
        return self._event(kind, {"response": response}, response=response)

    def _event(
        self, kind: str, fields: dict[str, Any], response: dict[str, Any] | None = None
    ) -> Event:
        number = self._number()
        body = _encode({"type": kind, "sequence_number": number, **fields})
        if len(body) > LARGE_BODY:
            body = bytes(memoryview(body))
        return Event(kind, number, body, response=response, item=fields.get("item"))

    def _number(self) -> int:
        number = self.next
        self.next += 1
        return number

    @property
    def _next_index(self) -> int:
        """The `output_index` of the next item."""
        return len(self.output) + (self.search is not None)

    def _objects(self) -> list[dict[str, Any]]:
        objects = [item.object() for item in self.output]
        if self.search is None or not self.claimed:
            return objects
        return [self.search.call(self.base["id"]), *objects]


_FAILURES = {
    "expired": "The response was not started before its deadline.",
    "failed": "The response failed.",
}
