"""Positions and events of a feed (pure; docs/design/history.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from tailrace.protocol import activity, conversations, topics

TOPICS: Final = (topics.CONVERSATIONS, topics.ACTIVITY)
_POSITION: Final = re.compile(r"([0-9a-f]{8})-([0-9]{1,16})-([0-9]{1,16})\Z")
_encode = msgspec.json.Encoder().encode


class InvalidPosition(ValueError):
    """The text is not a position."""


class Position(NamedTuple):
    """A reader's position in an owner's partition: the next offsets, in the order of `TOPICS`, in
    the log with the tag `log`."""

    log: bytes
    offsets: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.log.hex()}-{self.offsets[0]}-{self.offsets[1]}"


def parse_position(text: str) -> Position:
    """Parse a client's position. Raises InvalidPosition."""
    match = _POSITION.match(text)
    if match is None:
        raise InvalidPosition(text[:80])
    return Position(bytes.fromhex(match[1]), (int(match[2]), int(match[3])))


@dataclass(frozen=True, slots=True)
class Event:
    """One event, with the position after it."""

    type: str
    position: str
    body: bytes

    def sse(self) -> bytes:
        """As a server-sent event."""
        return b"event: %s\nid: %s\ndata: %s\n\n" % (
            self.type.encode(),
            self.position.encode(),
            self.body,
        )


def event(kind: str, at: Position, **fields: Any) -> Event:
    """An event of this type."""
    text = str(at)
    return Event(kind, text, _encode({"type": kind, "position": text, **fields}))


def act_event(act: conversations.Act) -> tuple[str, dict[str, Any]] | None:
    """Type and fields of the event of an act; None for an act that has no event."""
    name = {"conversation_id": act.id}
    match act:
        case conversations.Created():
            conversation = {
                "id": act.id,
                "object": "conversation",
                "created_at": act.created_at,
                "metadata": act.metadata,
                "title": act.title or None,
            }
            return "conversation.created", {**name, "conversation": conversation}
        case conversations.Gone():
            return "conversation.deleted", name
        case conversations.Changed():
            attribute = act.attribute
            assert attribute is not None
            return "conversation.updated", {**name, attribute: getattr(act, attribute)}
        case conversations.Chosen():
            return "conversation.updated", {**name, "head": act.head}
        case conversations.Turn():
            return "conversation.turn", {**name, "response_id": act.node, "parent": act.parent}
        case conversations.Added():
            return "conversation.items_added", {**name, "items": act.items, "parent": act.parent}
        case conversations.Removed():
            return "conversation.item_removed", {**name, "item_id": act.item}
    return None


def notice_event(notice: activity.Notice) -> tuple[str, dict[str, Any]]:
    """Type and fields of the event of a notice."""
    fields = {
        "response_id": notice.rid,
        "model": notice.model,
        "created_at": notice.created_at,
        "conversation_id": notice.conversation,
        "previous_response_id": notice.previous,
    }
    if isinstance(notice, activity.Ended):
        return "response.ended", {**fields, "status": notice.status}
    return "response.started", fields
