"""Vector stores: the records of `llm.vector_stores` and `llm.passages`, and their fold (pure).

All acts of one owner lie in one partition. A record that creates a store or adds a file has a key
that is written once; attributes that change have keys of their own, and the last record of a key
counts. A tombstone under the key of a store, or of a file in it, removes it; later records of it
have no effect. So the fold of the records after compaction equals the fold of all records.

A passage is a piece of a file's text with its vector. Both are in one record, so the vector
database can be rebuilt without the file, which is deleted after two days, and without the model.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

import msgspec

from tailrace.protocol import files, ids, records, topics

PREFIX: Final = "vs_"
FILE_PREFIX: Final = "vsa_"  # of an attachment: a file as it was added to a store
BATCH_PREFIX: Final = "vsfb_"
PARTITIONS: Final = topics.partitions_of(topics.VECTOR_STORES)
MAX_FILES: Final = 2_000  # of one store: a search names them in its filter
MAX_TEXT_BYTES: Final = 65_535  # of one passage, in UTF-8: what Milvus keeps in a field
DAY_S: Final = 86_400

Id = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
Value = str | float | bool
Status = Literal["in_progress", "completed", "failed", "cancelled"]


class Created(msgspec.Struct, tag_field="t", tag="STORE", frozen=True, omit_defaults=True):
    """Key `<id>`: the owner `by` created a store. `created` in seconds since the epoch."""

    id: Id
    by: records.Owner
    created: records.Count
    v: int = records.VERSION


class Changed(msgspec.Struct, tag_field="t", tag="CHANGED", frozen=True, omit_defaults=True):
    """Key `<id>:c`: the store's attributes. It expires after `days` without use; 0: never."""

    id: Id
    by: records.Owner
    name: str = ""
    description: str = ""
    metadata: dict[str, str] = {}
    days: records.Count = 0
    v: int = records.VERSION


class Used(msgspec.Struct, tag_field="t", tag="USED", frozen=True, omit_defaults=True):
    """Key `<id>:u`: when it was used, in seconds since the epoch."""

    id: Id
    by: records.Owner
    at: records.Count
    v: int = records.VERSION


class Deleting(msgspec.Struct, tag_field="t", tag="LEAVING", frozen=True, omit_defaults=True):
    """Key `<id>:d`: it is deleted. Its content is erased next, and last its `Created`."""

    id: Id
    by: records.Owner
    v: int = records.VERSION


class Attached(msgspec.Struct, tag_field="t", tag="FILE", frozen=True, omit_defaults=True):
    """Key `<id>:f:<attachment>`: a file was added. `sha256` and `place` say where its bytes are for
    two days. `size` and `overlap` of its passages are in tokens. `gateway`: the process that makes
    its passages; `batch`: those that were added together."""

    id: Id
    by: records.Owner
    attachment: Id
    file: Id
    filename: str
    sha256: str
    place: files.Place
    created: records.Count
    gateway: str
    size: records.Count
    overlap: records.Count
    attributes: dict[str, Value] = {}
    batch: str = ""
    v: int = records.VERSION


class Described(msgspec.Struct, tag_field="t", tag="DESCRIBED", frozen=True, omit_defaults=True):
    """Key `<id>:a:<attachment>`: it has other attributes."""

    id: Id
    by: records.Owner
    attachment: Id
    attributes: dict[str, Value] = {}
    v: int = records.VERSION


class Progress(msgspec.Struct, tag_field="t", tag="PROGRESS", frozen=True, omit_defaults=True):
    """Key `<id>:p:<attachment>`: the state of its passages. `passages`: their number, which is in
    the log before the first passage. `bytes`: of their texts."""

    id: Id
    by: records.Owner
    attachment: Id
    gateway: str
    status: Status = "in_progress"
    passages: records.Count = 0
    bytes: records.Count = 0
    code: str = ""
    message: str = ""
    v: int = records.VERSION


class Detached(msgspec.Struct, tag_field="t", tag="DETACHED", frozen=True, omit_defaults=True):
    """Key `<id>:d:<attachment>`: it is taken out. Its passages are erased next, and last its
    `Attached`."""

    id: Id
    by: records.Owner
    attachment: Id
    v: int = records.VERSION


