"""The change that one record makes in the archive (pure).

The archive knows a `State` for each response. A record changes one state, in the order of its
topic; records of different topics may come in any order and give the same states:

    HISTORY     the row, unless its owner deleted the response or the topic has a tombstone of it.
                One that was cut into records is stored in parts until it is complete. A copy of an
                existing row changes nothing.
    METADATA    the metadata of the row, also before there is one
    DELETED     no row for its owner, for ever; its records in the topic must be erased
    tombstone   no row and no metadata

A response that is written again after it was erased (a slow worker's copy) is erased again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from tailrace.protocol import fold, history, records, topics

RESPONSE: Final = "response"
CHAT: Final = "chat"
DELETIONS: Final = topics.DELETIONS
RESPONSES: Final = (topics.HISTORY, DELETIONS)
TOPICS: Final = (*RESPONSES, topics.CONVERSATIONS)
TOMBSTONE: Final = ""  # instead of the principal who deleted it


class Key(NamedTuple):
    """The names in a key of `llm.history`: a part of a response's HISTORY, or its metadata."""

    rid: str
    part: int = 0
    metadata: bool = False


def parse_key(key: bytes | None) -> Key | None:
    """The key, or None for one that names no response."""
    if (part := history.part_from_key(key)) is not None:
        return Key(*part)
    rid = history.metadata_rid(key)
    return Key(rid, metadata=True) if rid is not None else None


class Row(NamedTuple):
    """An existing row: its owner's key, and the number of records of its HISTORY."""

    owner: str
    records: int


@dataclass(slots=True)
class State:
    """The archive's state of one response.

    Attributes:
        row: that of the database; None: there is none.
        whole: a HISTORY that becomes the row; None: the row stays as it is.
        parts: records of a HISTORY that is not complete.
        erased: keys of owners who deleted it, and `TOMBSTONE`.
        changes: metadata by the key of the principal who set it. Only its owner's counts.
        tombstones: keys that must be erased from the topic.
    """

    rid: str
    row: Row | None = None
    whole: history.History | None = None
    parts: dict[int, bytes] = field(default_factory=dict)
    erased: set[str] = field(default_factory=set)
    changes: dict[str, dict[str, str]] = field(default_factory=dict)
    tombstones: set[str] = field(default_factory=set)

    def apply(self, key: Key, value: bytes | None) -> bool:
        """A record of `llm.history`; None: a tombstone. Returns whether it is good."""
        if value is None:
            self._tombstone(key)
            return True
        if key.metadata:
            change = records.metadata_of(value)
            if change is None or change.rid != self.rid:
                return False
            if not self.erased & {change.by.key, TOMBSTONE}:
                self.changes[change.by.key] = change.metadata
            return True
        return self._part(key, value)

    def delete(self, by: str) -> None:
        """A DELETED of the owner with the key `by`."""
        self.erased.add(by)
        if self.row is not None and self.row.owner == by:
            self._erase(self.row.records)
        self.changes.pop(by, None)

    def _part(self, key: Key, value: bytes) -> bool:
        if TOMBSTONE in self.erased:
            self.tombstones.add(history.part_key(self.rid, key.part))
            return True
        if self.row is not None:
            return True
        if history.decode_part(history.part_key(self.rid, key.part).encode(), value) is None:
            return False
        self.parts[key.part] = value
        read = (
            history.decode_part(history.part_key(self.rid, number).encode(), each)
            for number, each in self.parts.items()
        )
        whole = history.join([part for part in read if part is not None])
        if whole is None:
            return True
        count = len(self.parts)
        self.parts = {}
        if whole.owner.key in self.erased:
            self._erase(count)
        else:
            self.whole, self.row = whole, Row(whole.owner.key, count)
        return True

    def _tombstone(self, key: Key) -> None:
        if key.metadata:
            self.changes = {}
            return
        self.parts.pop(key.part, None)
        if not key.part:
            self.erased.add(TOMBSTONE)
            self.row = self.whole = None
            self.changes = {}

    def _erase(self, count: int) -> None:
        self.row = self.whole = None
        self.parts = {}
        self.tombstones |= {*history.part_keys(self.rid, count), history.metadata_key(self.rid)}


def columns(whole: history.History, changes: Mapping[str, dict[str, str]]) -> dict[str, Any]:
    """The columns of `responses` that follow from a HISTORY, except its bytes."""
    request, end = whole.request, whole.end
    choice = request.choice
    return {
        "rid": whole.rid,
        "owner": whole.owner.key,
        "created_at": int(request.echo["created_at"]),
        "ended_ms": whole.ended_ms,
        "model": whole.model,
        "kind": CHAT if choice is not None else RESPONSE,
        "status": fold.status_of(end),
        "previous": request.previous,
        "completion": choice.group if choice is not None else whole.rid,
        "choice": choice.index if choice is not None else 0,
        "choices": choice.count if choice is not None else 1,
        "metadata": encode_metadata(current_metadata(whole, changes)),
    }


def current_metadata(
    whole: history.History, changes: Mapping[str, dict[str, str]]
) -> dict[str, str]:
    """The metadata of a response: as its owner changed it, else as its request gave it."""
    change = changes.get(whole.owner.key)
    return change if change is not None else whole.request.echo.get("metadata") or {}


def encode_metadata(metadata: dict[str, str]) -> str:
    """Metadata for a row."""
    return msgspec.json.encode(metadata, order="sorted").decode()
