"""Redis may be away; what is known of the engines is a hint."""

from __future__ import annotations

from typing import Any

import pytest

from gateway import cache, worker_registry
from tailrace.store import redis_store


class Store:
    """Sessions that answer, or do not."""

    def __init__(self) -> None:
        self.away = False

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.away:
                raise redis_store.SessionsUnavailable("away")
            return {
                "get_turn": b"turn",
                "claim_key": "first",
                "lookup_prefix": redis_store.PrefixHit(5, 2),
                "take": redis_store.Taken(False, 3.0, 0.0),
            }.get(name)

        return call


@pytest.fixture
def parts() -> tuple[Store, cache.Cache]:
    store = Store()
    return store, cache.Cache(store)  # type: ignore[arg-type]


async def test_answers_are_passed_on(parts: Any) -> None:
    _, cached = parts
    assert await cached.turn("r") == b"turn"
    assert await cached.claim_key("p", "k", "mine", 1.0) == "first"
    assert await cached.warm_partition("pool", ["short", "long"]) == 5
    assert (await cached.take("p", 1, 1, 1, "requests")).allowed is False


async def test_away_everything_answers_like_an_empty_cache_and_rates_fail_open(parts: Any) -> None:
    store, cached = parts
    store.away = True
    assert await cached.turn("r") is None
    assert await cached.claim_key("p", "k", "mine", 1.0) == "mine"
    assert await cached.warm_partition("pool", ["d"]) is None
    assert await cached.take("p", 1, 1, 1, "requests") is None
    assert await cached.workers("pool") == []


@pytest.mark.parametrize(
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
