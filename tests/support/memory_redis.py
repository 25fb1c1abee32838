"""Redis in memory, as far as the gateway asks it: the seam is `RedisStore.execute`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace.store.redis_store import RedisStore, StoreUnavailable


class MemoryRedis(RedisStore):
    """A store whose commands work on a dictionary. Nothing expires.

    Attributes:
        away: every command fails while it is set.
        values, hashes: what Redis holds, by key.
        buckets: tokens left, by key; absent: the bucket is full.
    """

    def __init__(self) -> None:
        self.away = False
        self.values: dict[str, bytes] = {}
        self.hashes: dict[str, dict[str, bytes]] = {}
        self.buckets: dict[str, float] = {}

    async def aclose(self) -> None:
        """Nothing is open."""

    async def execute(self, *command: Any, patient: bool = False) -> Any:
        """The answer to one command."""
        if self.away:
            raise StoreUnavailable("away")
        answers: dict[str, Callable[..., Any]] = {
            "PING": lambda: b"PONG",
            "GET": self.values.get,
            "GETEX": lambda key, *_: self.values.get(key),
            "SET": self._set,
            "DEL": lambda key: self.values.pop(key, None) is not None,
            "GETDEL": lambda key: self.values.pop(key, None),
            "MGET": lambda *keys: [self.values.get(key) for key in keys],
            "HMGET": lambda key, *fields: [self.hashes.get(key, {}).get(f) for f in fields],
            "EVAL": self._eval,
        }
        return answers[command[0]](*command[1:])

    def _set(self, key: str, value: bytes | str, *_: Any) -> None:
        self.values[key] = value if isinstance(value, bytes) else value.encode()

    def _eval(self, _script: str, _keys: int, key: str, *args: Any) -> Any:
        """The scripts, told apart by key and number of arguments."""
        kind = key.partition(":")[0]
        if kind == "session":
            return self._set(key, args[2])
        if kind == "idem":
            if len(args) == 4:
                return self.values.setdefault(key, str(args[1]).encode())
            rid = str(args[0]).encode()
            return int(self.values.get(key) == rid and self.values.pop(key) is not None)
        if kind == "rate" and len(args) == 3:
            difference, _, burst = map(float, args)
            left = self.buckets.get(key, burst) - difference
            self.buckets[key] = max(-burst, min(burst, left))
            return None
        if kind == "rate":
            return self._consume(key, *map(float, args[:3]))
        if kind == "answer":
            return self._set(f"{key}:{args[3]}", args[2])
        if kind == "queue":
            return self._tell_queue(key, *args[2:])
        if kind == "hedges":
            held = self.hashes.setdefault(key, {})
            if args:
                held[args[0]] = args[2]
            return [
                part for name, value in held.items() for part in (name.encode(), b"1000", value)
            ]
        assert kind in ("workers", "running", "breakers"), key
        return []

    def _tell_queue(self, key: str, told: str, gone: str) -> None:
        held = self.hashes.setdefault(key, {})
        for rid in gone.split():
            held.pop(rid, None)
        for line in told.splitlines():
            rid, _, place = line.partition(" ")
            held[rid] = place.encode()

    def _consume(self, key: str, cost: float, rate: float, burst: float) -> tuple[int, str, str]:
        left = self.buckets.get(key, burst)
        if left < cost:
            return 0, str((cost - left) / rate), str(left)
        self.buckets[key] = left - cost
        return 1, "0", str(left - cost)
