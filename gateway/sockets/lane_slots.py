"""The lanes of one connection: their queues, and which of them may run (pure).

Within a lane responses never overlap and keep their order. Lanes are independent, within the slots
of the connection. Waiting lanes get a slot in the order in which they began to wait.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from gateway.responses.memory import ResponseMemory
from tailrace.delivery import kept_bytes
from tailrace.protocol import errors

MAX_IN_FLIGHT: Final = 16
MAX_LANES: Final = errors.MAX_STREAM_IDS
MAX_QUEUED: Final = 256
MAX_QUEUED_BYTES: Final = 4 << 20
MAX_MEMORY_BYTES: Final = 4 << 20
RETRY_QUEUE_S: Final = 1.0

Lane = str | None
"""Name of a lane; None is the default one, whose events carry no `stream_id`."""


@dataclass(slots=True)
class LaneState:
    """One lane.

    Attributes:
        queue: Waiting creates, oldest first, as the client sent them.
        starting: Size of the create that is being submitted; 0 before and afterwards.
        busy: True from the start of a create until it is rejected or its response has ended.
        rid: The running response; None while idle or starting.
        cancel: A cancel was requested; while the create is starting it waits for the
            acknowledgement.
        memory: The last response that can be continued; None before, and after a failed
            continuation.
    """

    queue: collections.deque[bytes] = field(default_factory=collections.deque)
    starting: int = 0
    busy: bool = False
    rid: str | None = None
    cancel: bool = False
    memory: ResponseMemory | None = None


class LaneSlots:
    """All lanes of one connection, their queues and the slots.

    Attributes:
        lanes: By name, in order of first use. It never shrinks: the limit is on distinct names.
        in_flight: Number of busy lanes.
        _waiting: Lanes with a create and without a slot, in the order of their turn.
        _queued, _queued_bytes: Number of creates in all queues; their size, with that of pending
            submissions.
        _memories: Lanes with a memory, oldest first.
        _memory_bytes: Size of all memories.
        _account: Counts these bytes for the principal.
    """

    def __init__(self, max_in_flight: int, max_lanes: int, account: kept_bytes.Account) -> None:
        self._account = account
        self._memories: dict[Lane, None] = {}
        self._memory_bytes = 0
        self._max_in_flight = max_in_flight
        self._max_lanes = max_lanes
        self.lanes: dict[Lane, LaneState] = {}
        self.in_flight = 0
        self._waiting: collections.deque[Lane] = collections.deque()
        self._queued = 0
        self._queued_bytes = 0

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return self.in_flight == 0 and self._queued == 0

    def enqueue(self, lane: Lane, data: bytes) -> None:
        """Append a create to the queue of its lane.

        Raises:
            errors.ApiError: Too many distinct lanes, or too many bytes wait on this connection or
                for this principal.
        """
        named_lanes = len(self.lanes) - (None in self.lanes)
        if lane is not None and lane not in self.lanes and named_lanes >= self._max_lanes:
            raise errors.websocket_stream_limit_reached()
        if self._queued >= MAX_QUEUED or self._queued_bytes + len(data) > MAX_QUEUED_BYTES:
            raise errors.too_much_memory(RETRY_QUEUE_S)
        self._account.reserve(len(data))
        state = self.lanes.setdefault(lane, LaneState())
        state.queue.append(data)
        self._queued += 1
        self._queued_bytes += len(data)
        if not state.busy and len(state.queue) == 1:
            self._waiting.append(lane)

    def begin(self) -> Iterator[tuple[Lane, bytes]]:
        """Give free slots to waiting lanes; yields each lane with the create that starts."""
        while self._waiting and self.in_flight < self._max_in_flight:
            lane = self._waiting.popleft()
            state = self.lanes[lane]
            state.busy = True
            self.in_flight += 1
            data = state.queue.popleft()
            self._queued -= 1
            state.starting = len(data)
            yield lane, data

    def on_submitted(self, lane: Lane) -> None:
        """The create of this lane was accepted or refused, so its text is no longer counted;
        idempotent."""
        state = self.lanes[lane]
        self._refund(state.starting)
        state.starting = 0

    def remember(self, lane: Lane, memory: ResponseMemory) -> None:
        """Store the memory of the lane's last response. Above the bound the oldest memories of the
        connection are dropped. A memory that does not fit at all is not stored."""
        self.forget(lane)
        size = len(memory.state)
        while self._memories and self._memory_bytes + size > MAX_MEMORY_BYTES:
            self.forget(next(iter(self._memories)))
        if size > MAX_MEMORY_BYTES or not self._account.fits(size):
            return
        self._account.reserve(size)
        self._memory_bytes += size
        self._memories[lane] = None
        self.lanes[lane].memory = memory

    def forget(self, lane: Lane) -> None:
        """Drop the lane's memory; idempotent."""
        state = self.lanes[lane]
        if state.memory is not None:
            self._account.release(len(state.memory.state))
            self._memory_bytes -= len(state.memory.state)
            del self._memories[lane]
            state.memory = None

    def occupy(self, lane: Lane, rid: str) -> None:
        """Take a slot for a response that is already running."""
        state = self.lanes.setdefault(lane, LaneState())
        state.busy, state.rid = True, rid
        self.in_flight += 1

    def release(self, lane: Lane) -> None:
        """Free the slot of a lane. Its next create waits after lanes that have waited longer."""
        state = self.lanes[lane]
        self.on_submitted(lane)
        state.busy, state.rid, state.cancel = False, None, False
        self.in_flight -= 1
        if state.queue:
            self._waiting.append(lane)

    def empty(self) -> Iterator[Lane]:
        """Drop all waiting creates; yields the lane of each."""
        self._waiting.clear()
        for lane, state in self.lanes.items():
            while state.queue:
                self._refund(len(state.queue.popleft()))
                self._queued -= 1
                yield lane

    def _refund(self, size: int) -> None:
        self._queued_bytes -= size
        self._account.release(size)
