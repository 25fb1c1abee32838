"""Redis may be away; what is known of the engines is a hint."""

from __future__ import annotations

from typing import Any

import pytest

from gateway import cache
from gateway.load import worker_registry
from tailrace.protocol import ids
from tailrace.store.prefixes import holder_name
from tailrace.store.redis_store import StoreUnavailable
from tests.support import cases

FIRST = ids.mint(ids.Address(b"abcd", 3, 7), b"0" * 11)


class Store:
    """A Redis that answers by the key's kind, or is away."""

    def __init__(self) -> None:
        self.away = False

    async def execute(self, *command: Any, patient: bool = False) -> Any:
        if self.away:
            raise StoreUnavailable("away")
        key = command[3] if command[0] == "EVAL" else command[1]
        return {
            "session": b"turn",
            "idem": FIRST.encode(),
            "prefix": [None, f"{holder_name('w/1')} 64 1\n{holder_name('w/2')} 32 1".encode()],
            "rate": (0, b"3.0", b"0.0"),
        }[key.partition(":")[0]]


@pytest.fixture
def parts() -> tuple[Store, cache.Cache]:
    store = Store()
    return store, cache.Cache(store)  # type: ignore[arg-type]


async def test_answers_are_passed_on(parts: Any) -> None:
    _, cached = parts
    assert await cached.turn("r") == b"turn"
    assert await cached.claim_key("p", "k", "mine", 1.0) == FIRST
    assert await cached.prefix_tokens("pool", ["short", "long"], ["w/1", "w/3"]) == {"w/1": 64}
    assert (await cached.consume_tokens("p", 1, 1, 1, "requests")).allowed is False


async def test_away_everything_answers_like_an_empty_cache_and_rates_fail_open(parts: Any) -> None:
    store, cached = parts
    store.away = True
    assert await cached.turn("r") is None
    assert await cached.claim_key("p", "k", "mine", 1.0) == "mine"
    assert await cached.prefix_tokens("pool", ["d"], ["w/1"]) == {}
    assert await cached.consume_tokens("p", 1, 1, 1, "requests") is None
    assert await cached.workers("pool") is None


async def test_what_may_be_evicted_lies_apart_from_what_must_stay() -> None:
    """A full cache must not throw away keys, rates, heartbeats or counts."""

    class Seen(Store):
        """Notes the kinds of keys that it is asked for."""

        def __init__(self) -> None:
            super().__init__()
            self.kinds: set[str] = set()

        async def execute(self, *command: Any, patient: bool = False) -> Any:
            key = str(command[3] if command[0] == "EVAL" else command[1])
            self.kinds.add(key.partition(":")[0])
            raise StoreUnavailable("not needed")

    stays, evictable = Seen(), Seen()
    cached = cache.Cache(stays, evictable)  # type: ignore[arg-type]
    await cached.turn("r")
    await cached.put_turn("o", "r", b"state")
    await cached.prefix_tokens("pool", ["d"], ["w"])
    await cached.claim_key("p", "k", "mine", 1.0)
    await cached.consume_tokens("p", 1, 1, 1, "requests")
    await cached.settle_tokens("p", 1, 1, 1, "tokens")
    await cached.workers("pool")
    await cached.publish_running("g", {"p": 1})
    assert evictable.kinds == {"session", "prefix"}
    assert stays.kinds == {"idem", "rate", "workers", "running"}


def test_only_ready_workers_serve_partitions_and_what_is_no_number_is_none() -> None:
    def served(*workers: dict[str, Any]) -> frozenset[int]:
        return worker_registry.served_partitions(workers)

    assert served() == frozenset()
    assert served({"state": "draining", "partitions": [1]}) == frozenset()
    assert served(
        {"state": "ready", "partitions": [1, "2", True, None, 3]},
        {"state": "ready", "partitions": "45"},
        {"state": "ready"},
    ) == {1, 3}


@cases.each(
    ("workers", "state", "detail"),
    [
        ([], "none", ""),
        ([{"state": "loading", "detail": "reading weights"}], "loading", "reading weights"),
        ([{"state": "loading"}, {"state": "ready", "detail": "d"}], "ready", "d"),
        ([{"state": "draining"}], "none", ""),
        ([{"state": "failed", "detail": "no model"}], "none", "no model"),
        ([{}], "none", ""),
    ],
)
def test_engine_state(workers: list[dict[str, Any]], state: str, detail: str) -> None:
    assert worker_registry.engine_state(workers) == {
        "state": state,
        "workers": len(workers),
        "detail": detail,
    }
