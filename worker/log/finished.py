"""Responses that have ended, as a few hundred bytes each (pure).

A worker needs them again only when a request is delivered again. Most are never needed, and there
are many: folds would need ten times the memory.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from tailrace.protocol import fold, records

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Any])


def pack(state: fold.Fold) -> bytes:
    """A fold that is DONE, without the client's data, the counts of ignored records, and ids and
    marks, which only an attempt needs."""
    ended, first = state.ended, state.first
    assert ended is not None
    usage = ended.usage
    return _encoder.encode(
        [
            state.owner,
            state.epoch,
            state.next,
            state.h,
            state.text_length,
            [part for claim in state.claims for part in claim],
            state.starts,
            sorted(state.yielded),
            sorted(state.hedged),
            state.last_offset,
            state.last_active,
            [
                *(ended.reason, ended.status, ended.text_tail, ended.error, ended.timestamp),
                *(ended.failure, ended.param),
            ],
            msgspec.structs.astuple(usage),
            first and [first.model_rev, first.tokenizer_digest, first.prompt_tokens],
            first and [first.own, first.worker, first.req_topic, first.req_offset],
            first and _principal(first.owner),
            [
                (_principal(by), end.reason, end.status, end.error, end.timestamp, end.failure)
                for by, end in state.cancelled_by.items()
            ],
            [state.served, *(state.model if state.served else ())],
            state.answer_of,
            state.former,
            state.pace,
        ]
    )


def unpack(rid: str, data: bytes) -> fold.Fold:
    """The fold that `pack` has encoded."""
    (
        owner,
        epoch,
        total,
        h,
        text_length,
        claims,
        starts,
        yielded,
        hedged,
        last_offset,
        last_active,
        (reason, status, text_tail, error, timestamp, failure, param),
        usage,
        model,
        place,
        principal,
        cancelled_by,
        (served, *of_served),
        answer_of,
        former,
        pace,
    ) = _decoder.decode(data)
    first = None
    if model is not None:
        own, worker, topic, offset = place
        first = records.Claim(
            rid, own, None, records.Owner(*principal), worker, topic, offset, *model
        )
    ended = fold.Ended(
        reason,
        status,
        text_tail,
        records.Usage(*usage),
        None if error is None else (error[0], error[1]),
        timestamp,
        failure=failure,
        param=param,
    )
    return fold.Fold(
        retain_ids=True,
        owner=owner,
        epoch=epoch,
        next=total,
        h=h,
        phase=fold.Phase.DONE,
        text_length=text_length,
        first=first,
        served=served,
        answer_of=answer_of,
        former=[fold.Former(*each) for each in former],
        pace=fold.Pace(*pace),
        model=tuple(of_served) if served else ("", "", ""),
        claims=list(zip(claims[::2], claims[1::2], strict=True)),
        starts=starts,
        yielded=set(yielded),
        hedged=set(hedged),
        ended=ended,
        cancelled_by={
            records.Owner(*by): dataclasses.replace(
                ended,
                reason=why,
                status=end_status,
                error=end_error and tuple(end_error),
                timestamp=at,
                failure=end_failure,
            )
            for by, why, end_status, end_error, at, end_failure in cancelled_by
        },
        last_offset=last_offset,
        last_active=last_active,
    )


def _principal(owner: records.Owner) -> list[str]:
    return [owner.issuer, owner.subject, owner.tenant]
