"""How fast the archive's process builds an archive from a real topic.

With TAILRACE_TEST_LONG=1 it has 20,000 responses; `-s` shows its figures. That
it is built whole is proven by `tests/contract/test_archive.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import psutil
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from tailrace import log
from tailrace.archive import database, tables
from tailrace.protocol import history, ids, topics
from tests.support import gateway_process as gp
from tests.support import histories, local, postgres
from tests.support.long_runs import LONG

pytestmark = pytest.mark.nightly

RESPONSES = 20_000 if LONG else 400
TEXT = " ".join(f"word{n}" for n in range(60))
BUILT_S = 600.0 if LONG else 100.0


@pytest.fixture(scope="module")
def kafka_with_history() -> Iterator[tuple[str, int]]:
    """A broker whose `llm.history` has so many responses, and how many bytes they are."""
    with local.LocalKafka() as broker:
        broker.apply_topics()
        yield broker.bootstrap, asyncio.run(_fill(broker.bootstrap))


async def _fill(bootstrap: str) -> int:
    tag = (await log.layout(bootstrap)).tag
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=5, acks=1)
    await producer.start()
    size, sent = 0, []
    template = histories.history_of(1, TEXT)
    plain = history.encode(template)
    try:
        for number in range(RESPONSES):
            address = ids.Address(tag, number % local.PARTITIONS, number)
            rid = ids.mint(address, number.to_bytes(ids.RANDOM_BYTES, "big"))
            whole = history.decode(plain.replace(template.rid.encode(), rid.encode()))
            assert whole is not None
            partition = history.partition(rid, histories.PARTITIONS)
            for key, value in history.parts(whole):
                size += len(value)
                sent.append(
                    await producer.send(topics.HISTORY, value, key.encode(), partition=partition)
                )
        await asyncio.gather(*sent)
    finally:
        await producer.stop()
    return size


@pytest.fixture(params=["sqlite", "postgresql"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'archive.sqlite3'}"
    return await postgres.new_database(request.getfixturevalue("postgres_url"))


@pytest.mark.timeout(BUILT_S + 200)
async def test_all_that_the_topic_holds_is_built_again(
    kafka_with_history: tuple[str, int], url: str, tmp_path: Path
) -> None:
    bootstrap, size = kafka_with_history
    began: tuple[float, int] | None = None
    found, engine = 0, database.engine(url)
    give_up = time.monotonic() + BUILT_S
    with gp.archive(tmp_path, bootstrap, url) as process:
        while found < RESPONSES:
            assert time.monotonic() < give_up, f"{found} of {RESPONSES}\n{process.tail()}"
            await asyncio.sleep(0.02)
            with contextlib.suppress(*database.ERRORS):
                if database.is_there(engine):
                    found = await _count(engine)
            if found and began is None:
                began = time.monotonic(), found
        assert began is not None
        seconds = time.monotonic() - began[0]
        cpu = psutil.Process(process.child.pid).cpu_times()
    await engine.dispose()
    assert found == RESPONSES
    each, built = size / RESPONSES, RESPONSES - began[1]
    print(
        f"\n{url.partition(':')[0]}: {built} responses in {seconds:.2f} s: "
        f"{built / max(seconds, 1e-3):.0f}/s, {built * each / 1e6 / max(seconds, 1e-3):.1f} MB/s "
        f"({each:.0f} bytes each); {1e3 * (cpu.user + cpu.system) / RESPONSES:.2f} ms of CPU each"
    )


async def _count(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        question = sa.select(sa.func.count()).select_from(tables.RESPONSES)
        return int((await connection.execute(question)).scalar_one())
