"""Writes records of compacted topics, and signs again what those of one partition hold.

Records of these outlive the keys that signed them, and the time before there were keys. So
`tailrace topics apply` signs them again with the newest key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import aiokafka
import aiokafka.errors

from tailrace.log import address, client_api, clients, offsets, readers, record_keys
from tailrace.protocol import log_words, records, topics

# Topic -> reads (key, value) of its records.
_READ: Final[Mapping[str, Callable[[bytes | None, bytes | None], object | None]]] = {
    topics.META: lambda _, value: records.decode_meta(value),
    topics.REVOCATIONS: records.revocation_of,
}


class Kept(NamedTuple):
    """What a topic holds: the last good record of each key, and how many were forged."""

    by_key: dict[bytes, log_words.Record]
    forged: int


async def append(
    bootstrap: str, topic: str, kept: Sequence[tuple[bytes, bytes]], partition: int = 0
) -> None:
    """Append (key, value) pairs to one partition. Raises LogUnavailable."""
    producer = aiokafka.AIOKafkaProducer(**address.options(bootstrap), acks="all")
    try:
        async with asyncio.timeout(clients.APPEND_DEADLINE_S):
            await producer.start()
            for key, value in kept:
                headers = record_keys.signed(topic, partition, key, value, ())
                await producer.send_and_wait(
                    topic, value=value, key=key, partition=partition, headers=headers
                )
    except (aiokafka.errors.KafkaError, OSError, TimeoutError) as error:
        raise log_words.LogUnavailable(
            f"{topic} could not be written: {type(error).__name__}"
        ) from error
    finally:
        await client_api.default().discard_producer(producer)


async def latest(bootstrap: str, topic: str) -> Kept:
    """Read partition 0. Raises LogUnavailable."""
    asking, replays = offsets.Offsets(bootstrap), readers.Replays(bootstrap, size=1)
    by_key: dict[bytes, log_words.Record] = {}
    forged = 0
    try:
        start = (await asking.beginnings(topic, [0]))[0]
        end = (await asking.ends(topic, [0]))[0]
        async for batch in replays.read(topic, 0, start, end):
            for r in batch:
                forged += bool(r.forged)
                if r.key is not None and _READ[topic](r.key, r.value) is not None:
                    by_key[r.key] = r
        return Kept(by_key, forged)
    finally:
        await asking.stop()
        await replays.stop()


async def sign_again(bootstrap: str) -> int:
    """Append once more what no signature of the newest key covers. Returns how many records.

    Who lifts a revocation in the same moment may have to do it again: the record that is signed
    again is the one that was read.

    Raises:
        LogUnavailable
    """
    signed = 0
    for topic in _READ:
        wanting = [
            (key, record.value)
            for key, record in (await latest(bootstrap, topic)).by_key.items()
            if record.value is not None and not record_keys.signed_by_newest(record.headers)
        ]
        if wanting:
            await append(bootstrap, topic, wanting)
        signed += len(wanting)
    return signed
