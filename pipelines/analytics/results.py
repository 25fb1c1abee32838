"""Reads the inputs and results of the jobs from Kafka.

Results are written in transactions, so everything here reads committed records only, up to the
first open transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import aiokafka
import aiokafka.admin
import aiokafka.errors
import msgspec

from pipelines.analytics import jobs, twins
from pipelines.clickhouse_client import FIRST_MS, LAST_MS
from tailrace.log import Position, Record, address, client_api, clients
from tailrace.log.record_keys import record

WAIT_MS: Final = 300
DEADLINE_S: Final = 60.0
PARTITIONS: Final = 3
_TOPIC_EXISTS: Final = 36
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class Change(NamedTuple):
    """One record of a topic of results. `values`: None where the key was deleted."""

    partition: int
    offset: int
    key: tuple[twins.Value, ...]
    values: tuple[twins.Value, ...] | None


async def create_topics(
    bootstrap: str, prefix: str, *, partitions: int = PARTITIONS, replication: int = 1
) -> None:
    """Create the missing topics of results: compacted, because the last record of a key is its
    value. Flink creates none.

    Raises:
        RuntimeError: the broker refused.
    """
    admin = aiokafka.admin.AIOKafkaAdminClient(**address.options(bootstrap))
    await admin.start()
    try:
        new = [
            aiokafka.admin.NewTopic(
                *(result.topic(prefix), partitions, replication),
                topic_configs={"cleanup.policy": "compact"},
            )
            for result in jobs.RESULTS
        ]
        answer = await admin.create_topics(new)
        # It returns errors instead of raising them.
        wrong = [each for each in answer.topic_errors if each[1] not in (0, _TOPIC_EXISTS)]
        if wrong:
            raise RuntimeError(f"topics of results: {wrong}")
    finally:
        await clients.close_admin(admin)


async def read(bootstrap: str, topic: str) -> list[twins.TopicRecord]:
    """Everything committed that a topic has now. Raises TimeoutError."""
    records = []
    async for _, batch in follow(bootstrap, [topic], {}, once=True):
        records += [twins.TopicRecord(r.partition, r.offset, r.timestamp, r.value) for r in batch]
    return records


async def changes(bootstrap: str, result: jobs.Result, prefix: str) -> list[Change]:
    """All committed changes of a result that were not compacted, by partition and offset. Raises
    TimeoutError."""
    unsorted = []
    async for _, batch in follow(bootstrap, [result.topic(prefix)], {}, once=True):
        unsorted += [change for r in batch if (change := parse_change(result, r)) is not None]
    return sorted(unsorted, key=lambda c: (c.partition, c.offset))


def rows(changes: Iterable[Change]) -> twins.Rows:
    """The state after the changes: the last one of each key."""
    out: twins.Rows = {}
    for change in changes:
        if change.values is None:
            out.pop(change.key, None)
        else:
            out[change.key] = change.values
    return out


def regressions(result: jobs.Result, changes: Sequence[Change]) -> list[str]:
    """Changes that withdrew a counted response: committed counts must not decrease. All changes of
    a key are in one partition. `request_minutes` consists of counts that are replaced."""
    counts = next(i for i, kind in enumerate(result.columns.values()) if kind == "count")
    latest: dict[tuple[twins.Value, ...], Any] = {}
    out = []
    for change in changes:
        now: Any = change.values[counts - result.keys] if change.values is not None else 0
        if now < latest.get(change.key, 0):
            out.append(f"{change.key} at {change.offset}: {latest[change.key]}, then {now}")
        latest[change.key] = now
    return out


def parse_change(result: jobs.Result, r: Record) -> Change | None:
    """The change in a record; None if it is invalid or a store cannot hold it."""
    try:
        key = _values(result, result.key, msgspec.json.decode(r.key or b""))
        if None in key:
            return None
        values = None
        if r.value is not None:
            values = _values(result, result.values, msgspec.json.decode(r.value))
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError):
        return None
    return Change(r.partition, r.offset, key, values)


def _values(
    result: jobs.Result, names: Iterable[str], members: Mapping[str, Any]
) -> tuple[twins.Value, ...]:
    return tuple(
        None if members[name] is None else _VALUES[result.columns[name]](members[name])
        for name in names
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise ValueError
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return _count(value) if isinstance(value, int) else value


def _ms(text: str) -> int:
    """An ISO 8601 time in ms since the epoch."""
    ms = (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1)
    if not FIRST_MS <= ms <= LAST_MS:
        raise ValueError
    return ms


_VALUES: Final[Mapping[str, Callable[[Any], twins.Value]]] = {
    "text": _text,
    "time": _ms,
    "count": _count,
    "number": _number,
}


async def follow(
    bootstrap: str,
    topics: Sequence[str],
    positions: Mapping[tuple[str, int], Position],
    *,
    once: bool = False,
) -> AsyncGenerator[tuple[tuple[str, int], list[Record]]]:
    """Batches of one partition each, from these positions on, or from the beginning. `once`: up to
    the end committed now. Raises TimeoutError: no answer within the deadline."""
    api = client_api.default()
    consumer = aiokafka.AIOKafkaConsumer(
        *topics,  # without a group it is assigned all of their partitions
        **address.options(bootstrap),
        enable_auto_commit=False,
        # What a position named may have been compacted away.
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    await consumer.start()
    try:
        tps = sorted(consumer.assignment())
        for tp in tps:
            place = positions.get((tp.topic, tp.partition))
            if place is None:
                await consumer.seek_to_beginning(tp)
            else:
                consumer.seek(tp, place.next)
        ends = await consumer.end_offsets(tps) if once else {}
        loop = asyncio.get_running_loop()
        last_batch_at = loop.time()
        while True:
            if once and all([await consumer.position(tp) >= ends[tp] for tp in tps]):
                return
            for tp, batch in (await consumer.getmany(timeout_ms=WAIT_MS)).items():
                last_batch_at = loop.time()
                records = [record(r) for r in batch if not once or r.offset < ends[tp]]
                if records:
                    yield (tp.topic, tp.partition), records
            if once and loop.time() - last_batch_at > DEADLINE_S:
                raise TimeoutError(f"{', '.join(topics)}: not read to the end")
    finally:
        await api.stop_consumer(consumer, clients.STOP_DEADLINE_S)
