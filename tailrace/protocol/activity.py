"""What an owner's devices are told of responses: the records of `llm.activity` (pure).

Without content. Of one response there may be copies, written by workers one after another; readers
tell them by its id.
"""

from __future__ import annotations

import msgspec

from tailrace.protocol import conversations, fold, history, records

# An owner's place is the same in both topics of the feed.
partition = conversations.partition


class Started(msgspec.Struct, tag_field="t", tag="STARTED", frozen=True, omit_defaults=True):
    """Key = rid: a worker has begun with a stored response. `created_at` in seconds since the
    epoch."""

    rid: str
    owner: records.Owner
    model: str
    created_at: records.Count = 0
    conversation: str | None = None
    previous: str | None = None
    v: int = records.VERSION


class Ended(msgspec.Struct, tag_field="t", tag="ENDED", frozen=True, omit_defaults=True):
    """Key = rid: a stored response has ended with this status of its Response object."""

    rid: str
    owner: records.Owner
    model: str
    status: str
    created_at: records.Count = 0
    conversation: str | None = None
    previous: str | None = None
    v: int = records.VERSION


Notice = Started | Ended
_decoder = msgspec.json.Decoder(Notice)
_encoder = msgspec.json.Encoder()


def encode(notice: Notice) -> bytes:
    """The record's bytes."""
    return _encoder.encode(notice)


def decode(key: bytes | None, value: bytes | None) -> Notice | None:
    """The record, or None for garbage."""
    if value is None:
        return None
    try:
        found = _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return found if found.v == records.VERSION and key == found.rid.encode() else None


def started(request: records.Request) -> Started | None:
    """The notice that a response has begun; None for one that nobody can read later."""
    if not history.stored(request):
        return None
    return Started(
        request.rid,
        request.owner,
        request.model,
        int(request.echo["created_at"]),
        request.conversation,
        request.previous,
    )


def ended(request: records.Request, end: fold.Ended) -> Ended | None:
    """The notice that a response has ended; None for one that nobody can read later."""
    if not history.kept(request, end):
        return None
    return Ended(
        request.rid,
        request.owner,
        request.model,
        end.status,
        int(request.echo["created_at"]),
        request.conversation,
        request.previous,
    )
