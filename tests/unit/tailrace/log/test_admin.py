"""Waiting for topics that were made."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.admin import NewTopic

from tailrace.log import admin
from tailrace.protocol import log_words


class Brokers:
    """An admin client of brokers that know each topic after so many questions about it."""

    def __init__(self, **after: int) -> None:
        self.left = after

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def list_topics(self) -> list[str]:
        return []

    async def create_topics(self, new: list[NewTopic]) -> SimpleNamespace:
        return SimpleNamespace(topic_errors=[(each.name, 0, None) for each in new])

    async def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        for name in names:
            self.left[name] -= 1
        return [{"topic": name, "error_code": 3 * (self.left[name] > 0)} for name in names]


async def created(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("aiokafka.admin.AIOKafkaAdminClient", lambda **_: brokers)
    return await admin.create_topics("nowhere:1", list(brokers.left), partitions=1)


async def test_topics_are_asked_for_until_the_brokers_know_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers = Brokers(a=1, b=3)
    assert await created(brokers, monkeypatch) == ["a", "b"]
    assert brokers.left == {"a": 0, "b": 0}


async def test_topics_that_stay_unknown_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "METADATA_TIMEOUT_S", 0.2)
    with pytest.raises(log_words.LogUnavailable, match=r"after 0\.2 s .* not know b$"):
        await created(Brokers(a=1, b=1_000), monkeypatch)
