"""aiokafka's private parts: they are as expected, one module uses them, and there is a fallback."""

from __future__ import annotations

import ast
import asyncio
import importlib
import re
from pathlib import Path
from typing import Any

import aiokafka
import pytest

from tailrace import log, private_parts, telemetry
from tailrace.log import aiokafka_internals, client_api
from tests.support import cases

ROOM = Path(log.__file__).parent
LIBRARY = Path(aiokafka.__file__).parent


def test_the_installed_aiokafka_has_every_part_that_is_used() -> None:
    assert private_parts.changes(aiokafka_internals.PARTS) == []


def test_a_part_that_was_renamed_is_named() -> None:
    class Sender:
        def __init__(self) -> None:
            self._task = None

    def load(name: str) -> Any:
        if name != "aiokafka.producer.sender":
            return importlib.import_module(name)
        whole = importlib.import_module(name)
        handler = whole.SendProduceReqHandler
        return type("module", (), {"Sender": Sender, "SendProduceReqHandler": handler})

    assert private_parts.changes(aiokafka_internals.PARTS, load) == [
        "Sender.__init__ does not use _sender_task",
        "aiokafka.producer.sender has no Sender.sender_task",
    ]


@cases.each("beginning", aiokafka_internals.AWAY_MESSAGES)
def test_aiokafka_still_logs_the_texts_that_are_folded(beginning: str) -> None:
    sources = (path.read_text() for path in LIBRARY.rglob("*.py"))
    assert any(f'"{beginning}' in source for source in sources)


def test_no_other_module_touches_a_private_attribute_of_another_object() -> None:
    found = [
        f"{path.name}:{node.lineno} {ast.unparse(node)}"
        for path in ROOM.glob("*.py")
        if path.name != "aiokafka_internals.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and re.match(r"_[a-z]", node.attr)
        and ast.unparse(node.value) not in ("self", "cls")
    ]
    assert found == []


@pytest.mark.parametrize(
    ("changed", "public_api", "expected", "because"),
    [
        ([], False, aiokafka_internals.InternalApi, None),
        ([], True, client_api.PublicApi, "TAILRACE_KAFKA_PUBLIC_API"),
        (["Sender has no task"], False, client_api.PublicApi, "aiokafka 0.15 is not as 0.14"),
    ],
)
def test_a_change_or_the_operator_turns_the_private_parts_off_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    changed: list[str],
    public_api: bool,
    expected: type[object],
    because: str | None,
) -> None:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(telemetry, "log", lambda action, **given: lines.append({**given}))
    chosen = client_api.choose("0.15", changed, public_api=public_api)
    assert isinstance(chosen, expected)
    assert len(lines) == (because is not None)
    if because is not None:
        assert because in lines[0]["because"]
        assert lines[0]["changed"] == changed


class Connections:
    """What a client leaves open when its `stop` ends early."""

    def __init__(self) -> None:
        self.open = True

    async def close(self) -> None:
        self.open = False


class Unstoppable:
    """A client of aiokafka whose broker is away: `stop` ends by the cancellation of a task of its
    own, and a second one does nothing."""

    def __init__(self) -> None:
        self.client = self._client = Connections()

    async def stop(self) -> None:
        sleeping = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        sleeping.cancel()
        await sleeping


@pytest.mark.parametrize("api", [client_api.PublicApi(), aiokafka_internals.InternalApi()])
async def test_a_stop_that_is_cut_off_closes_what_is_left_and_cancels_no_caller(
    api: client_api.ClientApi,
) -> None:
    consumer: Any = Unstoppable()
    await api.stop_consumer(consumer, 5)
    assert not consumer.client.open


async def test_a_producer_whose_stop_is_cut_off_is_closed_too() -> None:
    producer: Any = Unstoppable()
    await client_api.PublicApi().discard_producer(producer)
    assert not producer.client.open


async def test_a_caller_that_is_cancelled_stays_cancelled() -> None:
    class Slow(Unstoppable):
        async def stop(self) -> None:
            await asyncio.sleep(60)

    consumer: Any = Slow()
    stopping = asyncio.create_task(client_api.PublicApi().stop_consumer(consumer, 60))
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait({stopping})
    assert stopping.cancelled()
