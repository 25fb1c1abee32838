"""A deployment with an archive, whose log a test cuts and whose Redis it empties."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path

import aiokafka
import aiokafka.admin
import httpx
import redis.asyncio

from tailrace import log
from tailrace.protocol import topics
from tests.support import gateway_process as gp
from tests.support import local, waiting


@dataclasses.dataclass
class Parts:
    """The deployment. `url`: of the archive."""

    folder: Path
    broker: local.LocalKafka
    store: local.LocalRedis
    url: str
    keys: gp.Keys
    pool: str

    @property
    def kafka(self) -> str:
        return self.broker.bootstrap

    @property
    def redis(self) -> str:
        return self.store.url

    @contextlib.contextmanager
    def gateway(self, name: str, **more: str) -> Iterator[gp.Gateway]:
        more = {"TAILRACE_ARCHIVE": self.url, **more}
        with gp.gateway(
            self.folder, self.kafka, self.redis, self.pool, self.keys, name, **more
        ) as running:
            yield running

    @contextlib.contextmanager
    def push(self, name: str) -> Iterator[gp.Listening]:
        with gp.push(
            *(self.folder, self.kafka, self.redis, self.pool, self.keys, name),
            TAILRACE_ARCHIVE=self.url,
        ) as running:
            yield running

    @contextlib.contextmanager
    def worker(self, name: str = "worker-1", **more: str) -> Iterator[gp.Process]:
        with gp.worker(self.folder, self.kafka, self.redis, self.pool, name, **more) as running:
            yield running

    @contextlib.contextmanager
    def archive(self) -> Iterator[gp.Process]:
        with gp.archive(self.folder, self.kafka, self.url) as running:
            yield running

    def with_another_archive(self, name: str) -> Parts:
        """The same deployment with another archive, which is not there yet."""
        return dataclasses.replace(self, url=f"sqlite:///{self.folder / f'{name}.sqlite3'}")

    def with_another_pool(self, pool: str) -> Parts:
        """The same deployment with a pool that has no workers yet."""
        self.broker.apply_topics([self.pool, pool])
        return dataclasses.replace(self, pool=pool)

    def drop(self) -> None:
        """Remove the archive's file; nothing has it open."""
        for file in self.folder.glob("archive.sqlite3*"):
            file.unlink()

    async def retention(self, *more: str) -> None:
        """Retention, at once, of answers and requests and of these topics; and Redis is empty."""
        await cut(self.kafka, [*answers(self.pool), *more])
        async with redis.asyncio.from_url(self.redis) as client:
            await client.flushall()


@contextlib.contextmanager
def parts(folder: Path, keys: gp.Keys, pool: str, url: str = "") -> Iterator[Parts]:
    """A broker and a Redis of its own; nothing else runs yet. `url`: of the archive; empty: a
    SQLite file in the folder."""
    with local.LocalKafka(local.QUICK_RETURN) as kafka, local.LocalRedis() as store:
        kafka.apply_topics([pool])
        url = url or f"sqlite:///{folder / 'archive.sqlite3'}"
        yield Parts(folder, kafka, store, url, keys, pool)


def answers(pool: str) -> list[str]:
    """The topics that keep answers, and what was asked, for some days."""
    return [topics.TOKENS, *(topics.requests(pool, priority) for priority in topics.CLASSES)]


async def cut(kafka: str, names: Iterable[str]) -> None:
    """Have these topics begin where they end."""
    offsets = log.Offsets(kafka)
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        for name in names:
            ends = await offsets.ends(name, range(await offsets.partitions(name)))
            await admin.delete_records(
                {
                    aiokafka.TopicPartition(name, p): aiokafka.admin.RecordsToDelete(end)
                    for p, end in ends.items()
                }
            )
    finally:
        await offsets.stop()
        await admin.close()


async def archived(client: httpx.AsyncClient, *rids: str) -> None:
    """Wait until the archive has these responses."""

    async def there() -> bool:
        got = await client.get("/v1/responses?limit=100&order=desc")
        return got.status_code == 200 and {*rids} <= {each["id"] for each in got.json()["data"]}

    await waiting.eventually(there, "the responses in the archive", within_s=30)
