"""The state machine of one WebSocket connection: which create runs when, and the connection's
memory (pure; docs/protocol.md, section 3).

    a lane       IDLE      --create, a slot is free-->   STARTING    Begin
                 IDLE      --create, no slot-->          WAITING
                 WAITING   --a slot gets free-->         STARTING    Begin
                 STARTING  --accepted-->                 RUNNING     Cancel, if one was requested
                 STARTING  --rejected-->                 IDLE or the next create of the lane
                 RUNNING   --ended-->                    IDLE or the next create of the lane
    the socket   OPEN      --leave (drain, age)-->       LEAVING     queued creates are refused,
                                                                    running ones go on
                 LEAVING   --nothing runs-->             Close

A create is parsed when its turn comes. So its error cannot be mistaken for an error of the response
that runs before it on the same lane.
"""

from __future__ import annotations

import collections
import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gateway.parsing import json_body
from gateway.responses.memory import ResponseMemory
from gateway.sockets import lane_slots
from gateway.sockets.lane_slots import Lane as Lane
from tailrace.delivery import kept_bytes
from tailrace.protocol import close_codes, errors
from tailrace.web import auth_messages

_LANE: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}\Z")


@dataclass(frozen=True, slots=True)
class Begin:
    """Submit this create now; answer with `accepted` or `rejected`."""

    lane: Lane
    data: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """Send this event."""

    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel this response. `own`: it runs on this connection, so its terminal event arrives
    anyway."""

    rid: str
    own: bool
    lane: Lane = None


@dataclass(frozen=True, slots=True)
class Renew:
    """Check the new credential of the client, and answer."""

    credential: auth_messages.Presented


@dataclass(frozen=True, slots=True)
class Close:
    """Close the socket."""

    code: close_codes.CloseCode


Action = Begin | Reply | Cancel | Renew | Close


class Leaving(enum.Enum):
    """Why a connection accepts no more creates."""

    DRAIN = "drain"
    AGE = "age"


class LaneScheduler:
    """Turns client events, and the outcomes of creates, into actions.

    Attributes:
        _slots: The lanes, their queues and the slots.
        _recent: Ids that ended on this connection, newest last. A late cancel of one is not an
            error.
        leaving: None while creates are accepted.
    """

    def __init__(
        self,
        max_in_flight: int = lane_slots.MAX_IN_FLIGHT,
        max_lanes: int = lane_slots.MAX_LANES,
        account: kept_bytes.Account | None = None,
        *,
        own_protocol: bool = False,
    ) -> None:
        """
        Args:
            account: counts the bytes held for the client; without it they are not counted.
            own_protocol: the client speaks `tailrace.v1`, which has more events.
        """
        self._own_protocol = own_protocol
        self._slots = lane_slots.LaneSlots(
            max_in_flight, max_lanes, account or kept_bytes.KeptBytes(0).account("")
        )
        self._recent: collections.deque[str] = collections.deque(maxlen=64)
        self.leaving: Leaving | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return self._slots.idle

    @property
    def in_flight(self) -> int:
        """Number of lanes that start or run a response."""
        return self._slots.in_flight

    # ---- client events

    def receive(self, data: bytes) -> list[Action]:
        """Handle one client event, as the client sent it.

        Only the head is decoded here: a decoded body may take twenty times its bytes, and many may
        have to wait.

        Raises:
            errors.ApiError: it is not an event.
        """
        event = json_body.event_head(data)
        handler = _HANDLERS.get(event.type) if isinstance(event.type, str) else None
        if handler is None and self._own_protocol and event.type == auth_messages.TYPE:
            return [Renew(auth_messages.parse(json_body.decode(data)))]
        if handler is None:
            return [Reply(errors.ws_event(errors.unknown_event(event.type)))]
        return handler(self, event, data)

    def _create(self, event: json_body.EventHead, data: bytes) -> list[Action]:
        try:
            lane = lane_of(event.stream_id)
            if self.leaving is not None:
                raise _refusal(self.leaving)
            self._slots.enqueue(lane, data)
        except errors.ApiError as error:
            # An invalid lane cannot be named in the answer.
            reply_lane = None if error.code == "invalid_stream_id" else lane_of(event.stream_id)
            return [Reply(errors.ws_event(error, reply_lane))]
        return self._begin()

    def _cancel(self, event: json_body.EventHead, _data: bytes) -> list[Action]:
        """Cancel by response id or by lane. Without either: the default lane's response, or the
        only one. Cancelling a response that has ended is not an error."""
        rid = event.response_id
        if rid is not None and not isinstance(rid, str):
            return [Reply(errors.ws_event(errors.invalid_type("response_id", "a string")))]
        try:
            lane = lane_of(event.stream_id)
        except errors.ApiError as error:
            return [Reply(errors.ws_event(error))]
        if rid is not None:
            return self._cancel_by_id(rid, lane)
        busy = [name for name, state in self._slots.lanes.items() if state.busy]
        if lane is None and lane not in busy:
            if len(busy) > 1:
                return [Reply(errors.ws_event(errors.missing_required_parameter("response_id")))]
            lane = busy[0] if busy else None
        return self._cancel_lane(lane) if lane in busy else []

    def _cancel_by_id(self, rid: str, lane: Lane) -> list[Action]:
        for name, state in self._slots.lanes.items():
            if state.rid == rid:
                return self._cancel_lane(name)
        return [] if rid in self._recent else [Cancel(rid, own=False, lane=lane)]

    def _cancel_lane(self, lane: Lane) -> list[Action]:
        state = self._slots.lanes[lane]
        already, state.cancel = state.cancel, True
        return [] if already or state.rid is None else [Cancel(state.rid, own=True, lane=lane)]

    def cancel_failed(self, lane: Lane) -> None:
        """The cancel may be requested again."""
        if (state := self._slots.lanes.get(lane)) is not None:
            state.cancel = False

    def _steer(self, _event: json_body.EventHead, data: bytes) -> list[Action]:
        error = {
            "type": errors.INVALID_REQUEST,
            "code": "steering_not_supported",
            "message": "Steering is not supported.",
        }
        body = json_body.decode(data)
        previous, steer_input = body.get("previous_response_id"), body.get("input")
        steer = {  # of the declared types, whatever the client sent
            "previous_response_id": previous if isinstance(previous, str) else "",
            "input": steer_input if isinstance(steer_input, str | list) else "",
        }
        reply = {"type": "response.steer.failed", "error": error, "steer": steer}
        # The number is required, and must not be one of a running response.
        return [Reply({**reply, "sequence_number": 0})]

    # ---- outcomes of a create

    def accepted(self, lane: Lane, rid: str) -> list[Action]:
        """The create of this lane is in the log as `rid`."""
        state = self._slots.lanes[lane]
        state.rid = rid
        self._slots.on_submitted(lane)
        return [Cancel(rid, own=True, lane=lane)] if state.cancel else []

    def rejected(self, lane: Lane, error: errors.ApiError, previous: object = None) -> list[Action]:
        """The create of this lane was refused. The memory of the response that it continues is
        dropped, on this lane only."""
        self._forget(lane, previous)
        return [Reply(errors.ws_event(error, lane)), *self._release(lane)]

    def ended(
        self, lane: Lane, memory: ResponseMemory | None, previous: object = None
    ) -> list[Action]:
        """The response of this lane has ended; `memory` is None if it failed and cannot be
        continued."""
        state = self._slots.lanes[lane]
        if state.rid is not None:
            self._recent.append(state.rid)
        if memory is not None:
            self._slots.remember(lane, memory)
        else:
            self._forget(lane, previous)
        return self._release(lane)

    def adopt(self, rid: str, lane: Lane) -> None:
        """A response of an earlier connection continues here; its lane is busy until it ends."""
        self._slots.occupy(lane, rid)

    def recall(self, lane: Lane, rid: str) -> ResponseMemory | None:
        """The state of an earlier response of this connection: of this lane, or of another one,
        which makes it a fork."""
        for state in (self._slots.lanes[lane], *self._slots.lanes.values()):
            if state.memory is not None and state.memory.rid == rid:
                return state.memory
        return None

    # ---- leaving

    def leave(self, why: Leaving) -> list[Action]:
        """Accept no more creates: waiting creates are refused, running responses continue. Later
        reasons do not replace the first."""
        if self.leaving is not None:
            return []
        self.leaving = why
        replies = [Reply(errors.ws_event(_refusal(why), lane)) for lane in self._slots.empty()]
        return [*replies, *self._close_if_idle()]

    def _close_if_idle(self) -> list[Action]:
        if self.leaving is None or not self.idle:
            return []
        replies: list[Action] = (
            [Reply(errors.ws_event(_refusal(Leaving.AGE)))] if self.leaving is Leaving.AGE else []
        )
        return [*replies, Close(close_codes.CloseCode.RESTART)]

    # ---- slots

    def _forget(self, lane: Lane, previous: object) -> None:
        state = self._slots.lanes[lane]
        if state.memory is not None and state.memory.rid == previous:
            self._slots.forget(lane)

    def _release(self, lane: Lane) -> list[Action]:
        self._slots.release(lane)
        return [*self._begin(), *self._close_if_idle()]

    def _begin(self) -> list[Action]:
        return [Begin(lane, data) for lane, data in self._slots.begin()]


def lane_of(name: object) -> Lane:
    """The lane that a `stream_id` names.

    Raises:
        errors.ApiError: invalid_stream_id.
    """
    if name is None:
        return None
    if not isinstance(name, str) or not _LANE.match(name):
        raise errors.invalid_stream_id()
    return name


def _refusal(why: Leaving) -> errors.ApiError:
    if why is Leaving.AGE:
        return errors.websocket_connection_limit_reached()
    return errors.unavailable("This instance is shutting down; connect again.")


_Handler = Callable[[LaneScheduler, json_body.EventHead, bytes], list[Action]]
_HANDLERS: Final[dict[str, _Handler]] = {
    "response.create": LaneScheduler._create,
    "response.cancel": LaneScheduler._cancel,
    "response.steer": LaneScheduler._steer,
}
