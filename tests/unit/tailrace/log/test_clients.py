"""Making clients of aiokafka, and asking them."""

from __future__ import annotations

import aiokafka.errors
import pytest

from tailrace.log import clients


async def test_an_admin_client_is_asked_again_once_when_its_connection_has_ended() -> None:
    asked = 0

    async def ask(failures: int) -> str:
        nonlocal asked
        asked += 1
        if asked <= failures:
            raise aiokafka.errors.KafkaConnectionError("Connection at h:1 closed")
        return "answer"

    assert await clients.retry_once(lambda: ask(1)) == "answer"
    asked = 0
    with pytest.raises(aiokafka.errors.KafkaConnectionError):
        await clients.retry_once(lambda: ask(2))
