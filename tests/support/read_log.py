"""Reads a deployment's token log directly, as an operator would with a console, to see what really
happened."""

from __future__ import annotations

import asyncio
from typing import Any

from tailrace import log
from tailrace.protocol import ids, records, topics


def kafka_of(stack: Any) -> str:
    """Bootstrap address of a running stack."""
    return str(next(row["address"] for row in stack.processes("kafka")))


def records_of(bootstrap: str, rid: str) -> list[records.TokenRecord]:
    """All records of a response, in log order, ignored ones included."""

    async def read() -> list[records.TokenRecord]:
        address = ids.parse(rid)
        offsets, replays = log.Offsets(bootstrap), log.Replays(bootstrap, size=1)
        try:
            end = (await offsets.ends(topics.TOKENS, [address.partition]))[address.partition]
            found: list[records.TokenRecord] = []
            async for batch in replays.read(topics.TOKENS, address.partition, address.offset, end):
                for r in batch:
                    decoded = records.decode_token(r.value) if r.key == rid.encode() else None
                    if decoded is not None:
                        found.append(decoded)
            return found
        finally:
            await offsets.stop()
            await replays.stop()

    return asyncio.run(read())


def claims(stack: Any, rid: str) -> list[records.Claim]:
    """The response's CLAIM records in log order."""
    return [r for r in records_of(kafka_of(stack), rid) if isinstance(r, records.Claim)]
