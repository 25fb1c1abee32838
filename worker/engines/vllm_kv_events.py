"""vLLM's events of its KV cache, read from its publisher and folded into `CachedBlocks`.

The events contain prompts as plain text, so they use a socket in a folder of this process's user.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from tailrace import telemetry
from worker.prefixes.cached_blocks import CachedBlocks, Cleared, Event, Removed, Stored

# Engine arguments with which events are published elsewhere, or at several places.
APART: Final = frozenset({"kv_events_config", "data_parallel_size"})
READ_S: Final = 0.1
MOST_AT_ONCE: Final = 32  # batches that are folded before the event loop gets a turn
# Batches that ZeroMQ holds for a slow reader. A gap in the numbers shows a lost batch.
HIGH_WATER: Final = 100_000
_GPU: Final = "GPU"


class KvEvents:
    """Reads the events of one engine.

    Attributes:
        _next: number of the next batch; -1 before the first.
        _socket, _blocks, _decoder: None before `begin`.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tailrace-kv-"))
        self._next = -1
        self._socket: Any = None
        self._blocks: CachedBlocks | None = None
        self._decoder: Any = None

    def arguments(self) -> dict[str, Any]:
        """The engine arguments that make vLLM send events of its prefix cache."""
        from vllm.config.kv_events import KVEventsConfig

        config = KVEventsConfig(
            enable_kv_cache_events=True, publisher="zmq", endpoint=self._endpoint, buffer_steps=1
        )
        return {"kv_events_config": config}

    @property
    def _endpoint(self) -> str:
        return f"ipc://{self._folder}/events"

    def begin(self, block_size: int) -> CachedBlocks:
        """Connect. Returns the blocks that `run` updates."""
        import zmq
        from vllm.distributed.kv_events import KVEventBatch

        self._decoder = msgspec.msgpack.Decoder(KVEventBatch)
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(self._endpoint)
        self._blocks = CachedBlocks(block_size)
        return self._blocks

    async def run(self) -> None:
        """Read until cancelled. It polls ten times a second, because a wake-up for each engine step
        would cost more than reading."""
        while True:
            more = self.read() == MOST_AT_ONCE
            await asyncio.sleep(0 if more else READ_S)

    def read(self) -> int:
        """Fold the batches received. Returns their number, at most MOST_AT_ONCE."""
        import zmq

        assert self._blocks is not None
        for count in range(MOST_AT_ONCE):
            try:
                _, number, payload = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return count
            self._fold(self._blocks, int.from_bytes(number, "big"), payload)
        return MOST_AT_ONCE

    def close(self) -> None:
        """Close the socket and remove its folder."""
        if self._socket is not None:
            self._socket.close()
        with contextlib.suppress(OSError):
            shutil.rmtree(self._folder)

    def _fold(self, blocks: CachedBlocks, number: int, payload: bytes) -> None:
        if number != self._next and self._next >= 0:
            blocks.apply(Cleared())  # lost batches may have removed blocks
        self._next = number + 1
        try:
            batch = self._decoder.decode(payload)
        except msgspec.MsgspecError as error:
            telemetry.log(telemetry.Action.TASK_FAILED, part="kv-events", exc_info=error)
            blocks.apply(Cleared())
            return
        for event in batch.events:
            for each in events_of(event):
                blocks.apply(each)


def available(engine_args: Mapping[str, Any]) -> bool:
    """Whether the engine publishes events here with these arguments of the pool."""
    return bool(engine_args.get("enable_prefix_caching", True)) and not APART.intersection(
        engine_args
    )


def events_of(event: Any) -> Iterator[Event]:
    """The changes of blocks in the engine's own memory in an event of vLLM. Of a model with several
    groups of layers the first one counts."""
    if type(event).__name__ == "AllBlocksCleared":
        yield Cleared()
    elif event.medium not in (None, _GPU) or event.group_idx not in (None, 0):
        return
    elif type(event).__name__ == "BlockRemoved":
        yield Removed(event.block_hashes)
    else:
        extra = event.extra_keys or [None] * len(event.block_hashes)
        count = _without_images(extra)
        if count:
            yield Stored(
                event.block_hashes[:count],
                event.parent_block_hash,
                event.token_ids[: count * event.block_size],
                tuple(extra[0] or ()),
            )


def _without_images(extra: Iterable[Sequence[Any] | None]) -> int:
    """How many blocks precede the first with an image. Blocks after it are unknown here: its tokens
    do not identify the image."""
    count = 0
    for keys in extra:
        if any(not isinstance(key, str) for key in keys or ()):
            break
        count += 1
    return count
