"""Conversations: the records of `llm.conversations`, and the fold that makes trees of them (pure).

All acts of one owner lie in one partition. Records of a tree's structure have keys that are written
once, so compaction removes none of them, and the fold gives the same tree (docs/design/history.md).
"""

from __future__ import annotations

import dataclasses
import zlib
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from tailrace.protocol import ids, records, topics

PREFIX: Final = "conv_"
NODE_PREFIX: Final = "node_"  # of items that were added; the node of a turn is its response id
SHARE_PREFIX: Final = "share_"
MAX_NODES: Final = 10_000
PARTITIONS: Final = topics.partitions_of(topics.CONVERSATIONS)

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Attribute = Literal["metadata", "title", "pinned"]


class Created(msgspec.Struct, tag_field="t", tag="CONVERSATION", frozen=True, omit_defaults=True):
    """Key `<id>`: the owner `by` made a conversation. `created_at` in seconds since the epoch.

    Where several may make the same one, each has an `attempt` (random) and the key
    `<id>:c:<attempt>`. Under one key compaction would leave the last of them, after the nodes that
    followed the first.
    """

    id: Id
    by: records.Owner
    created_at: records.Count
    metadata: dict[str, str] = {}
    title: str = ""
    attempt: Annotated[str, msgspec.Meta(max_length=64)] = ""
    v: int = records.VERSION


class Gone(msgspec.Struct, tag_field="t", tag="GONE", frozen=True, omit_defaults=True):
    """Key `<id>`: the owner deleted it; that is final. It replaces `Created`."""

    id: Id
    by: records.Owner
    v: int = records.VERSION


class Changed(msgspec.Struct, tag_field="t", tag="CHANGED", frozen=True, omit_defaults=True):
    """Key `<id>:<attribute>`: the one attribute that is not None has another value."""

    id: Id
    by: records.Owner
    metadata: dict[str, str] | None = None
    title: str | None = None
    pinned: bool | None = None
    v: int = records.VERSION

    @property
    def attribute(self) -> Attribute | None:
        """Which one; None for a record that names none or several."""
        names: tuple[Attribute, ...] = ("metadata", "title", "pinned")
        attributes = [name for name in names if getattr(self, name) is not None]
        return attributes[0] if len(attributes) == 1 else None


class Turn(msgspec.Struct, tag_field="t", tag="TURN", frozen=True, omit_defaults=True):
    """Key `<id>:n:<node>`: the response `node` is to follow `parent` (None: nothing).

    `until` is a time of the broker in ms, as `append_by` of its request: a request that is not in
    the log by then never is. A node with `branch` need not follow the head.
    """

    id: Id
    by: records.Owner
    node: Id
    parent: Id | None = None
    branch: bool = False
    until: records.Count = 0
    v: int = records.VERSION


class Added(msgspec.Struct, tag_field="t", tag="ADDED", frozen=True, omit_defaults=True):
    """Key `<id>:n:<node>`: items, each under a key of its own, follow `parent`."""

    id: Id
    by: records.Owner
    node: Id
    items: list[Id]
    parent: Id | None = None
    branch: bool = False
    v: int = records.VERSION


class Chosen(msgspec.Struct, tag_field="t", tag="CHOSEN", frozen=True, omit_defaults=True):
    """Key `<id>:p:<random>`: `head` (None: before all nodes) is the head from now on. With `only`,
    it is if `was` is the head now."""

    id: Id
    by: records.Owner
    head: Id | None = None
    was: Id | None = None
    only: bool = False
    v: int = records.VERSION


class Item(msgspec.Struct, tag_field="t", tag="ITEM", frozen=True, omit_defaults=True):
    """Key `<id>:i:<item>`: what an added item holds, as the API shows it, without its id."""

    id: Id
    by: records.Owner
    item: Id
    content: dict[str, Any]
    v: int = records.VERSION


class Removed(msgspec.Struct, tag_field="t", tag="REMOVED", frozen=True, omit_defaults=True):
    """Key `<id>:d:<item>`: an item of a turn, or one that was added, is left out from now on."""

    id: Id
    by: records.Owner
    item: Id
    v: int = records.VERSION


