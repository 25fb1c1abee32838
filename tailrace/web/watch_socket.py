"""A socket on which one client follows many responses: commands in, events out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, MutableMapping
from typing import Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from tailrace import log, telemetry
from tailrace.auth.principal import Principal
from tailrace.delivery import delivery, outbox
from tailrace.protocol import close_codes, errors
from tailrace.web import access, drain, error_mapping, write_deadline

MAX_WATCHES = 64

_encode = msgspec.json.Encoder().encode


class WatchConnection:
    """One watch socket: commands in, events of all watched responses out, through one sender.

    An idle socket has one task, which reads, and one timer. The sender task exists only while there
    is something to send.

    Attributes:
        _watches: subscriptions by response id; only the reader adds and removes, the sender removes
            ended ones.
        _pending: response ids with something to send, in the order they became ready.
        _notes: messages that belong to no event series (errors, draining), sent first.
        _sender: sends until `_pending` and `_notes` are empty; None then.
        _starting: tasks that subscribe, by response id; each removes itself.
        _reader: the task that serves the socket, while it reads; None before and afterwards.
        _deadline: of the writes to the client.
        _over, _code: whether the socket ends, and what it is closed with; None when the client has
            left.
    """

    __slots__ = (
        *(
            "_clock",
            "_code",
            "_deadline",
            "_delivery",
            "_loop",
            "_notes",
            "_over",
            "_owner",
            "_pending",
        ),
        *("_principal", "_reader", "_sender", "_socket", "_starting", "_watches"),
    )

    def __init__(
        self,
        socket: WebSocket,
        deliver: delivery.Delivery,
        principal: Principal,
        clock: Callable[[], float],
    ) -> None:
        self._socket = socket
        self._delivery = deliver
        self._principal = principal
        self._owner = access.owner_of(principal)
        self._clock = clock
        self._watches: dict[str, delivery.Subscription] = {}
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._pending: dict[str, None] = {}
        self._notes: list[dict[str, Any]] = []
        self._sender: asyncio.Task[close_codes.CloseCode | None] | None = None
        self._loop = asyncio.get_running_loop()
        self._reader: asyncio.Task[Any] | None = None
        self._deadline = write_deadline.WriteDeadline()
        self._over = False
        self._code: close_codes.CloseCode | None = None

    async def run(self, draining: drain.Draining) -> None:
        """Serve until the client leaves, the credential expires, the service drains or the client
        proves too slow."""
        expiry = self._loop.call_later(
            max(0.0, self._principal.expires_at - self._clock()),
            self._end,
            close_codes.CloseCode.CREDENTIAL_EXPIRED,
        )
        draining.callbacks.add(self._drain)
        if draining.begun:  # while the handshake was answered
            self._drain()
        try:
            await self._read_until_over()
        finally:
            self._over = True
            draining.callbacks.discard(self._drain)
            expiry.cancel()
            tasks = [
                *([self._sender] if self._sender is not None else []),
                *self._starting.values(),
            ]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for subscription in self._watches.values():
                subscription.close()
            await self._close(self._code)

    async def _read_until_over(self) -> None:
        """Read in the task that serves the socket; `_end` cancels it. A task of its own for the
        reader would be the greater part of what an idle socket takes."""
        self._reader = asyncio.current_task()
        try:
            await self._read()
        except asyncio.CancelledError:
            if not self._over or self._reader is None or self._reader.uncancel():
                raise  # not by `_end`
        except (WebSocketDisconnect, RuntimeError):
            pass  # the client has left
        except Exception as error:
            telemetry.log(telemetry.Action.SOCKET_FAILED, exc_info=error)
            self._code = close_codes.CloseCode.INTERNAL
        finally:
            self._reader = None

    def _end(self, code: close_codes.CloseCode | None) -> None:
        if self._over:
            return
        self._over, self._code = True, code
        if self._reader is not None:
            self._reader.cancel()

    async def _close(self, code: close_codes.CloseCode | None) -> None:
        if code is None or self._socket.application_state is not WebSocketState.CONNECTED:
            return
        telemetry.SOCKET_CLOSES.labels(code=str(int(code))).inc()
        with contextlib.suppress(RuntimeError, WebSocketDisconnect, TimeoutError, OSError):
            async with asyncio.timeout(2.0):
                await self._socket.close(int(code), close_codes.TABLE[code].reason)

    # --------------------------------------------------------------- commands

    async def _read(self) -> None:
        while not self._over:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            self._command(message)

    def _command(self, message: MutableMapping[str, Any]) -> None:
        text = message.get("text")
        if text is None:
            return self._refuse(None, errors.invalid_request("Messages are JSON text frames."))
        try:
            command = msgspec.json.decode(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return self._refuse(None, errors.invalid_json())
        rid = command.get("response_id") if isinstance(command, dict) else None
        if not isinstance(command, dict) or command.get("type") not in ("watch", "unwatch"):
            return self._refuse(
                None, errors.invalid_request("The 'type' must be 'watch' or 'unwatch'.", "type")
            )
        if not isinstance(rid, str):
            return self._refuse(None, errors.missing_required_parameter("response_id"))
        if command["type"] == "unwatch":
            return self._unwatch(rid)
        after = command.get("starting_after", -1)
        if type(after) is not int or after < -1:
            return self._refuse(
                rid,
                errors.invalid_request(
                    "starting_after must be an integer", "starting_after", "invalid_value"
                ),
            )
        if len(self._watches) + len(self._starting) >= MAX_WATCHES:
            return self._refuse(
                rid,
                errors.invalid_request(
                    f"This connection follows its maximum of {MAX_WATCHES} responses.",
                    "response_id",
                    "watch_limit_reached",
                ),
            )
        # A second watch of the same response replaces the first: the client chooses the position.
        self._unwatch(rid)
        task = asyncio.create_task(self._watch(rid, after))
        self._starting[rid] = task
        return None

    async def _watch(self, rid: str, after: int) -> None:
        try:
            subscription = await self._delivery.watch(
                rid, self._owner, after, lambda: self._ready(rid)
            )
        except error_mapping.DELIVERY_ERRORS as error:
            self._refuse(rid, error_mapping.api_error(rid, error))
        else:
            self._watches[rid] = subscription
            self._ready(rid)
        finally:
            if self._starting.get(rid) is asyncio.current_task():
                del self._starting[rid]

    def _unwatch(self, rid: str) -> None:
        starting = self._starting.pop(rid, None)
        if starting is not None:
            starting.cancel()
        subscription = self._watches.pop(rid, None)
        if subscription is not None:
            subscription.close()
        self._pending.pop(rid, None)

    def _refuse(self, rid: str | None, e: errors.ApiError) -> None:
        self._note(
            {"type": "watch.error", "response_id": rid, "status": e.status, **errors.http_body(e)}
        )

    def _note(self, message: dict[str, Any]) -> None:
        self._notes.append(message)
        self._wake()

    # ----------------------------------------------------------------- sender

    def _ready(self, rid: str) -> None:
        self._pending[rid] = None
        self._wake()

    def _wake(self) -> None:
        if self._sender is None and not self._over:
            self._sender = self._loop.create_task(self._send())
            self._sender.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[close_codes.CloseCode | None]) -> None:
        self._sender = None
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, WebSocketDisconnect | RuntimeError):
            self._end(None)  # the client has left
        elif error is not None:
            telemetry.log(telemetry.Action.SOCKET_FAILED, exc_info=error)
            self._end(close_codes.CloseCode.INTERNAL)
        elif (verdict := task.result()) is not None:
            self._end(verdict)
        elif self._notes or self._pending:  # since it looked last
            self._wake()

    async def _send(self) -> close_codes.CloseCode | None:
        """Everything there is to send; the code to close with when the client does not take it."""
        try:
            while self._notes or self._pending:
                for note in self._notes_to_send():
                    await self._write(_encode(note))
                if self._pending:
                    await self._send_one(next(iter(self._pending)))
        except outbox.Slow:
            telemetry.OUTBOX_CLOSES.labels(verdict="slow").inc()
            return close_codes.CloseCode.SLOW
        return None

    def _notes_to_send(self) -> list[dict[str, Any]]:
        notes, self._notes = self._notes, []
        return notes

    async def _send_one(self, rid: str) -> None:
        """One batch of one response; what is left keeps its turn behind the others, so no response
        starves another."""
        del self._pending[rid]
        subscription = self._watches.get(rid)
        if subscription is None:
            return
        try:
            batch = subscription.pending()
        except log.HistoryLost as error:
            self._unwatch(rid)
            self._refuse(rid, error_mapping.api_error(rid, error))
            return
        if batch:
            await self._write(
                b'{"type":"watch.events","response_id":"%s","events":[%s]}'
                % (rid.encode(), b",".join(e.body for e in batch))
            )
        if self._watches.get(rid) is not subscription:
            return  # unwatched while the socket was being written
        if subscription.ended:
            self._unwatch(rid)
            await self._write(
                _encode({"type": "watch.done", "response_id": rid, "status": subscription.status})
            )
        elif batch:
            self._pending[rid] = None  # there may be more; an empty batch ends the round

    async def _write(self, body: bytes) -> None:
        with self._deadline:
            await self._socket.send({"type": "websocket.send", "text": body.decode()})

    # -------------------------------------------------------------- deadlines

    def check_deadlines(self, now: float) -> None:
        """Close the socket if its client has taken nothing for too long. `now`: monotonic
        seconds."""
        if self._deadline.overdue(now) and not self._over:
            telemetry.OUTBOX_CLOSES.labels(verdict="blocked").inc()
            self._end(close_codes.CloseCode.SLOW)

    def _drain(self) -> None:
        delay = (hash(id(self)) % 1000) / 1000 * drain.SPREAD_S
        self._note({"type": "watch.draining", "after_ms": int(delay * 1000)})
        self._loop.call_later(delay, self._end, close_codes.CloseCode.DRAINING)
