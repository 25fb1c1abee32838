"""One WebSocket connection's state machine: which create runs when, and what the connection
remembers (pure; docs/protocol.md, section 3).

    a lane       IDLE      --create, a slot is free-->   STARTING    Begin
                 IDLE      --create, no slot-->          WAITING
                 WAITING   --a slot gets free-->         STARTING    Begin
                 STARTING  --accepted-->                 RUNNING     Cancel, if one was requested
                 STARTING  --rejected-->                 IDLE or the next create of the lane
                 RUNNING   --ended-->                    IDLE or the next create of the lane
    the socket   OPEN      --leave (drain, age)-->       LEAVING     queued creates are refused,
                                                                    running ones go on
                 LEAVING   --nothing runs-->             Close

Within a lane responses never overlap and keep their order; lanes are independent, up to the slots
of the connection. What a create means is looked at when its turn comes, so that its error cannot be
taken for one of the response that runs before it on the same lane."""

from __future__ import annotations

import collections
import enum
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tailrace.protocol import close_codes, errors

MAX_IN_FLIGHT: Final = 16
MAX_LANES: Final = errors.MAX_STREAM_IDS
MAX_QUEUED: Final = 256
MAX_QUEUED_BYTES: Final = 4 << 20
RETRY_QUEUE_S: Final = 1.0

_LANE: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}\Z")

Lane = str | None
"""Name of a lane; None is the default one, whose events carry no `stream_id`."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Submit this create now; answer with `accepted` or `rejected`."""

    lane: Lane
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """Send this event."""

    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel this response. `ours`: it runs on this connection, so its terminal event arrives
    anyway."""

    rid: str
    own: bool
    lane: Lane = None


@dataclass(frozen=True, slots=True)
class Close:
    """Close the socket."""

    code: close_codes.CloseCode


Action = Begin | Reply | Cancel | Close


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a lane keeps of its last response: enough to continue it, also with `store: false`.
    `messages` include its answer, not its instructions."""

    rid: str
    messages: list[dict[str, Any]]


class Leaving(enum.Enum):
    """Why a connection takes no more creates."""

    DRAIN = "drain"
    AGE = "age"


@dataclass(slots=True)
class _Lane:
    """
    Attributes:
        queue: creates that wait, oldest first, with their size.
        busy: from Begin until rejected or ended.
        rid: the response that runs; None while idle or starting.
        cancel: a cancel was asked for; while the create is starting it waits for the
            acknowledgement.
        memory: the last response that ended well; None before, and after a failed continuation.
    """

    queue: collections.deque[tuple[dict[str, Any], int]] = field(default_factory=collections.deque)
    busy: bool = False
    rid: str | None = None
    cancel: bool = False
    memory: Remembered | None = None


