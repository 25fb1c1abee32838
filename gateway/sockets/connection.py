"""One accepted WebSocket: moves events between the client, the lane scheduler and the log.

`lanes` decides what happens when. This module executes the decisions.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec
from starlette.websockets import WebSocket

from gateway.parsing import auto_model, json_body, responses_api
from gateway.requests.submission import Submission
from gateway.responses import response_operations, response_stream
from gateway.sockets import client_socket, lanes
from tailrace import log, settings, telemetry
from tailrace.auth.principal import CredentialScope, Principal
from tailrace.delivery import kept_bytes, outbox
from tailrace.protocol import close_codes, errors
from tailrace.web import access, auth_messages, credential_timer, drain, error_mapping

# A response that runs when its socket reaches its age limit may still end on it.
AGE_GRACE_S: Final = 60.0

_encode = msgspec.json.Encoder().encode


class Connection:
    """One accepted socket.

    Attributes:
        principal: the socket's principal.
        _lane_tasks: the task of each busy lane. It submits, then sends the events. Removed when the
            lane's response ended.
        _streams: the stream of each lane whose response is in the log. Only tasks of these lanes
            may be cancelled when the socket closes: a submission under way is always finished.
    """

    def __init__(
        self,
        socket: WebSocket,
        principal: Principal,
        config: settings.GatewaySettings,
        pools: settings.CurrentPools,
        submission: Submission,
        operations: response_operations.ResponseOperations,
        gate: access.Access,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        account: kept_bytes.Account,
        *,
        own_protocol: bool = False,
        origin: str | None = None,
    ) -> None:
        """
        Args:
            account: counts the bytes that the socket holds for its client.
            own_protocol: the client speaks `tailrace.v1`. It gets a warning before its credential
                expires, and may send a new one.
            origin: of the page that opened the socket; tickets are bound to it.
        """
        self._client = client_socket.ClientSocket(socket)
        self.principal = principal
        self._config = config
        self._parse = functools.partial(
            responses_api.parse, websocket=True, searches=config.searches
        )
        self._pools = pools
        self._submission = submission
        self._operations = operations
        self._gate = gate
        self._origin = origin
        self._expiry = credential_timer.CredentialTimer(
            gate.clock,
            lambda: self._client.decide(close_codes.CloseCode.CREDENTIAL_EXPIRED),
            self._warn if own_protocol else None,
            gate.later,
        )
        self._spawn = spawn
        self._scheduler = lanes.LaneScheduler(account=account, own_protocol=own_protocol)
        self._lane_tasks: dict[lanes.Lane, asyncio.Task[None]] = {}
        self._streams: dict[lanes.Lane, response_stream.ResponseStream] = {}

    async def run(
        self,
        draining: drain.Draining,
        resumption: tuple[lanes.Lane, response_stream.ResponseStream] | None = None,
    ) -> None:
        """Serve until the client leaves, the credential expires or is revoked, the socket reaches
        its age limit, the service drains, or the client proves too slow."""
        if resumption is not None:
            lane, stream = resumption
            self._scheduler.adopt(stream.rid, lane)
            self._start(lane, self._deliver(lane, stream))
        watchers = [
            asyncio.ensure_future(t)
            for t in (self._read(), self._enforce_age(), self._drain(draining))
        ]
        self._expiry.start(self.principal.expires_at)
        for task in watchers:
            task.add_done_callback(self._client.task_done)
        try:
            code = await self._client.verdict
        finally:
            self._client.closed = True
            self._expiry.cancel()
            for task in watchers:
                task.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
            sending = [self._lane_tasks[lane] for lane in self._streams]
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
        await self._client.close(code)

    def check_deadlines(self, now: float) -> None:
        """Close the socket if its client reads nothing. `now`: monotonic seconds."""
        self._client.check_deadlines(now)

    def revoke(self) -> None:
        """The credential was revoked: close, start nothing and send nothing more. Queued creates
        are dropped."""
        self._client.decide(close_codes.CloseCode.CREDENTIAL_REVOKED)
        self._client.closed = True

    def leave(self, why: lanes.Leaving) -> None:
        """Accept no more creates. Running responses continue."""
        self._spawn(self._act(self._scheduler.leave(why)))

    # ---- from the client

    async def _read(self) -> None:
        # The message is not bound to a variable, which would hold it until the next one arrives.
        while await self._handle(await self._client.receive()):
            await self._gate.rates.message(self.principal)

    async def _handle(self, message: dict[str, Any]) -> bool:
        """Handle one ASGI message. Returns whether another one may follow."""
        if message["type"] == "websocket.disconnect":
            self._client.decide(None)
            return False
        text = message.get("text")
        try:
            if text is None:
                raise errors.invalid_request("Messages are JSON text frames.")
            actions = self._scheduler.receive(text.encode())
        except errors.ApiError as error:
            actions = [lanes.Reply(errors.ws_event(error))]
        await self._act(actions)
        return True

    async def _act(self, actions: Sequence[lanes.Action]) -> None:
        for action in actions:
            if self._client.closed:
                return  # the client has left
            match action:
                case lanes.Begin(lane, data):
                    self._start(lane, self._create(lane, data))
                case lanes.Reply(event):
                    await self._client.send([_encode(event)])
                case lanes.Cancel(own=True):
                    self._spawn(self._cancel_own(action))
                case lanes.Cancel():
                    # Look up the response before reading the next message, so that guessing ids is
                    # not faster than reading.
                    await self._cancel_other(action)
                case lanes.Renew(credential):
                    # Check it before reading the next message, so that credentials cannot be
                    # guessed faster.
                    await self._renew(credential)
                case lanes.Close(code):
                    self._client.decide(code)

    def _start(self, lane: lanes.Lane, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._lane_tasks[lane] = task

        def done(finished: asyncio.Task[None]) -> None:
            if self._lane_tasks.get(lane) is finished:
                del self._lane_tasks[lane]
            self._client.task_done(finished)

        task.add_done_callback(done)

    async def _create(self, lane: lanes.Lane, data: bytes) -> None:
        stream = await self._submit_create(lane, data)
        del data  # not held while the response runs
        if stream is None:
            return
        if self._client.closed:
            stream.release()
            return
        await self._deliver(lane, stream)

    async def _submit_create(
        self, lane: lanes.Lane, data: bytes
    ) -> response_stream.ResponseStream | None:
        """Submit the next create of a lane. Returns its stream; None if it was refused."""
        previous: object = None
        try:
            body = json_body.decode(data)
            previous = body.get("previous_response_id")
            create = auto_model.parse_auto(body, self._pools.catalog, self._parse)
            return await self._submission.submit(
                create, self.principal, lambda rid: self._scheduler.recall(lane, rid)
            )
        except errors.ApiError as error:
            await self._act(self._scheduler.rejected(lane, error, previous))
            return None

    async def _cancel_own(self, action: lanes.Cancel) -> None:
        """Append a CANCEL. The lane's own subscription brings the terminal event."""
        stream = self._streams.get(action.lane)
        if stream is None or stream.rid != action.rid:
            return  # it has ended
        try:
            await self._operations.append_cancel(stream.rid, stream.owner, stream.echo)
        except log.AppendFailed as error:
            self._scheduler.cancel_failed(action.lane)
            await self._refuse_cancel(action, error)

    async def _cancel_other(self, action: lanes.Cancel) -> None:
        try:
            await self._operations.cancel(action.rid, access.owner_of(self.principal))
        except error_mapping.DELIVERY_ERRORS as error:
            await self._refuse_cancel(action, error)

    async def _refuse_cancel(self, action: lanes.Cancel, error: Exception) -> None:
        api_error = error_mapping.api_error(action.rid, error)
        await self._act([lanes.Reply(errors.ws_event(api_error, action.lane))])

    # ---- to the client

    async def _deliver(self, lane: lanes.Lane, stream: response_stream.ResponseStream) -> None:
        """Send a response's events to its end."""
        self._streams[lane] = stream
        try:
            with stream:
                await self._act(self._scheduler.accepted(lane, stream.rid))
                while stream.final is None and (batch := await stream.next_events()):
                    await self._client.send([event.on_lane(lane) for event in batch])
        except log.HistoryLost:
            pass  # `stream.lost` says so
        except outbox.Slow:
            telemetry.OUTBOX_CLOSES.labels(verdict="slow").inc()
            self._client.decide(close_codes.CloseCode.SLOW)
        finally:
            del self._streams[lane]
        if stream.lost:
            error = errors.history_lost(stream.rid)
            await self._act(self._scheduler.rejected(lane, error, stream.previous))
        elif stream.final is not None or stream.subscription.ended:
            await self._act(self._scheduler.ended(lane, stream.memory, stream.previous))

    # ---- deadlines

    def _warn(self, remaining_s: float) -> None:
        self._spawn(self._act([lanes.Reply(auth_messages.expiring(remaining_s))]))

    async def _renew(self, credential: auth_messages.Presented) -> None:
        try:
            self.principal = await self._gate.renewed(
                self.principal, credential, self._origin, CredentialScope.CREATE
            )
        except errors.ApiError as error:
            await self._act([lanes.Reply(auth_messages.refusal_message(error))])
        else:
            self._expiry.start(self.principal.expires_at)
            await self._act([lanes.Reply(auth_messages.renewal_message(self.principal.expires_at))])

    async def _enforce_age(self) -> None:
        await asyncio.sleep(self._config.connection_limit_s)
        await self._act(self._scheduler.leave(lanes.Leaving.AGE))
        await asyncio.sleep(AGE_GRACE_S)
        self._client.decide(close_codes.CloseCode.LIFETIME)

    async def _drain(self, draining: drain.Draining) -> None:
        await draining.wait()
        self._client.decide(close_codes.CloseCode.DRAINING)
