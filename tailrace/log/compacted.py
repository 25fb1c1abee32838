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


class Compacted(NamedTuple):
    """What a topic holds: the last good record of each key, and how many were forged."""

    by_key: dict[bytes, log_words.Record]
    forged_count: int


async def append(
    bootstrap: str, topic: str, entries: Sequence[tuple[bytes, bytes]], partition: int = 0
) -> None:
    """Append (key, value) pairs to one partition. Raises LogUnavailable."""
    producer = aiokafka.AIOKafkaProducer(**address.options(bootstrap), acks="all")
    try:
        async with asyncio.timeout(clients.APPEND_DEADLINE_S):
            await producer.start()
            for key, value in entries:
                headers = record_keys.sign_headers(topic, partition, key, value, ())
                await producer.send_and_wait(
                    topic, value=value, key=key, partition=partition, headers=headers
                )
    except (aiokafka.errors.KafkaError, OSError, TimeoutError) as error:
        raise log_words.LogUnavailable(
            f"{topic} could not be written: {type(error).__name__}"
        ) from error
    finally:
        await client_api.default().discard_producer(producer)


async def latest(bootstrap: str, topic: str) -> Compacted:
    """Read partition 0. Raises LogUnavailable."""
    queries, replays = offsets.Offsets(bootstrap), readers.Replays(bootstrap, size=1)
    by_key: dict[bytes, log_words.Record] = {}
    forged_count = 0
    try:
        start = (await queries.beginnings(topic, [0]))[0]
        end = (await queries.ends(topic, [0]))[0]
        async for batch in replays.read(topic, 0, start, end):
            for r in batch:
                forged_count += bool(r.forgery)
                if r.key is not None and _READ[topic](r.key, r.value) is not None:
                    by_key[r.key] = r
        return Compacted(by_key, forged_count)
    finally:
        await queries.stop()
        await replays.stop()


async def renew_signatures(bootstrap: str) -> int:
    """Append the records again that have no tag of the newest key. Returns their number.

    A revocation that is lifted at the same moment may have to be lifted again: this appends the
    record that it has read.

    Raises:
        LogUnavailable
    """
    count = 0
    for topic in _READ:
        unsigned = [
            (key, record.value)
            for key, record in (await latest(bootstrap, topic)).by_key.items()
            if record.value is not None and not record_keys.has_newest_tag(record.headers)
        ]
        if unsigned:
            await append(bootstrap, topic, unsigned)
        count += len(unsigned)
    return count
