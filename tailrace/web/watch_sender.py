"""What one watch socket has to send: messages, and the events of the responses it follows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from starlette.websockets import WebSocket

from tailrace import log, telemetry
from tailrace.delivery import delivery, feed, outbox
from tailrace.protocol import close_codes, compact_events, events
from tailrace.protocol import feed as positions
from tailrace.web import write_deadline

MAX_NOTED_BYTES: Final = 64 << 10

_encode = msgspec.json.Encoder().encode

SendTask = asyncio.Task[close_codes.CloseCode | None]
"""A finished task of a sender. Its result is the code to close with when the client is slow."""


class WatchSender:
    """Sends in one task, which stays while the socket follows a response: to start one per message
    takes a tenth of what an event costs.

    Attributes:
        _task: sends; None until there is something to send.
        _waiter: set when there is something to send, while the task waits; None otherwise.
        _pending: response ids with something to send, in the order they became ready.
        _notes: messages that belong to no event series (errors, draining), sent first.
        _note_bytes: size of the notes in bytes.
        _compact: writes the events of responses in the compact form; None where the client has not
            asked for it.
        _deadline: of the writes to the client.
    """

    __slots__ = (
        *("_compact", "_deadline", "_on_finished", "_on_lost", "_note_bytes", "_notes", "_pending"),
        *("_socket", "_task", "_unwatch", "_waiter", "_watches"),
    )

    def __init__(
        self,
        socket: WebSocket,
        watches: Mapping[str, delivery.Subscription | feed.Subscription],
        *,
        unwatch: Callable[[str], None],
        on_lost: Callable[[str, log.HistoryLost], None],
        on_finished: Callable[[SendTask], None],
        compact: bool = False,
    ) -> None:
        """
        Args:
            watches: the socket's subscriptions by response id; they may change at any time.
            unwatch: ends the subscription of a response id.
            on_lost: called when the log has lost events that a response has to send.
            on_finished: called when nothing remains and no response is followed, and when the task
                has failed.
            compact: events of responses are sent in the compact form.
        """
        self._socket = socket
        self._watches = watches
        self._unwatch = unwatch
        self._on_lost = on_lost
        self._on_finished = on_finished
        self._pending: dict[str, None] = {}
        self._notes: list[bytes] = []
        self._note_bytes = 0
        self._compact = compact_events.Watches() if compact else None
        self._deadline = write_deadline.WriteDeadline()
        self._task: SendTask | None = None
        self._waiter: asyncio.Future[None] | None = None

    def note(self, message: dict[str, Any]) -> bool:
        """Send this message before further events. False: the client does not read the messages
        that it causes, and this one was dropped."""
        body = _encode(message)
        if self._note_bytes + len(body) > MAX_NOTED_BYTES:
            return False
        self._notes.append(body)
        self._note_bytes += len(body)
        self._wake()
        return True

    def ready(self, rid: str) -> None:
        """Send the pending events of the subscription of `rid`."""
        self._pending[rid] = None
        self._wake()

    def forget(self, rid: str) -> None:
        """Send no more of `rid`, which is not subscribed any more."""
        self._pending.pop(rid, None)
        if self._compact is not None:
            self._compact.forget(rid)
        if not self._watches and self._waiter is not None:
            self._wake()  # the task ends

    def cancel(self) -> SendTask | None:
        """Send nothing more. Returns the task, which must be awaited."""
        self._notes.clear()
        self._note_bytes = 0
        self._pending.clear()
        if self._task is not None:
            self._task.cancel()
        return self._task

    def overdue(self, now: float) -> bool:
        """Whether the client has taken nothing for too long. `now`: monotonic seconds."""
        return self._deadline.overdue(now)

    def _wake(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send())
            self._task.add_done_callback(self._on_done)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _on_done(self, task: SendTask) -> None:
        self._task = None
        more = self._notes or self._pending  # since the task's last check
        if more and not task.cancelled() and task.exception() is None and task.result() is None:
            self._wake()
        else:
            self._on_finished(task)

    async def _send(self) -> close_codes.CloseCode | None:
        """Everything there is to send; the code to close with when the client does not take it."""
        try:
            while True:
                while self._notes or self._pending:
                    if self._notes:
                        notes, self._notes = self._notes, []
                        for note in notes:
                            await self._write(note)
                            self._note_bytes -= len(note)
                    if self._pending:
                        await self._send_one(next(iter(self._pending)))
                if not self._watches:
                    return None
                self._waiter = asyncio.get_running_loop().create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
        except outbox.Slow:
            telemetry.OUTBOX_CLOSES.labels(verdict="slow").inc()
            return close_codes.CloseCode.SLOW

    async def _send_one(self, rid: str) -> None:
        """Send one batch of one response; the rest waits for its turn after the others, so no
        response starves another."""
        del self._pending[rid]
        subscription = self._watches.get(rid)
        if subscription is None:
            return
        try:
            batch = subscription.pending()
        except log.HistoryLost as error:
            self._on_lost(rid, error)
            return
        if batch:
            await self._write(self._message(rid, batch))
        if self._watches.get(rid) is not subscription:
            return  # unwatched while the socket was being written
        if subscription.ended:
            self._unwatch(rid)
            await self._write(
                _encode({"type": "watch.done", "response_id": rid, "status": subscription.status})
            )
        elif batch and subscription.ready:
            self._pending[rid] = None

    def _message(
        self, rid: str, batch: Sequence[events.Event] | Sequence[positions.Event]
    ) -> bytes:
        # A feed's events name their subject themselves.
        head = b'{"type":"feed.events",'
        if rid != feed.NAME:
            if self._compact is not None:
                return self._compact.message(rid, cast("Sequence[events.Event]", batch))
            head = b'{"type":"watch.events","response_id":"%s",' % rid.encode()
        return head + b'"events":[%s]}' % b",".join(e.body for e in batch)

    async def _write(self, body: bytes) -> None:
        with self._deadline:
            await self._socket.send({"type": "websocket.send", "text": body.decode()})
