"""Token buckets: the rate limits of principals.

key      rate:<kind>:<hash of the principal>
value    hash: tokens left, and when that was true
lives    until the bucket is full again
writer   gateway
if lost  a full bucket
"""

import contextlib
import math
from typing import Final, NamedTuple

from tailrace.store.redis_store import RedisStore, StoreUnavailable, digest

# ARGV: cost, rate per second, burst, now in seconds or ''.
# Returns allowed, seconds to wait, tokens left. The last two are text: Lua would cut fractions off.
_CONSUME: Final = """
local cost, rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local now = tonumber(ARGV[4])
if not now then
  local clock = redis.call('TIME')
  now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
end
local stored = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(stored[1]) or burst, tonumber(stored[2]) or now
-- Values that no bucket can have (also: not a number) are those of a full one.
if not (math.abs(tokens) < 1e15) then tokens = burst end
if not (math.abs(at - now) < 86400) then at = now end
if now < at then now = at end
tokens = math.min(burst, tokens + (now - at) * rate)
local allowed, wait = 0, 0
if tokens >= cost then
  tokens, allowed = tokens - cost, 1
else
  wait = (cost - tokens) / rate
end
redis.call(
  'HSET', KEYS[1], 'tokens', string.format('%.9f', tokens), 'at', string.format('%.6f', now)
)
redis.call('PEXPIRE', KEYS[1], math.ceil((burst - tokens) / rate * 1000) + 1000)
return {allowed, string.format('%.6f', wait), string.format('%.6f', tokens)}
"""


# ARGV: tokens to take (to give back, if negative), rate per second, burst. A bucket may owe at most
# its burst.
_SETTLE: Final = """
local difference, rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local clock = redis.call('TIME')
local stored = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = tonumber(stored[1]) or burst
if not (math.abs(tokens) < 1e15) then tokens = burst end
tokens = math.max(-burst, math.min(burst, tokens - difference))
local at = stored[2] or string.format('%d.%06d', clock[1], clock[2])
redis.call('HSET', KEYS[1], 'tokens', string.format('%.9f', tokens), 'at', at)
redis.call('PEXPIRE', KEYS[1], math.ceil((burst - tokens) / rate * 1000) + 1000)
"""


class Verdict(NamedTuple):
    """The answer of a bucket. `retry_after_s` is 0 when allowed; `remaining` counts tokens."""

    allowed: bool
    retry_after_s: float
    remaining: float


class TokenBuckets:
    """One bucket per principal and kind, shared by all gateways."""

    def __init__(self, redis: RedisStore) -> None:
        self._redis = redis

    async def consume_tokens(
        self,
        principal_key: str,
        cost: float,
        rate: float,
        burst: float,
        now: float | None = None,
        kind: str = "requests",
    ) -> Verdict:
        """Consume `cost` tokens of a bucket that fills by `rate` per second up to `burst`.

        A cost above `burst` empties a full bucket, because otherwise it could never be paid. `now`
        in seconds is for tests; without it the server's clock counts, which all gateways share.

        Raises:
            ValueError: the bucket is impossible.
            StoreUnavailable: no answer.
        """
        if not (rate > 0 and burst > 0 and cost >= 0):
            raise ValueError(f"no such bucket: cost {cost}, rate {rate}, burst {burst}")
        answer = await self._redis.execute(
            "EVAL",
            _CONSUME,
            1,
            f"rate:{kind}:{digest(principal_key)}",
            min(cost, burst),
            rate,
            burst,
            "" if now is None else repr(now),
        )
        return _parse(answer)

    async def settle(
        self, principal_key: str, difference: float, rate: float, burst: float, kind: str
    ) -> None:
        """Charge `difference` more tokens (refund, if negative) after the real cost is known. The
        bucket may owe tokens afterwards.

        Raises:
            StoreUnavailable: no answer.
        """
        key = f"rate:{kind}:{digest(principal_key)}"
        await self._redis.execute("EVAL", _SETTLE, 1, key, difference, rate, burst)


def _parse(answer: object) -> Verdict:
    """The script's answer.

    Raises:
        StoreUnavailable: it is not an answer of the script.
    """
    match answer:
        case [int(allowed), bytes() | str() as wait, bytes() | str() as remaining]:
            with contextlib.suppress(ValueError):
                verdict = Verdict(bool(allowed), float(wait), float(remaining))
                if math.isfinite(verdict.retry_after_s) and math.isfinite(verdict.remaining):
                    return verdict
    raise StoreUnavailable("no answer of a token bucket")
