"""Cached answers: the ids that a model generated for a request.

key      answer:{pool}:<digest>       id of the response, its ids, tokens of its prompt, and a
                                      digest of what made them, as JSON
         answer:{pool}                sorted set of the pool's digests, by time
lives    as long as the pool says (`cached_answers`)
writer   worker
if lost  requests are answered by the engine, as without

The digest is that of the request (`tailrace.protocol.equal_requests`). Gateways check whether an
answer exists.
"""

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from tailrace.protocol import records
from tailrace.store import indexed
from tailrace.store.redis_store import RedisStore, decode

MAX_PER_POOL: Final = 10_000
MAX_IDS: Final = 8_192  # of one answer: about 90 KB of JSON; a longer one is not cached


class Answer(NamedTuple):
    """An answer. `rid`: of the response that it was made for. `prompt_tokens`: length of its
    prompt. `made_by`: digest of what else it follows from (`worker.serving.cached_answers`)."""

    rid: str
    ids: Sequence[int]
    prompt_tokens: int
    made_by: str


class _Answer(msgspec.Struct, frozen=True):
    rid: records.Name
    ids: Annotated[list[records.TokenId], msgspec.Meta(min_length=1, max_length=MAX_IDS)]
    prompt_tokens: records.Count
    made_by: str


class Answers:
    """Every call raises StoreUnavailable."""

    def __init__(self, redis: RedisStore, max_per_pool: int = MAX_PER_POOL) -> None:
        self._redis = redis
        self._max_per_pool = max_per_pool

    async def find(self, pool: str, digest: str) -> Answer | None:
        """The answer under this digest, or None."""
        answer = decode(await self._redis.execute("GET", f"{_index(pool)}:{digest}"), _Answer)
        if answer is None:
            return None
        return Answer(answer.rid, answer.ids, answer.prompt_tokens, answer.made_by)

    async def store(self, pool: str, digest: str, answer: Answer, ttl_s: float) -> None:
        """Store an answer of at most MAX_IDS ids. It replaces another one under this digest."""
        ids = list(answer.ids)
        value = msgspec.json.encode(_Answer(answer.rid, ids, answer.prompt_tokens, answer.made_by))
        await indexed.publish(
            self._redis, _index(pool), [digest], value, ttl_s=ttl_s, most=self._max_per_pool
        )


def _index(pool: str) -> str:
    return f"answer:{{{pool}}}"
