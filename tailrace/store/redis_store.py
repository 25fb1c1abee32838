"""Redis: what may be forgotten at any moment.

    key                         value                              lives        written by       if lost
    ticket:<hash>               principal, origin                  <= 30 s      gateway          the browser asks for a new ticket
    session:<response id>       conversation state, opaque bytes   30 min idle  gateway          rebuilt from the log
    idem:<hash>                 response id                        given        gateway          looked up in the log
    prefix:{pool}:<digest>      partition, cached tokens, worker   10 min       worker           a colder prefix cache
    prefix:{pool}               index of the above by time         10 min       worker
    workers:{pool}              hash: worker name -> state         5 s each     worker           capacity unknown until the next beat
    rate:<kind>:<hash>          token bucket                       till full    gateway          a fresh bucket
    revoked:<hash>              1                                  given        operator         see `is_revoked`

Hashed keys keep names of people and secrets out of key listings and bound the length of what
clients choose. Braces are cluster hash tags. Only commands of Redis 6.2; time inside scripts is the
server's, so that no clock of ours matters.
"""

import asyncio
import hashlib
import math
import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Self

import msgspec
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tailrace import telemetry
from tailrace.auth import credentials

CALL_TIMEOUT_S: Final = 0.25
# times as long for what nobody can do without: a browser whose ticket is refused because Redis was
# slow cannot do anything
PATIENCE: Final = 8
# after a call without an answer nobody asks: a Redis that hangs costs one call's timeout per
# second, not one per request
AWAY_S: Final = 1.0
MAX_CONNECTIONS: Final = (
    4  # batches go one after the other; one that was given up may still be closing
)
TICKET_TTL_S: Final = 30
SESSION_IDLE_S: Final = 30 * 60
MAX_SESSION_BYTES: Final = 1 << 20
PREFIX_TTL_S: Final = 10 * 60
MAX_PREFIXES_PER_POOL: Final = 50_000
MAX_DIGESTS_PER_CALL: Final = 64  # the deepest are kept: the first of a list that is longest first
HEARTBEAT_TTL_S: Final = 5

_TICKET: Final = re.compile(r"[A-Za-z0-9_-]{22}")  # 128 bits

# Returns the value that stands after the call. SET NX GET in one command exists only from Redis 7.
_CLAIM: Final = """
local first = redis.call('GET', KEYS[1])
if first then return first end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
"""

_RELEASE: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

# KEYS[1] index; ARGV: ttl ms, most entries, value, digests...   An entry is dropped by age or, over the bound, oldest first.
_PUBLISH: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local ttl = tonumber(ARGV[1])
for i = 4, #ARGV do
  redis.call('SET', KEYS[1] .. ':' .. ARGV[i], ARGV[3], 'PX', ttl)
  redis.call('ZADD', KEYS[1], now, ARGV[i])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ttl)
local excess = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[2])
if excess > 0 then
  local oldest = redis.call('ZPOPMIN', KEYS[1], excess)
  for i = 1, #oldest, 2 do redis.call('DEL', KEYS[1] .. ':' .. oldest[i]) end
end
redis.call('PEXPIRE', KEYS[1], ttl)
"""

# A hash with its own deadlines: fields cannot expire by themselves before Redis 7.4.
_HEARTBEAT: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], string.format('%d %s', now + tonumber(ARGV[2]), ARGV[3]))
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
"""

_WORKERS: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local all, alive = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
  local deadline, info = string.match(all[i + 1], '^(%d+) (.*)$')
  if deadline and tonumber(deadline) >= now then
    table.insert(alive, all[i])
    table.insert(alive, info)
  else
    redis.call('HDEL', KEYS[1], all[i])
  end
end
return alive
"""

# ARGV: cost, rate per second, burst, now in seconds or ''.   Returns allowed, seconds to wait, tokens left (as text: Lua would cut fractions off).
_TAKE: Final = """
local cost, rate, burst, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if not now then
  local clock = redis.call('TIME')
  now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
end
local stored = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(stored[1]) or burst, tonumber(stored[2]) or now
if now < at then now = at end
tokens = math.min(burst, tokens + (now - at) * rate)
local allowed, wait = 0, 0
if tokens >= cost then
  tokens, allowed = tokens - cost, 1
else
  wait = (cost - tokens) / rate