Act = Created | Changed | Used | Deleting | Attached | Described | Progress | Detached


class Passage(msgspec.Struct, tag_field="t", tag="PASSAGE", frozen=True, omit_defaults=True):
    """On `llm.passages`, key `<id>:<attachment>:<number>`: a piece of a file's text, and its vector
    by `model` (little-endian float32)."""

    id: Id
    by: records.Owner
    attachment: Id
    number: records.Count
    text: str
    model: str
    vector: bytes
    v: int = records.VERSION

    @property
    def key(self) -> str:
        return passage_key(self.id, self.attachment, self.number)


_decoder = msgspec.json.Decoder(Act)
_passages = msgspec.json.Decoder(Passage)
_encoder = msgspec.json.Encoder()


def encode(record: Act | Passage) -> bytes:
    """The record's bytes."""
    return _encoder.encode(record)


def partition(owner: records.Owner) -> int:
    """The partition of `llm.vector_stores` with all that an owner does."""
    return zlib.crc32(owner.key.encode()) % PARTITIONS


def passages_partition(store: str) -> int:
    """The partition of `llm.passages` with all of a store."""
    return topics.partition_of(topics.PASSAGES, store)


def scope(owner: records.Owner) -> str:
    """The name of an owner in the vector database."""
    return hashlib.blake2b(owner.key.encode(), digest_size=20).hexdigest()


def key(act: Act) -> str:
    """The key of a record."""
    match act:
        case Created():
            return act.id
        case Changed():
            return f"{act.id}:c"
        case Used():
            return f"{act.id}:u"
        case Deleting():
            return f"{act.id}:d"
        case Attached():
            return f"{act.id}:f:{act.attachment}"
        case Described():
            return f"{act.id}:a:{act.attachment}"
        case Progress():
            return f"{act.id}:p:{act.attachment}"
        case Detached():
            return f"{act.id}:d:{act.attachment}"


def keys_of_file(store: str, attachment: str) -> list[str]:
    """All keys of a file in `llm.vector_stores`, in the order in which they are erased: while its
    `Attached` is there, an interrupted erasure continues."""
    return [f"{store}:{kind}:{attachment}" for kind in "pafd"]


def keys_of_store(store: str) -> list[str]:
    """The same of a store."""
    return [f"{store}:c", f"{store}:u", store, f"{store}:d"]


def passage_key(store: str, attachment: str, number: int) -> str:
    """The key of a passage."""
    return f"{store}:{attachment}:{number}"


def decode(record_key: bytes | None, value: bytes | None) -> Act | None:
    """The act of a record, or None for garbage: the value cannot be read, or the key is not the
    key of the act."""
    if value is None or records.too_deep(value):
        return None
    try:
        act = _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    if act.v != records.VERSION or record_key != key(act).encode():
        return None
    return None if isinstance(act, Attached) and not act.place.valid else act


def decode_passage(record_key: bytes | None, value: bytes | None) -> Passage | None:
    """A record of `llm.passages`; None for garbage, like `decode`."""
    if value is None or records.too_deep(value):
        return None
    try:
        passage = _passages.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    fits = len(passage.text.encode()) <= MAX_TEXT_BYTES
    whole = bool(passage.vector) and len(passage.vector) % 4 == 0 and fits
    return (
        passage
        if passage.v == records.VERSION and record_key == passage.key.encode() and whole
        else None
    )


@dataclass(slots=True)
class File:
    """A file of a store, as the log says.

    Attributes:
        act: as it was added.
        attributes: as they are now.
        progress: None: no gateway has begun with it.
        detached: it is taken out, and is being erased.
    """

    act: Attached
    attributes: dict[str, Value]
    progress: Progress | None = None
    detached: bool = False

    @property
    def status(self) -> Status:
        return self.progress.status if self.progress is not None else "in_progress"

    @property
    def gateway(self) -> str:
        """The process that works on it, while it is in progress."""
        return self.progress.gateway if self.progress is not None else self.act.gateway

    @property
    def passages(self) -> int:
        return self.progress.passages if self.progress is not None else 0

    @property
    def bytes(self) -> int:
        done = self.status == "completed" and self.progress is not None
        return self.progress.bytes if done and self.progress is not None else 0


