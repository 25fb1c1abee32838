"""Transcripts: what clients, workers and the fault injector saw, as JSON lines (pure).

There is one file per process and incarnation, flushed after every line:

    {"op": "submit", "f": "invoke", "n": 1, "user": "alice", "mark": "m-1", "key": "k-1",
     "wall": 1.5, "mono": 2.5}                                     (on one line)
    {"op": "submit", "f": "ok",     "n": 1, "rid": "resp_…"}       (or "fail": refused,
                                                                    "info": outcome unknown)
    {"op": "watch",  "f": "invoke", "n": 2, "user": "alice", "watcher": "w-1", "rid": "resp_…",
     "after": -1}
    {"op": "events", "n": 2, "events": [[0, "response.created"],
                                        [5, "response.output_text.delta", " la", "c4…"]]}
    {"op": "end",    "n": 2, "status": "completed", "text": " la", "tokens": 1,
     "items": [["message", "", "", " la"]]}
    {"op": "close",  "n": 2, "code": 4002}
    {"op": "cancel", "f": "invoke", "n": 3, "user": "alice", "rid": "resp_…"}
    {"op": "acked",  "topic": "llm.tokens", "partition": 0, "offset": 7, "digest": "…"}
    {"op": "commit", "topic": "llm.requests.default.interactive", "partition": 0, "offset": 3,
     "metadata": "11", "wall": 1.5}
    {"op": "nemesis", "f": "start", "kind": "kill", "target": "worker-1"}
    {"op": "heal"}

An event is its number, its type, its `delta` (null if it has none) and the digest of all its bytes;
the last two may be left out. An item is its type, the name and `call_id` of a call, and its
characters. `n` names an operation within its file. A file may end in half a line if its writer was
killed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

# The code of a close by a client that gave up waiting for an end that was due.
IN_VAIN: Final = "in_vain"


class Line(msgspec.Struct, omit_defaults=True):
    """One line. Which fields are present depends on `op`."""

    op: str
    f: Literal["invoke", "ok", "fail", "info", "start", "stop", ""] = ""
    n: int = 0
    wall: float = 0.0
    mono: float = 0.0
    user: str = ""
    mark: str | None = None
    key: str | None = None
    rid: str = ""
    watcher: str = ""
    after: int = -1
    events: list[list[Any]] = []
    status: str = ""
    code: int | str | None = None
    text: str | None = None
    items: list[list[str]] | None = None
    tokens: int | None = None
    error: str = ""
    topic: str = ""
    partition: int = 0
    offset: int = 0
    metadata: str = ""
    digest: str = ""
    kind: str = ""
    target: str = ""


_decoder = msgspec.json.Decoder(Line)
_encoder = msgspec.json.Encoder()


class Unreadable(Exception):
    """A file is not a transcript. The message names file and line."""


def encode(line: Line) -> bytes:
    """Encode one line of a file."""
    return _encoder.encode(line) + b"\n"


def read(raw: bytes, name: str) -> list[Line]:
    """Decode a file. A half line at its end is left out.

    Raises:
        Unreadable: a whole line is not a transcript line.
    """
    lines = raw.split(b"\n")
    records = []
    for number, text in enumerate(lines[:-1], 1):  # the last piece is empty, or half a line
        try:
            records.append(_decoder.decode(text))
        except msgspec.MsgspecError as error:
            raise Unreadable(f"{name}:{number}: {error}") from error
    return records


def digest(value: bytes) -> str:
    """The digest of a record's bytes, as acknowledged appends are written down, and of an
    event's."""
    return hashlib.blake2b(value, digest_size=8).hexdigest()


class Operation(msgspec.Struct):
    """One operation of one file.

    Attributes:
        file: the file's name; with the number of `invoke` it identifies the operation.
        invoke: how it began.
        done: how it ended; None if the file does not say.
        received: events, end and close lines of a watch, in order.
    """

    file: str
    invoke: Line
    done: Line | None = None
    received: list[Line] = []


def operations(files: Iterable[tuple[str, list[Line]]]) -> list[Operation]:
    """Submits, watches and cancels, in the order in which they began within each file."""
    out: list[Operation] = []
    for name, lines in files:
        open_: dict[int, Operation] = {}
        for line in lines:
            if line.f == "invoke" and line.op in ("submit", "watch", "cancel"):
                open_[line.n] = Operation(name, line)
                out.append(open_[line.n])
            elif (operation := open_.get(line.n)) is None:
                continue
            elif line.op in ("events", "end", "close"):
                operation.received.append(line)
            elif line.op == operation.invoke.op:
                operation.done = line
    return out