end
redis.call('HSET', KEYS[1], 'tokens', string.format('%.9f', tokens), 'at', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil((burst - tokens) / rate * 1000) + 1000)
return {allowed, string.format('%.6f', wait), string.format('%.6f', tokens)}
"""


class SessionsUnavailable(Exception):
    """Redis is away, too slow, or refuses us. What then holds is the caller's rule: tickets fail
    closed, caches are skipped."""


class PrefixHit(NamedTuple):
    partition: int
    depth: int  # how many digests of the chain are warm there; the longest of n digests has depth n


class Taken(NamedTuple):
    allowed: bool
    retry_after_s: float  # 0 when allowed
    remaining: float


class _Ticket(msgspec.Struct, frozen=True):
    issuer: str
    subject: str
    tenant: str | None
    scopes: list[str]
    expires_at: int
    origin: str | None


class _Prefix(msgspec.Struct, frozen=True):
    partition: int
    cached_tokens: int
    worker: str


_Asked = tuple[tuple[Any, ...], asyncio.Future[Any]]  # a command and its answer


class _Batches:
    """Commands in pipelines: what is asked while one is under way goes out as the next. So a busy
    service pays by the round trip, not by the command.

    Attributes:
        _waiting: those not sent yet.
        _sender: sends until nothing waits; None then.
    """

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._waiting: list[_Asked] = []
        self._sender: asyncio.Task[None] | None = None

    def call(self, command: tuple[Any, ...]) -> asyncio.Future[Any]:
        """The answer. Whoever gives up cancels it; an exchange that nobody waits for any more
        ends."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, answer))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())
        return answer

    async def aclose(self) -> None:
        """What is under way is cancelled."""
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait({self._sender})

    async def _send(self) -> None:
        batch: list[_Asked] = []
        try:
            while self._waiting:
                batch = [each for each in self._waiting if not each[1].done()]
                self._waiting = []
                if batch:
                    await self._one(batch)
        finally:
            self._sender = None
            for _, answer in (
                batch + self._waiting
            ):  # closed under them; a cancellation would end whoever asked
                _settle(answer, redis.ConnectionError("closed"))

    async def _one(self, batch: list[_Asked]) -> None:
        exchange = asyncio.create_task(self._exchange([command for command, _ in batch]))  # noqa: RUF006 - awaited below

        def given_up(_: asyncio.Future[Any]) -> None:
            if all(answer.done() for _, answer in batch):
                exchange.cancel()

        for _, asked in batch:
            asked.add_done_callback(given_up)
        try:
            await asyncio.wait({exchange})
        finally:
            exchange.cancel()  # without effect unless we are cancelled ourselves
        error = redis.ConnectionError("cancelled") if exchange.cancelled() else exchange.exception()
        answers = [error] * len(batch) if error is not None else exchange.result()
        for (_, asked), answer in zip(batch, answers, strict=True):
            _settle(asked, answer)

    async def _exchange(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        if len(commands) == 1:  # a pipeline of one costs half as much again
            return [await self._client.execute_command(*commands[0])]  # type: ignore[no-untyped-call]
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return list(await pipeline.execute(raise_on_error=False))


def _settle(asked: asyncio.Future[Any], answer: Any) -> None:
    if asked.done():
        return
    if isinstance(answer, BaseException):
        asked.set_exception(answer)
    else:
        asked.set_result(answer)


class Sessions:
    """Connects at the first call and again by itself; every call ends within CALL_TIMEOUT_S
    (tickets: PATIENCE times that), by SessionsUnavailable if it must.

    Attributes:
        _away_until: monotonic seconds; before it Redis is not asked.
        _away: the last call asked got no answer.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float = CALL_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._away_until = -math.inf
        self._away = False
        # Not the blocking pool, whose locks cost half of what a command does: exchanges are one at
        # a time.
        pool = redis.asyncio.ConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            # Callers' own bounds are in `_ask`; an exchange ends when the last of them has given
            # up.
            socket_timeout=timeout_s * PATIENCE,
            socket_connect_timeout=timeout_s * PATIENCE,
            # A retry would double the time a caller waits, and a repeated GETDEL or token bucket
            # would take twice.
            retry=Retry(NoBackoff(), 0),
        )
        self._redis = redis.asyncio.Redis.from_pool(pool)
        self._batches = _Batches(self._redis)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._batches.aclose()
        await self._redis.aclose()

    async def reachable(self) -> bool:
        """For readiness; never raises SessionsUnavailable."""
        try:
            await self._ask("PING")
        except SessionsUnavailable:
            return False
        return True

    # ---- tickets ---------------------------------------------------------------------------------

    async def mint_ticket(
        self, principal: credentials.Principal, origin: str | None, now: float
    ) -> str:
        """A one-time stand-in for a credential, usable as a WebSocket subprotocol. Never outlives
        the credential by more than a second."""
        ticket = secrets.token_urlsafe(16)
        stored = _Ticket(
            principal.issuer,
            principal.subject,
            principal.tenant,
            sorted(principal.scopes),
            principal.expires_at,
            origin,
        )
        life_s = min(TICKET_TTL_S, max(1.0, principal.expires_at - now))
        await self._ask(
            "SET",
            _ticket_key(ticket),
            msgspec.json.encode(stored),
            "PX",
            _ms(life_s),
            "NX",
            patient=True,
        )
        return ticket

    async def take_ticket(self, ticket: str, origin: str | None) -> credentials.Principal:
        """Consumes the ticket, also when it is refused. Raises credentials.InvalidCredential."""
        if _TICKET.fullmatch(ticket) is None:
            raise credentials.InvalidCredential(credentials.Reason.TICKET)
        value = await self._ask("GETDEL", _ticket_key(ticket), patient=True)
        try:
            stored = msgspec.json.decode(value or b"", type=_Ticket)
        except msgspec.DecodeError as error:
            raise credentials.InvalidCredential(credentials.Reason.TICKET) from error
        if stored.origin != origin:
            raise credentials.InvalidCredential(credentials.Reason.TICKET_ORIGIN)
        return credentials.Principal(
            stored.issuer,
            stored.subject,
            stored.tenant,
            frozenset(stored.scopes),
            stored.expires_at,
        )

    # ---- conversation sessions -------------------------------------------------------------------

    async def put_turn(self, rid: str, state: bytes) -> bool:
        """False when the state is too big to be worth caching: it is rebuilt from the log when
        needed."""
        if len(state) > MAX_SESSION_BYTES:
            return False
        await self._ask("SET", f"session:{rid}", state, "PX", _ms(SESSION_IDLE_S))
        return True

    async def get_turn(self, rid: str) -> bytes | None:
        """Reading counts as use: the idle time starts anew."""
        value: bytes | None = await self._ask("GETEX", f"session:{rid}", "PX", _ms(SESSION_IDLE_S))
        return value

    async def drop_turn(self, rid: str) -> None:
        await self._ask("DEL", f"session:{rid}")

    # ---- idempotency -----------------------------------------------------------------------------

    async def claim_key(self, principal_key: str, key: str, rid: str, ttl_s: float) -> str:
        """The response id that owns `key`: ours if we came first, else the first one's."""
        value: bytes = await self._ask(
            "EVAL", _CLAIM, 1, _idempotency_key(principal_key, key), rid, _ms(ttl_s)
        )
        return value.decode()

    async def release_key(self, principal_key: str, key: str, rid: str) -> None:
        """After a submission that certainly failed, so that a retry is not attached to a response
        that will never exist."""
        await self._ask("EVAL", _RELEASE, 1, _idempotency_key(principal_key, key), rid)

    # ---- prompt-prefix cache metadata ------------------------------------------------------------

    async def publish_prefix(
        self, pool: str, digests: Sequence[str], partition: int, cached_tokens: int, worker: str
    ) -> None:
        """`digests` longest first: the chain of prefix digests that the engine of `partition` now
        holds."""
        if not digests:
            return
        value = msgspec.json.encode(_Prefix(partition, cached_tokens, worker))
        newest = digests[:MAX_DIGESTS_PER_CALL]
        await self._ask(
            "EVAL",
            _PUBLISH,
            1,
            _prefix_index(pool),
            _ms(PREFIX_TTL_S),
            MAX_PREFIXES_PER_POOL,
            value,
            *newest,
        )

    async def lookup_prefix(self, pool: str, digests: Sequence[str]) -> PrefixHit | None:
        """`digests` longest first; the longest one known wins."""
        asked = digests[:MAX_DIGESTS_PER_CALL]
        if not asked:
            return None
        found = await self._ask("MGET", *(f"{_prefix_index(pool)}:{digest}" for digest in asked))
        for position, value in enumerate(found):
            prefix = _decoded(value, _Prefix)
            if prefix is not None:
                return PrefixHit(prefix.partition, len(digests) - position)
        return None

    # ---- workers ---------------------------------------------------------------------------------

    async def heartbeat(
        self, pool: str, worker_name: str, info: dict[str, Any], ttl_s: float = HEARTBEAT_TTL_S
    ) -> None:
        """`info`: state (loading, ready, draining), capacity, running, queued, tokens_per_s,
        partitions ..."""
        await self._ask(
            "EVAL",
            _HEARTBEAT,
            1,
            _workers_key(pool),
            worker_name,
            _ms(ttl_s),
            msgspec.json.encode(info),
        )

    async def workers(self, pool: str) -> list[dict[str, Any]]:
        """Every worker whose last beat has not run out, by name, each as its `info` plus `name`."""
        flat: list[bytes] = await self._ask("EVAL", _WORKERS, 1, _workers_key(pool))
        pairs = zip(flat[::2], flat[1::2], strict=True)
        beats = [
            (name.decode(errors="replace"), _decoded(info, dict[str, Any])) for name, info in pairs
        ]
        return [
            {**info, "name": name}
            for name, info in sorted(beats, key=lambda beat: beat[0])
            if info is not None
        ]

    async def forget_worker(self, pool: str, worker_name: str) -> None:
        """A worker that leaves in order says so instead of running out."""
        await self._ask("HDEL", _workers_key(pool), worker_name)

    # ---- revocation, rates -----------------------------------------------------------------------

    async def revoke(self, principal_key: str, ttl_s: float) -> None:
        """`ttl_s`: at least the longest lifetime a credential of this principal can still have."""
        await self._ask("SET", f"revoked:{_digest(principal_key)}", b"1", "PX", _ms(ttl_s))

    async def is_revoked(self, principal_key: str) -> bool:
        """With Redis away this raises; whether that lets the caller in or not is stated by each
        deployment, never guessed here."""
        return bool(await self._ask("EXISTS", f"revoked:{_digest(principal_key)}"))

    async def take(
        self,
        principal_key: str,
        cost: float,
        rate: float,
        burst: float,
        now: float | None = None,
        kind: str = "requests",
    ) -> Taken:
        """One token bucket per principal and kind: `rate` per second up to `burst`. A cost above
        `burst` empties a full bucket, else it could never be paid. `now` is for tests; without it
        the server's clock counts, which all gateways share."""
        if not (rate > 0 and burst > 0 and cost >= 0):
            raise ValueError(f"no such bucket: cost {cost}, rate {rate}, burst {burst}")
        bucket = f"rate:{kind}:{_digest(principal_key)}"
        allowed, wait, remaining = await self._ask(
            "EVAL",
            _TAKE,
            1,
            bucket,
            min(cost, burst),
            rate,
            burst,
            "" if now is None else repr(now),
        )
        return Taken(bool(allowed), float(wait), float(remaining))

    # ---- how every call is made ------------------------------------------------------------------

    async def _ask(self, *command: Any, patient: bool = False) -> Any:
        if self._clock() < self._away_until and not patient:
            raise SessionsUnavailable("away a moment ago")
        try:
            async with asyncio.timeout(self._timeout_s * (PATIENCE if patient else 1)):
                answer = await self._batches.call(command)
        except (redis.ConnectionError, redis.TimeoutError, OSError, TimeoutError) as error:
            telemetry.REDIS_FAILURES.inc()
            self._away_until = self._clock() + AWAY_S
            if not self._away:
                telemetry.log(telemetry.Action.REDIS_AWAY, error=type(error).__name__)
            self._away = True
            raise SessionsUnavailable(type(error).__name__) from error
        except redis.RedisError as error:  # an answer, if not the one wanted
            telemetry.REDIS_FAILURES.inc()
            raise SessionsUnavailable(type(error).__name__) from error
        if self._away:
            telemetry.log(telemetry.Action.REDIS_BACK)
        self._away = False
        return answer


def _decoded(value: bytes | None, type_: Any) -> Any:
    """None for what is missing or not ours: a cache entry that does not parse is no entry."""
    try:
        return msgspec.json.decode(value or b"", type=type_)
    except msgspec.DecodeError:
        return None


def _digest(*parts: str) -> str:
    """Each part is hashed by itself first, so that no two lists of parts run together."""
    return hashlib.sha256(
        b"".join(hashlib.sha256(part.encode("utf-8", "surrogatepass")).digest() for part in parts)
    ).hexdigest()[:40]


def _ticket_key(ticket: str) -> str:
    return f"ticket:{_digest(ticket)}"


def _idempotency_key(principal_key: str, key: str) -> str:
    return f"idem:{_digest(principal_key, key)}"


def _prefix_index(pool: str) -> str:
    return f"prefix:{{{pool}}}"


def _workers_key(pool: str) -> str:
    return f"workers:{{{pool}}}"


def _ms(seconds: float) -> int:
    return max(1, math.ceil(seconds * 1000))