class LaneScheduler:
    """
    Attributes:
        _lanes: by name, in order of first use; grows up to the limit, never shrinks (the limit is
            on distinct names).
        _waiting: lanes that have a create and no slot, in the order of their turn.
        _in_flight: busy lanes.
        _queued, _queued_bytes: creates in all lanes' queues.
        _recent: ids that ended on this connection, newest last, so that a cancel that lost its race
            is not called an error.
        leaving: None while creates are taken.
    """

    def __init__(self, max_in_flight: int = MAX_IN_FLIGHT, max_lanes: int = MAX_LANES) -> None:
        self._max_in_flight = max_in_flight
        self._max_lanes = max_lanes
        self._lanes: dict[Lane, _Lane] = {}
        self._waiting: collections.deque[Lane] = collections.deque()
        self._in_flight = 0
        self._queued = 0
        self._queued_bytes = 0
        self._recent: collections.deque[str] = collections.deque(maxlen=64)
        self.leaving: Leaving | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return self._in_flight == 0 and self._queued == 0

    @property
    def in_flight(self) -> int:
        return self._in_flight

    # ---- what the client says

    def received(self, event: dict[str, Any], size: int = 0) -> list[Action]:
        """One client event; `size` in bytes bounds what may queue up."""
        kind = event.get("type")
        handler = _HANDLERS.get(kind) if isinstance(kind, str) else None
        if handler is None:
            return [Reply(errors.ws_event(errors.unknown_event(kind)))]
        return handler(self, event, size)

    def _create(self, event: dict[str, Any], size: int) -> list[Action]:
        try:
            lane = lane_of(event)
            self._check_room(lane, size)
        except errors.ApiError as error:
            # A lane that is no lane cannot be named in the answer.
            shown = None if error.code == "invalid_stream_id" else lane_of(event)
            return [Reply(errors.ws_event(error, shown))]
        state = self._lanes.setdefault(lane, _Lane())
        state.queue.append((event, size))
        self._queued += 1
        self._queued_bytes += size
        if not state.busy and len(state.queue) == 1:
            self._waiting.append(lane)
        return self._fill()

    def _check_room(self, lane: Lane, size: int) -> None:
        if self.leaving is not None:
            raise _refusal(self.leaving)
        named = len(self._lanes) - (None in self._lanes)
        if lane is not None and lane not in self._lanes and named >= self._max_lanes:
            raise errors.websocket_stream_limit_reached()
        if self._queued >= MAX_QUEUED or self._queued_bytes + size > MAX_QUEUED_BYTES:
            raise errors.overloaded(RETRY_QUEUE_S)

    def _cancel(self, event: dict[str, Any], _size: int) -> list[Action]:
        """By id, by lane, or bare: then the default lane's, or the only one there is. What has
        ended meanwhile needs no cancel and no error."""
        rid = event.get("response_id")
        if rid is not None and not isinstance(rid, str):
            return [Reply(errors.ws_event(errors.invalid_type("response_id", "a string")))]
        try:
            lane = lane_of(event)
        except errors.ApiError as error:
            return [Reply(errors.ws_event(error))]
        if rid is not None:
            return self._cancel_by_id(rid, lane)
        busy = [name for name, state in self._lanes.items() if state.busy]
        if lane is None and lane not in busy:
            if len(busy) > 1:
                return [Reply(errors.ws_event(errors.missing_required_parameter("response_id")))]
            lane = busy[0] if busy else None
        return self._cancel_lane(lane) if lane in busy else []

    def _cancel_by_id(self, rid: str, lane: Lane) -> list[Action]:
        for name, state in self._lanes.items():
            if state.rid == rid:
                return self._cancel_lane(name)
        return [] if rid in self._recent else [Cancel(rid, own=False, lane=lane)]

    def _cancel_lane(self, lane: Lane) -> list[Action]:
        state = self._lanes[lane]
        asked, state.cancel = state.cancel, True
        return [] if asked or state.rid is None else [Cancel(state.rid, own=True, lane=lane)]

    def cancel_failed(self, lane: Lane) -> None:
        """It may be asked for again."""
        if (state := self._lanes.get(lane)) is not None:
            state.cancel = False

    def _steer(self, event: dict[str, Any], _size: int) -> list[Action]:
        error = {
            "type": errors.INVALID_REQUEST,
            "code": "steering_not_supported",
            "message": "Steering is not supported.",
        }
        steer = {name: event.get(name) for name in ("previous_response_id", "input")}
        return [Reply({"type": "response.steer.failed", "error": error, "steer": steer})]

    # ---- what became of a create

    def accepted(self, lane: Lane, rid: str) -> list[Action]:
        """The create of this lane is in the log as `rid`."""
        state = self._lanes[lane]
        state.rid = rid
        return [Cancel(rid, own=True, lane=lane)] if state.cancel else []

    def rejected(self, lane: Lane, error: errors.ApiError, previous: object = None) -> list[Action]:
        """The create of this lane was refused; what it wanted to continue is forgotten, on this
        lane only."""
        self._forget(lane, previous)
        return [Reply(errors.ws_event(error, lane)), *self._release(lane)]

    def ended(
        self, lane: Lane, remembered: Remembered | None, previous: object = None
    ) -> list[Action]:
        """The response of this lane came to its end; `remembered` is None when it failed and cannot
        be continued."""
        state = self._lanes[lane]
        if state.rid is not None:
            self._recent.append(state.rid)
        if remembered is not None:
            state.memory = remembered
        else:
            self._forget(lane, previous)
        return self._release(lane)

    def adopt(self, rid: str, lane: Lane) -> None:
        """A response of an earlier connection goes on here; its lane is taken until it ends."""
        state = self._lanes.setdefault(lane, _Lane())
        state.busy, state.rid = True, rid
        self._in_flight += 1

    def recall(self, lane: Lane, rid: str) -> Remembered | None:
        """The state of an earlier response of this connection: of this lane, or of another one,
        which makes it a fork."""
        for state in (self._lanes[lane], *self._lanes.values()):
            if state.memory is not None and state.memory.rid == rid:
                return state.memory
        return None

    # ---- leaving

    def leave(self, why: Leaving) -> list[Action]:
        """Take no more creates; what waits is refused, what runs goes on. Later reasons do not
        replace the first."""
        if self.leaving is not None:
            return []
        self.leaving = why
        self._waiting.clear()
        return [*self._refuse_queued(_refusal(why)), *self._close_if_idle()]

    def _refuse_queued(self, error: errors.ApiError) -> Iterator[Action]:
        for lane, state in self._lanes.items():
            for _ in range(len(state.queue)):
                self._pop(state)
                yield Reply(errors.ws_event(error, lane))

    def _close_if_idle(self) -> list[Action]:
        if self.leaving is None or not self.idle:
            return []
        told: list[Action] = (
            [Reply(errors.ws_event(_refusal(Leaving.AGE)))] if self.leaving is Leaving.AGE else []
        )
        return [*told, Close(close_codes.CloseCode.RESTART)]

    # ---- slots

    def _forget(self, lane: Lane, previous: object) -> None:
        memory = self._lanes[lane].memory
        if memory is not None and memory.rid == previous:
            self._lanes[lane].memory = None

    def _release(self, lane: Lane) -> list[Action]:
        state = self._lanes[lane]
        state.busy, state.rid, state.cancel = False, None, False
        self._in_flight -= 1
        if state.queue:
            self._waiting.append(lane)  # behind the lanes that waited longer
        return [*self._fill(), *self._close_if_idle()]

    def _fill(self) -> list[Action]:
        begun: list[Action] = []
        while self._waiting and self._in_flight < self._max_in_flight:
            lane = self._waiting.popleft()
            state = self._lanes[lane]
            state.busy = True
            self._in_flight += 1
            begun.append(Begin(lane, self._pop(state)))
        return begun

    def _pop(self, state: _Lane) -> dict[str, Any]:
        body, size = state.queue.popleft()
        self._queued -= 1
        self._queued_bytes -= size
        return body


def lane_of(event: dict[str, Any]) -> Lane:
    """The event's lane.

    Raises:
        errors.ApiError: invalid_stream_id.
    """
    name = event.get("stream_id")
    if name is None:
        return None
    if not isinstance(name, str) or not _LANE.match(name):
        raise errors.invalid_stream_id()
    return name


def _refusal(why: Leaving) -> errors.ApiError:
    if why is Leaving.AGE:
        return errors.websocket_connection_limit_reached()
    return errors.unavailable("This instance is shutting down; connect again.")


_HANDLERS: Final[dict[str, Callable[[LaneScheduler, dict[str, Any], int], list[Action]]]] = {
    "response.create": LaneScheduler._create,
    "response.cancel": LaneScheduler._cancel,
    "response.steer": LaneScheduler._steer,
}
