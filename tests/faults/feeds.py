"""Devices that follow the feeds of a drill's users, and what they missed or were told in another
order than the log has it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tailrace import log
from tailrace.cli import event_reader
from tailrace.protocol import activity, topics
from tests.faults import crowd, drill

PAUSE_S: Final = 0.3
TOLD_S: Final = 30.0


@dataclass
class Device:
    """One device, which comes back at any gateway or push service.

    Attributes:
        position: behind the last event.
        told: responses whose end it was told, by the first time.
        resumes: how often it came back with a position.
        resets: how often it was told that it lost something.
        rng: its own, so that the drill's draws do not depend on when it comes back.
    """

    drill: drill.Drill
    user: str
    position: str = ""
    told: dict[str, str] = field(default_factory=dict)
    resumes: int = 0
    resets: int = 0
    rng: random.Random = field(default_factory=random.Random)

    async def follow(self) -> None:
        """Until cancelled."""
        while True:
            with contextlib.suppress(httpx.HTTPError, OSError):
                await self._read()
            await asyncio.sleep(PAUSE_S)

    async def _read(self) -> None:
        on, rng = self.drill.stage, self.rng
        url = rng.choice([*on.of("gateway"), *on.of("push")]).url
        headers = self.drill.crowd._headers(self.user)
        if self.position:
            headers["last-event-id"] = self.position
        # Every connection ends some time, so that positions count.
        timeout = httpx.Timeout(20.0, connect=5.0)
        async with (
            asyncio.timeout(rng.uniform(2.0, 15.0)),
            httpx.AsyncClient(timeout=timeout) as client,
            client.stream("GET", f"{url}/v1/feed", headers=headers) as stream,
        ):
            if stream.status_code != 200:
                return
            self.resumes += bool(self.position)
            async for data in event_reader.adata_of(stream.aiter_bytes()):
                self._take(json.loads(data))

    def _take(self, event: dict[str, Any]) -> None:
        self.position = event["position"]
        self.resets += event["type"] == "feed.reset"
        if event["type"] == "response.ended":
            self.told.setdefault(event["response_id"], event["status"])


@contextlib.asynccontextmanager
async def following(d: drill.Drill) -> Any:
    """A device of each user, connected before anything is asked, until the end of the block."""
    devices = [Device(d, user, rng=random.Random(f"feed of {user}")) for user in crowd.USERS]
    tasks = [asyncio.create_task(_persistent(device)) for device in devices]
    try:
        async with asyncio.timeout(TOLD_S):
            while not all(device.position for device in devices):  # noqa: ASYNC110
                await asyncio.sleep(PAUSE_S)
        yield devices
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _persistent(device: Device) -> None:
    while True:
        with contextlib.suppress(TimeoutError):
            await device.follow()


async def problems(d: drill.Drill, devices: list[Device]) -> list[str]:
    """What is wrong with what the devices were told; waits until they were told everything."""
    found: list[str] = []
    for device in devices:
        wanted = await _ends(d, device)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TOLD_S):
                while wanted.keys() - device.told.keys():  # noqa: ASYNC110
                    await asyncio.sleep(PAUSE_S)
        if missing := wanted.keys() - device.told.keys():
            found.append(f"{device.user} was not told that {len(missing)} ended: {min(missing)}")
        if strange := device.told.keys() - wanted.keys():
            found.append(f"{device.user} was told of {len(strange)} ends that are not in the log")
        if any(status != wanted.get(rid, status) for rid, status in device.told.items()):
            found.append(f"{device.user} was told another status than the log has")
        order = [rid for rid in wanted if rid in device.told]
        if not (missing or strange) and order != list(device.told):
            found.append(f"{device.user} was told of ends in another order than the log has")
        if device.resets:
            found.append(f"{device.user} was told {device.resets} times that something was lost")
    return found


async def _ends(d: drill.Drill, device: Device) -> dict[str, str]:
    """Responses of the device's user that the log says have ended, behind where it began, in the
    order of the log."""
    kafka = d.stage.kafka.bootstrap
    offsets, replays = log.Offsets(kafka), log.Replays(kafka, size=1)
    found: dict[str, str] = {}
    try:
        for partition in range(await offsets.partitions(topics.ACTIVITY)):
            begin = (await offsets.beginnings(topics.ACTIVITY, [partition]))[partition]
            end = (await offsets.ends(topics.ACTIVITY, [partition]))[partition]
            async for batch in replays.read(topics.ACTIVITY, partition, begin, end):
                for record in batch:
                    notice = activity.decode(record.key, record.value)
                    if isinstance(notice, activity.Ended) and notice.owner.subject == device.user:
                        found.setdefault(notice.rid, notice.status)
    finally:
        await offsets.stop()
        await replays.stop()
    return found
