"""A socket on which one client follows many responses: commands in, events out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from tailrace import log, telemetry
from tailrace.auth.principal import CredentialScope, Principal
from tailrace.delivery import delivery, feed
from tailrace.protocol import close_codes, errors
from tailrace.protocol import feed as positions
from tailrace.web import (
    access,
    auth_messages,
    credential_timer,
    drain,
    error_mapping,
    watch_commands,
    watch_sender,
)

MAX_WATCHES = 64


_Command = (
    watch_commands.Watch
    | watch_commands.Unwatch
    | watch_commands.Feed
    | watch_commands.Unfeed
    | watch_commands.Invalid
)


class WatchConnection:
    """One watch socket: commands in, events of all watched responses out, through one sender.

    A socket that follows nothing has one task, which reads, and one timer.

    Attributes:
        principal: for whom the socket is open.
        _watches: subscriptions by response id; only the reader adds and removes, the sender removes
            ended ones.
        _sender: sends; None while nothing is left and no response is followed.
        _starting: tasks that subscribe, by response id; each removes itself.
        _reader: the task that serves the socket, while it reads; None before and afterwards.
        _compact: the client has asked for the compact form of events.
        _over, _code: whether the socket ends, and what it is closed with; None when the client has
            left.
    """

    __slots__ = (
        *(
            "_code",
            "_compact",
            "_delivery",
            "_expiry",
            "_feeds",
            "_gate",
            "_loop",
            "_origin",
            "_over",
            "_owner",
        ),
        "_reader",
        *("_sender", "_socket", "_starting", "_watches", "principal"),
    )

    def __init__(
        self,
        socket: WebSocket,
        deliver: delivery.Delivery,
        principal: Principal,
        gate: access.Access,
        origin: str | None,
        feeds: feed.Feeds,
        *,
        compact: bool = False,
    ) -> None:
        """`origin`: of the page that opened the socket; tickets are bound to it. `compact`: the
        client has asked for the compact form of events."""
        self._socket = socket
        self._delivery = deliver
        self.principal = principal
        self._owner = access.owner_of(principal)
        self._gate = gate
        self._origin = origin
        self._expiry = credential_timer.CredentialTimer(
            gate.clock, self._expire, self._warn, gate.later
        )
        self._feeds = feeds
        self._compact = compact
        self._watches: dict[str, delivery.Subscription | feed.Subscription] = {}
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._sender: watch_sender.WatchSender | None = None
        self._loop = asyncio.get_running_loop()
        self._reader: asyncio.Task[Any] | None = None
        self._over = False
        self._code: close_codes.CloseCode | None = None

    async def run(self, draining: drain.Draining) -> None:
        """Serve until the client leaves, the credential expires or is revoked, the service drains
        or the client proves too slow."""
        self._expiry.start(self.principal.expires_at)
        draining.callbacks.add(self._drain)
        if draining.begun:  # while the handshake was answered
            self._drain()
        try:
            await self._read_until_over()
        finally:
            self._over = True
            draining.callbacks.discard(self._drain)
            self._expiry.cancel()
            tasks: list[asyncio.Task[Any]] = list(self._starting.values())
            for task in tasks:
                task.cancel()
            if self._sender is not None and (sending := self._sender.cancel()) is not None:
                tasks.append(sending)
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
        # The reader itself looks at `_over` before it reads again.
        if self._reader is not None and self._reader is not asyncio.current_task():
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
        # The message is in no variable here: it would be kept until the next one comes.
        while not self._over and await self._execute(await self._socket.receive()):
            await self._gate.rates.message(self.principal)

    async def _execute(self, message: Mapping[str, Any]) -> bool:
        """Act on one ASGI message. Returns whether another one may follow."""
        if message["type"] == "websocket.disconnect":
            return False
        command = watch_commands.parse(message.get("text"))
        if isinstance(command, auth_messages.Presented):
            await self._renew(command)
        else:
            self._obey(command)
        return True

    async def _renew(self, presented: auth_messages.Presented) -> None:
        """Go on with the credential that the client shows now. The next message is read after it
        was checked, so that credentials cannot be tried faster than that."""
        try:
            self.principal = await self._gate.renewed(
                self.principal, presented, self._origin, CredentialScope.READ
            )
        except errors.ApiError as error:
            self._note(auth_messages.refusal_message(error))
        else:
            self._expiry.start(self.principal.expires_at)
            self._note(auth_messages.renewal_message(self.principal.expires_at))

    def _obey(self, command: _Command) -> None:
        match command:
            case watch_commands.Feed(after):
                self._feed(after)
            case watch_commands.Unfeed():
                self._unwatch(feed.NAME)
            case watch_commands.Invalid(rid, error):
                self._refuse(rid, error)
            case watch_commands.Watch(rid, _) if rid == feed.NAME:
                self._refuse(rid, error_mapping.api_error(rid, delivery.NotFound(rid)))
            case watch_commands.Unwatch(rid):
                if rid != feed.NAME:  # which is not a response
                    self._unwatch(rid)
            case watch_commands.Watch(rid, after):
                if self._full:
                    self._refuse(rid, _too_many())
                    return
                # A second watch of the same response replaces the first: the client chooses the
                # position.
                self._unwatch(rid)
                self._starting[rid] = asyncio.create_task(self._watch(rid, after))

    @property
    def _full(self) -> bool:
        return len(self._watches) + len(self._starting) >= MAX_WATCHES

    def _feed(self, after: positions.Position | None) -> None:
        self._unwatch(feed.NAME)
        if self._full:
            self._refuse(None, _too_many())
            return
        try:
            # The only place where a subscription exists at once.
            self._watches[feed.NAME] = self._feeds.watch(
                self._owner, after, lambda: self._ready(feed.NAME)
            )
        except errors.ApiError as error:
            self._refuse(None, error)

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
        if self._sender is not None:
            self._sender.forget(rid)

    def _refuse(self, rid: str | None, e: errors.ApiError) -> None:
        self._note(
            {"type": "watch.error", "response_id": rid, "status": e.status, **errors.http_body(e)}
        )

    # ----------------------------------------------------------------- sender

    def _note(self, message: dict[str, Any]) -> None:
        if not self._over and not self._sending().note(message):
            telemetry.OUTBOX_CLOSES.labels(verdict="slow").inc()
            self._end(close_codes.CloseCode.SLOW)

    def _ready(self, rid: str) -> None:
        if not self._over:
            self._sending().ready(rid)

    def _sending(self) -> watch_sender.WatchSender:
        if self._sender is None:
            self._sender = watch_sender.WatchSender(
                self._socket,
                self._watches,
                unwatch=self._unwatch,
                on_lost=self._on_lost,
                on_finished=self._on_sent,
                compact=self._compact,
            )
        return self._sender

    def _on_lost(self, rid: str, error: log.HistoryLost) -> None:
        self._unwatch(rid)
        self._refuse(rid, error_mapping.api_error(rid, error))

    def _on_sent(self, task: watch_sender.SendTask) -> None:
        self._sender = None  # an idle socket holds none
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

    # -------------------------------------------------------------- deadlines

    def check_deadlines(self, now: float) -> None:
        """Close the socket if its client has taken nothing for too long. `now`: monotonic
        seconds."""
        if self._sender is not None and self._sender.overdue(now) and not self._over:
            telemetry.OUTBOX_CLOSES.labels(verdict="blocked").inc()
            self._end(close_codes.CloseCode.SLOW)

    def revoke(self) -> None:
        """The credential was revoked: close, and send nothing more."""
        self._end(close_codes.CloseCode.CREDENTIAL_REVOKED)

    def _warn(self, remaining_s: float) -> None:
        self._note(auth_messages.expiring(remaining_s))

    def _expire(self) -> None:
        self._end(close_codes.CloseCode.CREDENTIAL_EXPIRED)

    def _drain(self) -> None:
        delay = (hash(id(self)) % 1000) / 1000 * drain.SPREAD_S
        self._note({"type": "watch.draining", "after_ms": int(delay * 1000)})
        self._loop.call_later(delay, self._end, close_codes.CloseCode.DRAINING)


def _too_many() -> errors.ApiError:
    return errors.invalid_request(
        f"This connection follows its maximum of {MAX_WATCHES} responses.",
        "response_id",
        "watch_limit_reached",
    )