class Shared(msgspec.Struct, tag_field="t", tag="SHARED", frozen=True, omit_defaults=True):
    """Key `<id>:s:<share>`: a link shows the path to `head`, under this title, until `expires_at`.
    Times in seconds since the epoch."""

    id: Id
    by: records.Owner
    share: Id
    head: Id
    created_at: records.Count
    expires_at: records.Count
    title: str = ""
    v: int = records.VERSION


class Unshared(msgspec.Struct, tag_field="t", tag="UNSHARED", frozen=True, omit_defaults=True):
    """Key `<id>:s:<share>`: the link has ended. It replaces `Shared`, and is not removed: a gateway
    that cached the link long ago must still find it."""

    id: Id
    by: records.Owner
    share: Id
    v: int = records.VERSION


Act = Created | Gone | Changed | Turn | Added | Chosen | Item | Removed | Shared | Unshared
_decoder = msgspec.json.Decoder(Act)
_encoder = msgspec.json.Encoder()


def encode(act: Act) -> bytes:
    """The record's bytes."""
    return _encoder.encode(act)


def partition(owner: records.Owner) -> int:
    """The partition of all that an owner does to conversations."""
    return zlib.crc32(owner.key.encode()) % PARTITIONS


def key(act: Act, random: str = "") -> str:
    """The key of a record. `random`: of a `Chosen`."""
    match act:
        case Created(attempt=attempt) if attempt:
            return f"{act.id}:c:{attempt}"
        case Created() | Gone():
            return act.id
        case Changed():
            return f"{act.id}:{act.attribute}"
        case Turn() | Added():
            return f"{act.id}:n:{act.node}"
        case Chosen():
            return f"{act.id}:p:{random}"
        case Item():
            return f"{act.id}:i:{act.item}"
        case Removed():
            return f"{act.id}:d:{act.item}"
        case Shared() | Unshared():
            return share_key(act.id, act.share)


def share_key(name: str, share: str) -> str:
    """The key of the records about a conversation's link."""
    return f"{name}:s:{share}"


def id_from_key(record_key: bytes | None) -> str | None:
    """The conversation of a record key; None for a key of another kind."""
    name = (record_key or b"").decode(errors="replace").partition(":")[0]
    try:
        ids.parse(name, PARTITIONS, PREFIX)
    except ids.InvalidId:
        return None
    return name


def item_from_key(record_key: bytes | None) -> str | None:
    """The item whose content has this record key; None for another key."""
    _, separator, item = (record_key or b"").decode(errors="replace").partition(":i:")
    return item if separator else None


def decode(record_key: bytes | None, value: bytes | None) -> Act | None:
    """The act of a record, or None for garbage: the value cannot be read, or the key is not the
    key of the act."""
    if value is None or records.too_deep(value):
        return None
    try:
        act = _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    if act.v != records.VERSION or (isinstance(act, Changed) and act.attribute is None):
        return None
    name = (record_key or b"").decode(errors="replace")
    if isinstance(act, Chosen):
        start = f"{act.id}:p:"
        return act if name.startswith(start) and len(name) > len(start) else None
    return act if name == key(act) else None


class Node(NamedTuple):
    """A node of a tree. `items`: those that were added with it; empty for a turn. `until`: as
    of `Turn`. `at_ms`: when the broker took it."""

    parent: str | None
    items: tuple[str, ...]
    until: int
    at_ms: int

    @property
    def turn(self) -> bool:
        return not self.items


class Share(NamedTuple):
    """A link that was not revoked; it may have expired. As `Shared`."""

    head: str
    title: str
    created_at: int
    expires_at: int


