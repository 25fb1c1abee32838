"""Output items: a record's text cut at its marks, and items as clients see them (pure).

The kind of a mark decides which item of the Responses API it begins, and by which events its
characters are shown (log rule §16).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from tailrace.protocol import file_search, ids, records, seals

# The message that a response begins with if no mark says otherwise.
UNMARKED: Final = records.Mark(0, 0, "m")
_PREFIX: Final = {"m": "msg_", "r": "rs_", "c": "fc_", "x": "ctc_"}
# What precedes ".delta" and ".done" in the types of the events that show the characters.
_EVENT_PREFIX: Final = {
    "m": "response.output_text",
    "r": "response.reasoning_text",
    "c": "response.function_call_arguments",
    "x": "response.custom_tool_call_input",
}
_SUMMARY: Final = "response.reasoning_summary_text"

Fields = dict[str, Any]  # members of an event
_encode = msgspec.json.Encoder().encode


def flat_name(namespace: str, name: str) -> str:
    """The name under which the model sees a tool of a namespace, and which its marks have."""
    return f"{namespace}__{name}"


def namespaces(tools: object) -> dict[str, Fields]:
    """For each tool of a namespace among an echo's `tools`, by its flat name: the members `name`
    and `namespace` of its calls. Entries that are not tools are skipped."""
    calls = {}
    for space in _objects(tools):
        namespace = space.get("name")
        if space.get("type") != "namespace" or not isinstance(namespace, str):
            continue
        for tool in _objects(space.get("tools")):
            name = tool.get("name")
            if isinstance(name, str):
                calls[flat_name(namespace, name)] = {"name": name, "namespace": namespace}
    return calls


def _requests_summary(base: Fields) -> bool:
    """Whether the request with this echo wants the reasoning as a summary."""
    reasoning = base.get("reasoning")
    return isinstance(reasoning, dict) and reasoning.get("summary") is not None


def _objects(value: object) -> list[Fields]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


class Piece(NamedTuple):
    """A part of a record that belongs to one item: the mark that begins the item, None where it is
    the open one; characters; number of ids; and their log probabilities, if there are any."""

    mark: records.Mark | None
    text: str
    ids: int
    lp: Sequence[records.Lp]


def pieces(
    text: str, marks: Sequence[records.Mark], count: int = 0, lp: Sequence[records.Lp] = ()
) -> list[Piece]:
    """The parts of a record with `count` ids, in order; the first one continues the open item.

    A mark outside of its record, or before its predecessor, moves to the nearest place inside, so
    that no character is lost or doubled.
    """
    parts: list[Piece] = []
    mark, at, first = None, 0, 0
    for following in marks:
        stop = min(max(following.at, at), len(text))
        last = min(max(following.ids, first), count)
        parts.append(Piece(mark, text[at:stop], last - first, lp[first:last]))
        mark, at, first = following, stop, last
    return [*parts, Piece(mark, text[at:], count - first, lp[first:])]


def encode_logprobs(lp: Sequence[records.Lp]) -> list[bytes]:
    """Log probabilities as clients see them, without those of tokens that have no text.

    Each is encoded: as objects they would take six times the memory while a response is cached.
    """
    return [
        _encode({**_likely(each), "top_logprobs": [_likely(other) for other in each.top]})
        for each in lp
        if each.token
    ]


def _likely(token: records.Lp | records.Likely) -> Fields:
    raw = bytes.fromhex(token.raw) if token.raw else token.token.encode()
    return {"token": token.token, "logprob": token.logprob, "bytes": list(raw)}


@dataclass(slots=True)
class Item:
    """One output item.

    Attributes:
        id: derived from the response's id and `index`.
        index: the client's `output_index`.
        begin: the mark that began it.
        parts: its characters so far; joined only when the whole text is needed.
        callee: the members that name the tool of a call.
        status: in_progress until it is closed.
        _logprobs: those of a message, encoded and joined by commas. Empty once it is closed.
        _closed: their whole array after the close; all objects that show it share it.
        seal: seals reasoning; None: it is shown without `encrypted_content`.
        citations: finds the citations of a message; None: its text may have none.
        in_summary: reasoning is shown as its `summary`, which the client has requested, instead of
            its `content`. Each event has its counterpart, so numbers are the same.
        _encrypted: its sealed text, once it is closed.
    """

    id: str
    index: int
    begin: records.Mark
    callee: Fields = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    status: str = "in_progress"
    _logprobs: bytearray = field(default_factory=bytearray)
    _closed: msgspec.Raw | None = None
    seal: seals.Seal | None = None
    citations: file_search.Citations | None = None
    in_summary: bool = False
    _encrypted: str | None = None

    @classmethod
    def from_mark(cls, base: Fields, index: int, begin: records.Mark) -> Item:
        """Item number `index` of the response with the echo `base`."""
        fields: Fields = {}
        if begin.kind in ("c", "x"):
            callee = namespaces(base.get("tools")).get(begin.name, {"name": begin.name})
            fields = {"call_id": begin.call_id, **callee}
        item = cls(ids.item_id(base["id"], _PREFIX[begin.kind], index), index, begin, fields)
        if begin.kind == "r":
            item.seal = seals.Seal.from_echo(base.get(seals.MEMBER))
            item.in_summary = _requests_summary(base)
        return item

    def add(self, text: str, logprobs: bytes = b"") -> None:
        """More of it. `logprobs`: the elements of a JSON array."""
        self.parts.append(text)
        if logprobs:
            self._logprobs += b"," + logprobs if self._logprobs else logprobs

    @property
    def text(self) -> str:
        """All characters so far."""
        return "".join(self.parts)

    @property
    def logprobs(self) -> msgspec.Raw | list[Fields]:
        """The log probabilities so far: an encoded array, or an empty list."""
        if self._closed is not None:
            return self._closed
        return msgspec.Raw(b"[" + self._logprobs + b"]") if self._logprobs else []

    @property
    def logprob_bytes(self) -> int:
        """Bytes that they take."""
        return len(self._logprobs) + len(memoryview(self._closed or b""))

    @property
    def place(self) -> Fields:
        """The members by which an event names the place of its characters."""
        place: Fields = {"item_id": self.id, "output_index": self.index}
        if not self._has_part:
            return place
        return {**place, "summary_index" if self.in_summary else "content_index": 0}

    @property
    def delta_type(self) -> str:
        """The type of the events that show some of its characters."""
        return self._event_prefix + ".delta"

    def object(self) -> Fields:
        """The public object as it stands."""
        match self.begin.kind:
            case "m":
                return {
                    "id": self.id,
                    "type": "message",
                    "status": self.status,
                    "role": "assistant",
                    "content": [self._part],
                }
            case "r":
                reasoning: Fields = {
                    "id": self.id,
                    "type": "reasoning",
                    "status": self.status,
                    "summary": [self._part] if self.in_summary else [],
                    "content": [] if self.in_summary else [self._part],
                }
                encrypted = {"encrypted_content": self._encrypted} if self.seal is not None else {}
                return {**reasoning, **encrypted}
        kind, content = (
            ("function_call", "arguments")
            if self.begin.kind == "c"
            else ("custom_tool_call", "input")
        )
        call = {"id": self.id, "type": kind, "status": self.status, **self.callee}
        return {**call, content: self.text}

    @property
    def _event_prefix(self) -> str:
        return _SUMMARY if self.in_summary else _EVENT_PREFIX[self.begin.kind]

    @property
    def _has_part(self) -> bool:
        """Whether its characters stand in a content part. Those of a call do not."""
        return self.begin.kind in ("m", "r")

    @property
    def _part_prefix(self) -> str:
        return "response.reasoning_summary_part" if self.in_summary else "response.content_part"

    @property
    def _part(self) -> Fields:
        if self.begin.kind == "r":
            kind = "summary_text" if self.in_summary else "reasoning_text"
            return {"type": kind, "text": self.text}
        annotations = list(self.citations.annotations) if self.citations is not None else []
        whole: Fields = {"type": "output_text", "text": self.text, "annotations": annotations}
        return {**whole, "logprobs": self.logprobs}

    def citing(self, text: str) -> list[tuple[str, Fields]]:
        """Types and members of the events that show the citations which `text`, added last,
        completes."""
        if self.citations is None:
            return []
        before = len(self.citations.annotations)
        return [
            (
                "response.output_text.annotation.added",
                {**self.place, "annotation_index": number, "annotation": annotation},
            )
            for number, annotation in enumerate(self.citations.add(text), before)
        ]

    def opening(self) -> list[tuple[str, Fields]]:
        """Types and members of the events that announce it. Nothing was added yet."""
        item = self.object()
        if self._has_part:
            item["summary" if self.in_summary else "content"] = []
        out = [("response.output_item.added", {"output_index": self.index, "item": item})]
        if self._has_part:
            out.append((self._part_prefix + ".added", {**self.place, "part": self._part}))
        return out

    def closing(self, status: str) -> list[tuple[str, Fields]]:
        """Types and members of the events that end it, with its final status."""
        self.status = status
        if self.seal is not None:
            self._encrypted = self.seal.close(self.id, self.text)
        if self._logprobs:
            self._closed = msgspec.Raw(b"[" + self._logprobs + b"]")
            self._logprobs = bytearray()
        kind = self.begin.kind
        whole: Fields = {_WHOLE.get(kind, "text"): self.text}
        if kind == "m":
            whole["logprobs"] = self.logprobs
        out = [(self._event_prefix + ".done", {**self.place, **whole})]
        if self._has_part:
            out.append((self._part_prefix + ".done", {**self.place, "part": self._part}))
        return [
            *out,
            ("response.output_item.done", {"output_index": self.index, "item": self.object()}),
        ]


def ends_with_text(output: Sequence[Item]) -> bool:
    """Whether the last item is a message and no item is a call. Such an output can be continued by
    its text."""
    kinds = [item.begin.kind for item in output]
    return bool(kinds) and kinds[-1] == "m" and not {"c", "x"}.intersection(kinds)


_WHOLE: Final = {"c": "arguments", "x": "input"}  # how the event with all characters names them
