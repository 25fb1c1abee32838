"""A TCP link that can fail: between a client and a server, in a thread of its own, so that a test
may block."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable

CHUNK = 65_536


class Link:
    """Forwards `port` to `target`.

    Attributes:
        port: where it listens.
        held_up, held_down: bytes to the server, or from it, wait until the link is healed: a
            partition, as TCP sees it.
        lost_down: bytes from the server vanish. The connection must be closed afterwards, which
            `cut` does.
        delay_s, jitter_s: every chunk is delayed by this much, plus or minus the jitter.
        rate: bytes per second in either direction; 0 for no bound.
        forwarded, lost: bytes.
    """

    def __init__(self, target: Callable[[], int]) -> None:
        self._target = target
        self._open: set[asyncio.StreamWriter] = set()
        self.held_up = self.held_down = self.lost_down = False
        self.delay_s = self.jitter_s = self.rate = 0.0
        self.forwarded = self.lost = self.connections = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        self._ready.wait(10)

    def partition(self, *, up: bool = True, down: bool = True) -> None:
        """Silence: nothing is refused, nothing arrives."""
        self.held_up, self.held_down = up, down

    def heal(self) -> None:
        """What waited goes on; connections that lost bytes are cut."""
        self.held_up = self.held_down = False
        self.delay_s = self.jitter_s = self.rate = 0.0
        if self.lost_down:
            self.lost_down = False
            self.cut()

    def cut(self) -> None:
        """Close every connection."""
        self._loop.call_soon_threadsafe(self._cut)

    def close(self) -> None:
        """Close every connection and end the thread.

        Raises:
            RuntimeError: it does not end, and would disturb the tests that follow.
        """
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(30)
        if self._thread.is_alive():
            raise RuntimeError("the thread of a link does not end")

    def _cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(server.sockets[0].getsockname()[1])
        self._ready.set()
        await self._over.wait()
        server.close()
        self.held_up = self.held_down = False
        # A connection whose peer is gone may still hold bytes: abort until none is open. Chunks
        # that are delayed for longer end with the loop.
        for _ in range(100):
            if not self._open:
                break
            self._cut()
            await asyncio.sleep(0.01)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target())
        except OSError:
            writer.close()
            return
        both = {writer, far_writer}
        self._open |= both
        pumps = [
            asyncio.ensure_future(self._pump(reader, far_writer, up=True)),
            asyncio.ensure_future(self._pump(far_reader, writer, up=False)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for side in both:
                side.close()
            for side in both:
                with contextlib.suppress(OSError):
                    await side.wait_closed()
            self._open -= both

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                while self.held_up if up else self.held_down:  # noqa: ASYNC110 - set from another thread
                    await asyncio.sleep(0.02)
                if self.delay_s or self.rate:
                    travel_s = len(data) / self.rate if self.rate else 0.0
                    await asyncio.sleep(
                        self.delay_s + random.uniform(-self.jitter_s, self.jitter_s) + travel_s
                    )
                if self.lost_down and not up:
                    self.lost += len(data)
                    continue
                self.forwarded += len(data)
                writer.write(data)
                await writer.drain()
