"""How far a worker reads ahead, and what it keeps."""

from __future__ import annotations

from worker.queue import read_ahead
from worker.queue.commit_tracker import Tracker
from worker.queue.read_ahead import Aside, Footprint, Key, Room, SetAside

FLOOD, ALICE = Key("t", "flood"), Key("t", "alice")


def places(tracker: Tracker, *offsets: int, size: int = 10, partition: int = 0) -> list[Aside]:
    return [Aside(f"r{offset}", partition, offset, size, 10.0, tracker) for offset in offsets]


def set_aside(key: Key, *requests: Aside, into: SetAside | None = None) -> SetAside:
    aside = SetAside() if into is None else into
    for request in requests:
        aside.add(key, request)
    return aside


def test_each_principal_and_class_may_have_so_many_and_others_are_not_touched() -> None:
    room = Room.after(2, [Footprint(FLOOD, 10)] * 2)
    assert not room.admits(FLOOD, 1)
    assert room.admits(ALICE, 1)
    assert room.admits(Key("other class", "flood"), 1)
    assert (room.total, room.total_bytes) == (2, 20)


def test_the_first_request_of_a_principal_is_kept_however_large_and_the_next_by_its_bytes() -> None:
    room = Room(10)
    assert room.admits(FLOOD, 2 * read_ahead.ALL_BYTES)
    room.add(FLOOD, read_ahead.FLOW_BYTES)
    assert not room.admits(FLOOD, 1)
    room.add(Key("t", "many"), read_ahead.ALL_BYTES - read_ahead.FLOW_BYTES)
    assert room.admits(ALICE, 1)
    room.add(ALICE, 1)
    assert not room.admits(ALICE, 1)


def test_all_together_are_bounded_by_count() -> None:
    room = Room.after(
        10_000, [Footprint(Key("t", str(n % 7)), 1) for n in range(read_ahead.MAX_IN_MEMORY)]
    )
    assert not room.admits(Key("t", "1"), 1)
    assert room.admits(ALICE, 1)


def test_batch_requests_leave_room_for_interactive_ones() -> None:
    batch = [
        Key("llm.requests.default.batch", str(n % 7)) for n in range(read_ahead.MAX_IN_MEMORY // 2)
    ]
    urgent = Key("llm.requests.default.interactive", "1")
    room = Room.after(10_000, [Footprint(key, 1) for key in (*batch, urgent)])
    assert not room.admits(batch[0], 1)
    assert room.admits(urgent, 1)
    half = Footprint(batch[1], read_ahead.ALL_BYTES // 2)
    room = Room.after(10_000, [Footprint(batch[0], 1), half, Footprint(urgent, 1)])
    assert not room.admits(batch[0], 1)
    assert room.admits(urgent, 1)


def test_nothing_is_due_while_its_principal_has_no_room_for_a_quarter() -> None:
    aside = set_aside(FLOOD, *places(Tracker(), 5, 6, 7))
    assert aside.next_reread(Room.after(8, [Footprint(FLOOD, 1)] * 7)) is None
    assert len(aside) == 3
    reread = aside.next_reread(Room.after(8, [Footprint(FLOOD, 1)] * 6))
    assert reread is not None
    assert [place.offset for place in reread.requests] == [5, 6]
    assert (len(aside), FLOOD in aside) == (1, True)


def test_who_has_fewest_in_memory_is_due_first() -> None:
    aside = set_aside(FLOOD, *places(Tracker(), 1))
    set_aside(ALICE, *places(Tracker(), 9), into=aside)
    reread = aside.next_reread(Room.after(8, [Footprint(FLOOD, 1)]))
    assert reread is not None
    assert reread.key == ALICE


def test_one_read_is_of_one_partition_and_of_a_bounded_stretch() -> None:
    tracker = Tracker()
    aside = set_aside(
        FLOOD,
        *places(tracker, 1, 2, 2 + read_ahead.MAX_SPAN),
        *places(tracker, 0, partition=1),
        *places(tracker, 3 + read_ahead.MAX_SPAN),
    )
    taken = []
    while (due := aside.next_reread(Room(100))) is not None:
        taken.append((due.partition, [place.offset for place in due.requests]))
    assert taken == [
        (0, [1, 2]),
        (0, [2 + read_ahead.MAX_SPAN]),
        (1, [0]),
        (0, [3 + read_ahead.MAX_SPAN]),
    ]
    assert (len(aside), FLOOD in aside) == (0, False)


def test_no_more_is_read_again_than_there_are_bytes_for() -> None:
    aside = set_aside(FLOOD, *places(Tracker(), 1, 2, 3, size=read_ahead.FLOW_BYTES // 2))
    room = Room(100)
    reread = aside.next_reread(room)
    assert reread is not None
    assert len(reread.requests) == 2
    assert aside.next_reread(room) is None


def test_what_could_not_be_read_stands_in_front_again() -> None:
    aside = set_aside(FLOOD, *places(Tracker(), 1, 2, 3, 4))
    reread = aside.next_reread(Room(2))
    assert reread is not None
    aside.put_back(reread.key, reread.requests)
    aside.put_back(reread.key, [])
    again = aside.next_reread(Room(4))
    assert again is not None
    assert [place.offset for place in again.requests] == [1, 2, 3, 4]


def test_what_belongs_to_an_assignment_that_ended_is_forgotten() -> None:
    ended, holds = Tracker(), Tracker()
    aside = set_aside(FLOOD, *places(ended, 1, 2), *places(holds, 3))
    set_aside(ALICE, *places(ended, 4), into=aside)
    ended.valid = False
    aside.drop_revoked()
    assert (len(aside), FLOOD in aside, ALICE in aside) == (1, True, False)


def test_ids_and_costs_of_what_waits_of_a_topic_by_principal() -> None:
    aside = set_aside(FLOOD, *places(Tracker(), 7, 8))
    set_aside(Key("other", "flood"), *places(Tracker(), 9), into=aside)
    found = {principal: list(waiting) for principal, waiting in aside.waiting("t").items()}
    assert found == {"flood": [("r7", 10.0), ("r8", 10.0)]}