@dataclass(slots=True)
class Store:
    """A store, as the log says.

    Attributes:
        used: when it was used last, in seconds since the epoch.
        leaving: it is deleted, and is being erased.
        files: by attachment, in the order in which they were added; those that are erased too, and
            those that another attachment came before.
        latest: by file id, the attachment by which the file was added last; it may be erased.
    """

    id: str
    owner: records.Owner
    created: int
    used: int
    name: str = ""
    description: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    days: int = 0
    leaving: bool = False
    files: dict[str, File] = field(default_factory=dict)
    latest: dict[str, str] = field(default_factory=dict)

    @property
    def expires(self) -> int | None:
        """When it expires unless it is used, in seconds since the epoch; None: never."""
        return self.used + self.days * DAY_S if self.days else None

    def expired(self, now: float) -> bool:
        return self.expires is not None and now >= self.expires

    @property
    def present(self) -> dict[str, File]:
        """Its files by their ids, in the order in which they were added."""
        return {each.act.file: each for each in self.files.values() if not each.detached}

    def apply(self, act: Act) -> None:
        """Fold an act of the owner."""
        match act:
            case Created():
                pass
            case Changed():
                self.name, self.description = act.name, act.description
                self.metadata, self.days = act.metadata, act.days
            case Used():
                self.used = max(self.used, act.at)
            case Deleting():
                self.leaving = True
            case Attached():
                if act.attachment not in self.files:
                    self._attach(act)
            case _:
                file = self.files.get(act.attachment)
                if file is not None:
                    _apply_to_file(file, act)

    def _attach(self, act: Attached) -> None:
        """If a file is added twice at the same time, the first counts and the other is erased."""
        first = self.files.get(self.latest.get(act.file, ""))
        late = first is not None and not first.detached
        self.files[act.attachment] = File(act, act.attributes, detached=late)
        if not late:
            self.latest[act.file] = act.attachment


def _apply_to_file(file: File, act: Described | Progress | Detached) -> None:
    match act:
        case Described():
            file.attributes = act.attributes
        case Progress():
            # A process that was considered dead may still report its progress.
            if file.status == "in_progress" or act.status != "in_progress":
                file.progress = act
        case Detached():
            file.detached = True


class Stores:
    """All stores of a deployment: the fold of `llm.vector_stores`.

    Attributes:
        _by_owner: by owner's key and by store id, in the order of the log.
    """

    def __init__(self) -> None:
        self._by_owner: dict[str, dict[str, Store]] = {}
        self._owners: dict[str, str] = {}

    def __iter__(self) -> Iterator[Store]:
        for stores in self._by_owner.values():
            yield from stores.values()

    def find(self, name: str) -> Store | None:
        """The store of an id, whoever's it is."""
        owner = self._owners.get(name)
        return None if owner is None else self._by_owner[owner][name]

    def for_owner(self, owner: records.Owner) -> list[Store]:
        """The owner's stores, oldest first, without those that are being erased."""
        return [each for each in self._by_owner.get(owner.key, {}).values() if not each.leaving]

    def apply(self, act: Act) -> None:
        """Fold one record, in the order of its partition."""
        store = self.find(act.id)
        if store is None and isinstance(act, Created):
            created = Store(act.id, act.by, act.created, act.created)
            self._by_owner.setdefault(act.by.key, {})[act.id] = created
            self._owners[act.id] = act.by.key
        elif store is not None and store.owner == act.by:
            store.apply(act)

    def erase(self, record_key: bytes | None) -> None:
        """Fold a tombstone."""
        name, _, rest = (record_key or b"").decode(errors="replace").partition(":")
        store = self.find(name)
        if store is None:
            return
        if not rest:
            del self._by_owner[self._owners.pop(name)][name]
        elif rest.startswith("f:"):
            file = store.files.pop(rest.removeprefix("f:"), None)
            if file is not None and store.latest.get(file.act.file) == file.act.attachment:
                del store.latest[file.act.file]


def valid_id(name: str) -> str | None:
    """`name` if it may be the id of a store; None for any other text."""
    try:
        ids.parse(name, PARTITIONS, PREFIX)
    except ids.InvalidId:
        return None
    return name
