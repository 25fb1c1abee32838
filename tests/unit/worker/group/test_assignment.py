"""The partitions of one rebalance: where to fold from, what to commit."""

from __future__ import annotations

from tailrace.protocol import topics
from tests.support import cases
from tests.support.memory_log import MemoryLog
from worker.group.assignment import Assignment, find_fold_starts

GROUP = topics.group("default")
NAMES = [topics.requests("default", priority) for priority in topics.CLASSES]
INTERACTIVE, BATCH = NAMES


def assigned(partitions: int = 1) -> Assignment:
    return Assignment((name, p) for name in NAMES for p in range(partitions))


def filled(tokens: int = 10) -> MemoryLog:
    """A log of one partition with so many token records."""
    memory = MemoryLog(partitions=1)
    for _ in range(tokens):
        memory.put(topics.TOKENS, 0, b"k", b"v")
    return memory


async def starts(memory: MemoryLog) -> int:
    found = await find_fold_starts(assigned(), memory.offsets(), GROUP, NAMES)
    return found[0]


async def test_a_fold_starts_at_the_lowest_offset_that_a_commit_of_any_class_names() -> None:
    memory = filled()
    memory.committed_offsets[GROUP] = {(INTERACTIVE, 0): (5, "7"), (BATCH, 0): (2, "4")}
    assert await starts(memory) == 4


@cases.each("metadata", [None, "", "not ours"])
async def test_a_fold_starts_at_the_beginning_where_requests_exist_and_no_commit_names_an_offset(
    metadata: str | None,
) -> None:
    memory = filled()
    for _ in range(2):
        memory.put(INTERACTIVE, 0, b"k", b"v")
    memory.delete_below(topics.TOKENS, 0, 3)
    if metadata is not None:
        memory.committed_offsets[GROUP] = {(INTERACTIVE, 0): (1, metadata)}
    assert await starts(memory) == 3


async def test_a_fold_starts_at_the_end_where_no_request_was_ever_made() -> None:
    assert await starts(filled()) == 10


async def test_the_trackers_learn_what_the_group_has_committed() -> None:
    memory = filled()
    memory.committed_offsets[GROUP] = {(INTERACTIVE, 0): (5, "7")}
    assignment = assigned()
    await find_fold_starts(assignment, memory.offsets(), GROUP, NAMES)
    interactive, batch = assignment.get((INTERACTIVE, 0)), assignment.get((BATCH, 0))
    assert interactive is not None
    assert batch is not None
    assert (interactive.tracker.start, batch.tracker.start) == (5, -1)
    assert assignment.moved == {}


async def test_an_offset_that_somebody_else_has_moved_is_none() -> None:
    memory = filled()
    for _ in range(3):
        memory.put(INTERACTIVE, 0, b"k", b"v")
    memory.delete_below(INTERACTIVE, 0, 1)
    memory.committed_offsets[GROUP] = {(INTERACTIVE, 0): (3, ""), (BATCH, 0): (0, "4")}
    assignment = assigned()
    starts = await find_fold_starts(assignment, memory.offsets(), GROUP, NAMES)
    assert starts == {0: 0}
    assert assignment.moved == {(INTERACTIVE, 0): 1}
    interactive = assignment.get((INTERACTIVE, 0))
    assert interactive is not None
    assert interactive.tracker.start == -1


async def ignore(_partitions: set[tuple[str, int]]) -> None:
    """A member that is told and does nothing."""


async def test_only_opened_partitions_are_committed_and_each_commit_once() -> None:
    memory = filled()
    member = memory.group_consumer(GROUP, NAMES, assigned=ignore, revoked=ignore)
    await member.start()
    assignment = assigned()
    for _, each in assignment:
        each.tracker.begin(0)
        each.tracker.finish(0)
    opened = assignment.get((INTERACTIVE, 0))
    assert opened is not None
    opened.opened = True

    await assignment.commit(member, lambda _partition: 9)

    assert memory.committed_offsets[GROUP] == {(INTERACTIVE, 0): (1, "9")}
    assert opened.tracker.next_commit(9) is None
    await member.stop()


async def test_a_commit_that_the_group_refused_is_due_again() -> None:
    memory = MemoryLog(partitions=2)
    members = [
        memory.group_consumer(GROUP, NAMES, assigned=ignore, revoked=ignore) for _ in range(2)
    ]
    for member in members:
        await member.start()  # so that the first has lost partition 1
    assignment = Assignment([(INTERACTIVE, 1)])
    each = assignment.get((INTERACTIVE, 1))
    assert each is not None
    each.opened = True
    each.tracker.skip(0)
    await assignment.commit(members[0], lambda _partition: 0)
    assert each.tracker.next_commit(0) is not None
    assert memory.committed_offsets.get(GROUP, {}) == {}


async def test_records_of_assigned_partitions_that_were_not_read_are_counted() -> None:
    memory = MemoryLog(partitions=1)
    assignment = assigned()
    each = assignment.get((BATCH, 0))
    assert each is not None
    assert await assignment.unread(memory.offsets(), BATCH) == 0
    for _ in range(3):
        memory.put(BATCH, 0, b"k", b"v")
    assert await assignment.unread(memory.offsets(), BATCH) == 3
    assert await assignment.unread(memory.offsets(), INTERACTIVE) == 0
    each.tracker.begin(0)
    assert await assignment.unread(memory.offsets(), BATCH) == 2
    assert await Assignment().unread(memory.offsets(), BATCH) == 0


def test_an_ended_assignment_holds_no_more_and_its_trackers_are_invalid() -> None:
    assignment = assigned(2)
    assert assignment.numbers == [0, 1]
    assert assignment.holds()
    assignment.end()
    assert not assignment.holds()
    assert not any(each.tracker.valid for _, each in assignment)