@dataclass(slots=True)
class Conversation:
    """What the log says of one conversation.

    Attributes:
        owner: None before it was created, and once it is gone.
        head: the node at the end of the chosen path; None: there is none yet.
        nodes: by id, in the order of the log; those that were accepted.
        removed: ids of items that are left out.
        contents: contents of added items that were read here.
        shares: links to it by id, in the order of the log.
        updated_ms: when its last node was accepted, or it was created.
        attempt: of the `Created` that made it.
        gone: keys of owners who deleted it. They cannot make it again.
    """

    id: str
    owner: records.Owner | None = None
    created_at: int = 0
    updated_ms: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    title: str = ""
    pinned: bool = False
    head: str | None = None
    nodes: dict[str, Node] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    contents: dict[str, dict[str, Any]] = field(default_factory=dict)
    shares: dict[str, Share] = field(default_factory=dict)
    attempt: str = ""
    gone: set[str] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        """Whether the contents of all added items are here."""
        return all(
            item in self.contents or item in self.removed
            for node in self.nodes.values()
            for item in node.items
        )

    def apply(self, act: Act, at_ms: int) -> bool:
        """Fold one record of this conversation, in the order of the log. Returns whether it took
        effect. `at_ms`: the broker's time of it."""
        if isinstance(act, Created):
            return self._create(act, at_ms)
        if isinstance(act, Gone) and self.owner is None:
            self.gone.add(act.by.key)  # compaction or an erasure took what made it
            return True
        if act.by != self.owner:
            return False
        match act:
            case Gone():
                self.clear()
                self.gone.add(act.by.key)
            case Changed(metadata=metadata, title=title, pinned=pinned):
                self.metadata = self.metadata if metadata is None else metadata
                self.title = self.title if title is None else title
                self.pinned = self.pinned if pinned is None else pinned
            case Turn() | Added():
                return self._add(act, at_ms)
            case Chosen(head=head, was=was, only=only):
                if (head is not None and head not in self.nodes) or (only and was != self.head):
                    return False
                self.head = head
            case Item(item=item, content=content):
                if item in self.removed:
                    return False
                self.contents[item] = content
            case Removed(item=item):
                self.removed.add(item)
                self.contents.pop(item, None)
            case Shared(share=share, head=head):
                if head not in self.nodes:
                    return False
                self.shares[share] = Share(head, act.title, act.created_at, act.expires_at)
            case Unshared(share=share):
                return self.shares.pop(share, None) is not None
        return True

    def erase(self, key: bytes | None) -> None:
        """A tombstone: of the conversation, or of an item's content. Others have no effect."""
        if key == self.id.encode():
            self.clear()
        elif (item := item_from_key(key)) is not None:
            self.contents.pop(item, None)

    def copy(self) -> Conversation:
        """A copy, which can be folded further independently of this one."""
        return dataclasses.replace(
            self,
            nodes=self.nodes.copy(),
            removed=self.removed.copy(),
            contents=self.contents.copy(),
            shares=self.shares.copy(),
            gone=self.gone.copy(),
        )

    def clear(self) -> None:
        """Forget everything except who deleted it."""
        self.owner = self.head = None
        self.metadata, self.title, self.attempt, self.pinned = {}, "", "", False
        self.created_at = self.updated_ms = 0
        for each in (self.nodes, self.removed, self.contents, self.shares):
            each.clear()

    def path(self) -> list[str]:
        """The ids of the nodes from the root to the head."""
        return self.path_to(self.head)

    def path_to(self, node: str | None) -> list[str]:
        """The ids of the nodes from the root to this one; none for None."""
        path = []
        at = node
        while at is not None:
            path.append(at)
            at = self.nodes[at].parent
        return path[::-1]

    def node_of(self, item: str) -> str | None:
        """The node of an item, by its id; None if no node of this conversation has it."""
        for node, at in self.nodes.items():
            if item in at.items:
                return node
        rid = ids.response_of_item(item)
        return rid if rid in self.nodes else None

    def _create(self, act: Created, at_ms: int) -> bool:
        if self.owner is not None or act.by.key in self.gone:
            return False
        self.owner, self.created_at, self.updated_ms = act.by, act.created_at, at_ms
        self.metadata, self.title, self.attempt = act.metadata, act.title, act.attempt
        return True

    def _add(self, act: Turn | Added, at_ms: int) -> bool:
        parent_exists = act.parent is None or act.parent in self.nodes
        follows = act.parent == self.head or act.branch
        has_space = len(self.nodes) < MAX_NODES
        complete = isinstance(act, Turn) or bool(act.items)
        if act.node in self.nodes or not (parent_exists and follows and has_space and complete):
            return False
        items = tuple(act.items) if isinstance(act, Added) else ()
        until = act.until if isinstance(act, Turn) else 0
        self.nodes[act.node] = Node(act.parent, items, until, at_ms)
        self.head, self.updated_ms = act.node, max(self.updated_ms, at_ms)
        return True
