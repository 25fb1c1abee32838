"""Marks: which records they name. The comparison with a log: `log_contract.MarkContract`."""

from __future__ import annotations

from tailrace import log
from tailrace.protocol import topics
from tests.support import cases, memory_log


def record(key: bytes | None, value: bytes | None, forged: str = "") -> log.Record:
    return log.Record(topics.HISTORY, 0, 7, 1000, key, value, [], forged)


def test_a_mark_names_its_record_and_no_other_at_the_same_offset() -> None:
    ours = record(b"k", b"v")
    mark = log.Mark.from_record(ours)
    assert mark.names(ours)
    assert log.Mark.parse(str(mark)) == mark
    for other in (
        ours._replace(timestamp=1001),
        ours._replace(offset=8),
        record(b"k", b"w"),
        record(b"kv", b""),
        record(b"", b"kv"),
        record(b"k", None),
        record(None, b"kv"),
        record(b"kv", None),
    ):
        assert not mark.names(other), other
    assert not log.Mark.from_record(record(b"k", None)).names(record(b"k", b""))


def test_a_mark_of_a_record_that_is_forged_for_one_of_two_processes_names_it() -> None:
    """Keys are rotated: a record whose value is withheld today may be readable tomorrow."""
    plain, forged = record(b"k", b"v"), record(b"k", None, "unsigned")
    assert log.Mark.from_record(plain).names(forged)
    assert log.Mark.from_record(forged).names(plain)
    assert log.Mark.parse(str(log.Mark.from_record(forged))) == log.Mark.from_record(forged)
    assert not log.Mark.from_record(forged).names(plain._replace(timestamp=1001))


@cases.each("text", ["", "1:2", "1:2:3:4", "x:1:0"])
def test_a_text_that_says_no_mark_is_none(text: str) -> None:
    assert log.Mark.parse(text) is None


async def test_a_log_that_grew_again_after_it_was_rolled_back_is_found() -> None:
    broker = memory_log.MemoryLog("one", 1)
    for value in (b"0", b"1", b"2"):
        broker.put(topics.HISTORY, 0, b"k", value)
    broker.skip_to(topics.HISTORY, 0, 5)
    mark = log.Mark.from_record(broker.records(topics.HISTORY, 0)[-1])

    async def rolled_back(at: log.Position) -> bool:
        clients = broker.offsets(), broker.replays(1)
        return bool(await log.rolled_back(*clients, topics.HISTORY, {0: at}))

    assert not await rolled_back(log.Position(5, mark))
    hole = log.Mark(3, 0, "0")  # what was compacted away cannot be compared
    assert not await rolled_back(log.Position(5, hole))
    broker.roll_back(topics.HISTORY, 0, 2)
    assert await rolled_back(log.Position(5, mark))
    for value in (b"two", b"3", b"4", b"5"):
        broker.put(topics.HISTORY, 0, b"k", value)
    assert await rolled_back(log.Position(5, mark))
    assert not await rolled_back(log.Position(5))  # without a mark there is only the end
