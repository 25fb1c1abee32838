"""What aiokafka logs while the broker is away becomes two lines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tailrace import telemetry
from tailrace.log import complaints
from tailrace.telemetry import Action
from tests.support import log_contract

CONNECT = "Unable connect to node with id %s: %s"


class Lines:
    """The process's lines."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def lines() -> Iterator[Lines]:
    found = Lines()
    handler = logging.StreamHandler(found.stream)
    handler.setFormatter(telemetry.JsonFormatter("worker", "worker-1"))
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield found
    root.removeHandler(handler)
    root.setLevel(level)


def record(template: str, *given: object) -> logging.LogRecord:
    return logging.LogRecord("aiokafka", logging.ERROR, "", 0, template, given, None)


def test_hundreds_of_complaints_become_one_away_and_one_back() -> None:
    folded = complaints.KafkaComplaints()
    verdicts = [folded.complain(CONNECT, 100 + n / 20) for n in range(400)]
    verdicts += [folded.complain("OffsetCommit failed", 119.95)]
    assert verdicts == [Action.KAFKA_AWAY] + [None] * 400
    assert folded.back(120) is None
    assert folded.back(124.9) is None
    assert folded.back(124.96) == pytest.approx(19.95)
    assert folded.complaints == 401
    assert folded.back(200) is None
    assert folded.complain(CONNECT, 300) is Action.KAFKA_AWAY


def test_another_complaint_is_shown_once_a_minute_and_is_not_called_away() -> None:
    folded = complaints.KafkaComplaints()
    assert folded.complain("Group Coordinator Request failed: %s", 10) is Action.NOTE
    assert folded.complain("Group Coordinator Request failed: %s", 69) is None
    assert folded.complain("Auto offset commit failed: %s", 69) is Action.NOTE
    assert folded.complain("Group Coordinator Request failed: %s", 70) is Action.NOTE
    assert folded.away_since is None


async def test_the_return_is_noticed_without_another_complaint(lines: Lines) -> None:
    handler = complaints.KafkaHandler(quiet_s=0.2)
    for _ in range(50):
        handler.emit(record(CONNECT, 1, "refused"))
    await log_contract.until(lambda: len(lines.read()) == 2, 5)
    away, back = lines.read()
    assert (away["action"], away["reason"]) == (
        "kafka_away",
        "Unable connect to node with id 1: refused",
    )
    assert (back["action"], back["complaints"]) == ("kafka_back", 50)


def test_without_a_loop_the_return_is_noticed_at_the_next_complaint(lines: Lines) -> None:
    now = 100.0
    handler = complaints.KafkaHandler(lambda: now)
    handler.emit(record(CONNECT, 1, "x"))
    now = 200.0
    handler.emit(record("something %s", "else"))
    assert [line["action"] for line in lines.read()] == ["kafka_away", "kafka_back", "note"]
