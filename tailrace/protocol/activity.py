"""Notices about responses for an owner's devices: the records of `llm.activity` (pure).

A notice has no content. Several workers may write the notice of one response; readers recognise
the copies by the response id.
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
        notice = _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return notice if notice.v == records.VERSION and key == notice.rid.encode() else None


def start_notice(request: records.Request) -> Started | None:
    """The notice that a response has begun; None for a response that is not stored."""
    if not history.will_have_history(request):
        return None
    return Started(
        request.rid,
        request.owner,
        request.model,
        int(request.echo["created_at"]),
        request.conversation,
        request.previous,
    )


def end_notice(request: records.Request, end: fold.Ended) -> Ended | None:
    """The notice that a response has ended; None for a response that is not stored."""
    if not history.has_history(request, end):
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
