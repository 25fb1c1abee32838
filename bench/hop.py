"""Token hop: from the worker's append to the frame at the client, stage by stage.

A TOK record holds the time when its worker sent it (`ts`), and the time when the broker appended it
(LogAppendTime, whole milliseconds, so a stage may be off by one). After the answers have ended, the
log is read. The n-th frame with text belongs to the n-th delta of the client; their texts must be
equal.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import uvloop

from bench import load, logged, measure, scripted, stacks
from tailrace.protocol import fold, records

NAME: Final = "hop"
OVER, UNDER = "watching at push", "asking at gateway"
PLOTS: Final = ("hop_p50_ms", "hop_p99_ms", "append_p50_ms", "deliver_p50_ms")
PACE_MS: Final = 20
SETTLED_S: Final = 0.3  # a watcher catches up for this time; frames sent in it do not count


class Frame(NamedTuple):
    """An accepted TOK record with text. Times are in ms since the epoch.

    Attributes:
        sent: when its worker sent it.
        appended: when the broker appended it.
    """

    sent: float
    appended: float
    text: str


class Delta(NamedTuple):
    """A delta at the client. `arrived` is in ms since the epoch."""

    arrived: float
    text: str


class WatcherLog:
    """What one client received, unparsed. It is parsed after the measurement.

    Attributes:
        messages: arrival (ms since the epoch) and payload of each message.
        done: set at the terminal event.
    """

    def __init__(self) -> None:
        self.messages: list[tuple[float, bytes]] = []
        self.done = asyncio.Event()

    def add(self, payload: bytes) -> None:
        self.messages.append((time.time() * 1000, payload))
        if any(mark in payload for mark in scripted.TERMINAL_MARKS):
            self.done.set()

    def deltas(self) -> list[Delta]:
        deltas = []
        for arrived, payload in self.messages:
            message = json.loads(payload)
            deltas += [
                Delta(arrived, e["delta"])
                for e in message.get("events", [message])
                if e["type"] == "response.output_text.delta"
            ]
        return deltas

    def rid(self) -> str:
        return next(
            str(json.loads(p)["response"]["id"])
            for _, p in self.messages
            if b"response.created" in p
        )


def run(plan: measure.Plan, shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    side, tokens = shared(), plan.pick(60, 150)
    for number in range(plan.rounds):
        for streams in plan.pick((1, 8), (1, 8, 32)):
            for name, run_side in ((UNDER, _asking), (OVER, _watching)):
                with side.meter() as meter:
                    watcher_logs, since = uvloop.run(run_side(side, streams, tokens))
                values = uvloop.run(_compare(side, watcher_logs, since))
                yield measure.Row(
                    NAME,
                    f"{streams} streams",
                    name,
                    number,
                    {**values, **meter.per(streams * tokens, "us_per_token")},
                )


async def _asking(
    side: stacks.Side, streams: int, tokens: int
) -> tuple[dict[str, WatcherLog], float]:
    """Create each response on its own socket at the gateway."""
    everyone = [WatcherLog() for _ in range(streams)]
    sockets = [
        await load.connect(side.url, "/v1/responses", side.headers, each.add) for each in everyone
    ]
    for number, socket in enumerate(sockets):
        socket.send({"type": "response.create", **scripted.body(side, number, tokens, PACE_MS)})
    async with asyncio.timeout(load.ANSWER_DEADLINE_S):
        for each in everyone:
            await each.done.wait()
    for socket in sockets:
        socket.close()
    return {each.rid(): each for each in everyone}, 0.0


async def _watching(
    side: stacks.Side, streams: int, tokens: int
) -> tuple[dict[str, WatcherLog], float]:
    """Watch each response on its own socket at push, without a reader at the gateway."""
    watcher_logs: dict[str, WatcherLog] = {}
    watchers = []
    for number in range(streams):
        rid = await scripted.start(side, number, tokens, PACE_MS)
        watcher_logs[rid] = WatcherLog()
        watcher = scripted.Watcher(watcher_logs[rid].add)
        await watcher.open(side.push_url, side.headers)
        watcher.watch(rid)
        watchers.append(watcher)
    since = (time.time() + SETTLED_S) * 1000
    await scripted.wait_for_watchers(watchers)
    for watcher in watchers:
        watcher.close()
    return watcher_logs, since


async def _compare(
    side: stacks.Side, watcher_logs: dict[str, WatcherLog], since: float
) -> dict[str, float]:
    frames = await read_frames(side.kafka, list(watcher_logs))
    pairs = [
        pair
        for rid, each in watcher_logs.items()
        for pair in paired(frames[rid], each.deltas())
        if pair[0].sent >= since
    ]
    if not pairs:
        raise load.RequestFailed("no frame was sent late enough to be a hop")
    return {
        **measure.spread("hop", ((delta.arrived - frame.sent) / 1000 for frame, delta in pairs)),
        **measure.spread("append", ((frame.appended - frame.sent) / 1000 for frame, _ in pairs)),
        **measure.spread(
            "deliver", ((delta.arrived - frame.appended) / 1000 for frame, delta in pairs)
        ),
        "frames": float(len(pairs)),
    }


def paired(frames: list[Frame], deltas: list[Delta]) -> list[tuple[Frame, Delta]]:
    """Pair the n-th frame with the n-th delta. The end may bring one more delta.

    Raises:
        load.Failed: their texts differ.
    """
    if not len(frames) <= len(deltas) <= len(frames) + 1 or any(
        f.text != d.text for f, d in zip(frames, deltas, strict=False)
    ):
        raise load.RequestFailed(
            f"{len(frames)} frames in the log, {len(deltas)} deltas at the client, or other text"
        )
    return list(zip(frames, deltas, strict=False))


async def read_frames(bootstrap: str, rids: list[str]) -> dict[str, list[Frame]]:
    """Accepted frames with text by response, read from each partition once."""
    folds = {rid: fold.Fold() for rid in rids}
    frames: dict[str, list[Frame]] = {rid: [] for rid in rids}
    async for record, r in logged.token_records(bootstrap, rids):
        outcome = folds[record.rid].apply(record, r.offset, r.timestamp)
        if isinstance(record, records.Tok) and isinstance(outcome, fold.Accepted) and record.text:
            frames[record.rid].append(Frame(record.ts, float(r.timestamp), record.text))
    return frames
