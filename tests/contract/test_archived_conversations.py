"""Conversations in the archive, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tailrace import log
from tailrace.archive import archived, migration, sql_reader
from tailrace.protocol import conversations, ids, topics
from tests.support.archive_rows import Fold, dump
from tests.support.histories import ALICE, BOB, INCARNATION, Topics

P = 3


def name(n: int) -> str:
    return ids.mint(ids.Address(bytes(4), P, 0), n.to_bytes(11, "big"), conversations.PREFIX)


def put(into: Topics, *acts: conversations.Act) -> list[log.Record]:
    return [
        into.put(
            topics.CONVERSATIONS,
            P,
            conversations.key(act, str(len(into.records))),
            conversations.encode(act),
        )
        for act in acts
    ]


def created(n: int, **more: Any) -> conversations.Created:
    return conversations.Created(name(n), ALICE, 100 + n, **more)


def turn(n: int, node: str, parent: str | None = None, **more: Any) -> conversations.Turn:
    return conversations.Turn(name(n), ALICE, node, parent, **more)


async def found(engine: AsyncEngine, n: int) -> conversations.Conversation:
    read, _ = await sql_reader.SqlReader(engine).conversation(
        name(n), INCARNATION, P, contents=True
    )
    return read


async def test_it_is_read_as_the_log_says(engine: AsyncEngine) -> None:
    into = Topics()
    batch = put(
        into,
        created(1, title="one", metadata={"a": "b"}),
        turn(1, "r1", until=7),
        conversations.Item(name(1), ALICE, "i", {"x": [1]}),
        conversations.Item(name(1), ALICE, "j", {"x": [2]}),
        conversations.Added(name(1), ALICE, "n1", ["i", "j"], "r1"),
        turn(1, "r2", "r1"),
        turn(1, "r3", "r1", branch=True),
        conversations.Changed(name(1), ALICE, pinned=True),
        conversations.Removed(name(1), ALICE, "i"),
        conversations.Removed(name(1), ALICE, "msg_of_a_turn"),
        conversations.Shared(name(1), ALICE, "s1", "r1", 5, 9, "one"),
        conversations.Shared(name(1), ALICE, "s2", "r3", 6, 9),
        conversations.Unshared(name(1), ALICE, "s1"),
    )
    read = sql_reader.SqlReader(engine)
    assert await read.conversation(name(1), INCARNATION, P) == (
        conversations.Conversation(name(1)),
        None,
    )
    await Fold(engine).all(batch)
    whole, position = await read.conversation(name(1), INCARNATION, P, contents=True)
    assert position == len(batch)
    expected = conversations.Conversation(
        name(1),
        ALICE,
        101,
        1_000,
        {"a": "b"},
        "one",
        pinned=True,
        head="r3",
        nodes={
            "r1": conversations.Node(None, (), 7, 1_000),
            "n1": conversations.Node("r1", ("i", "j"), 0, 1_000),
            "r3": conversations.Node("r1", (), 0, 1_000),
        },
        removed={"i", "msg_of_a_turn"},
        contents={"j": {"x": [2]}},
        shares={"s2": conversations.Share("r3", "", 6, 9)},
    )
    assert whole == expected
    assert list(whole.nodes) == ["r1", "n1", "r3"]


async def test_lists_are_those_of_an_owner_the_last_active_first(engine: AsyncEngine) -> None:
    into = Topics()
    batch = put(into, *(created(n) for n in range(1, 6)), turn(2, "a"))
    batch = [r._replace(timestamp=1_000 + r.offset) for r in batch]
    other = put(into, conversations.Created(name(9), BOB, 1))
    await Fold(engine).all([*batch, *other])
    read = sql_reader.SqlReader(engine)
    rows = await read.conversations(ALICE.key, None, 3)
    assert [each.id for each in rows] == [name(n) for n in (2, 5, 4, 3)]
    rows = await read.conversations(ALICE.key, name(4), 3)
    assert [each.id for each in rows] == [name(3), name(1)]
    for unknown in (name(9), "x"):
        with pytest.raises(archived.UnknownPlace):
            await read.conversations(ALICE.key, unknown, 3)


async def test_one_that_is_gone_leaves_nothing_and_what_comes_behind_is_erased(
    engine: AsyncEngine,
) -> None:
    into = Topics()
    fold = Fold(engine)
    await fold.all(
        put(
            into,
            created(1),
            turn(1, "r1"),
            conversations.Item(name(1), ALICE, "i", {"secret": 1}),
            conversations.Added(name(1), ALICE, "n", ["i"], "r1"),
            conversations.Removed(name(1), ALICE, "x"),
            conversations.Shared(name(1), ALICE, "s", "r1", 5, 9, "secret"),
        )
    )
    assert fold.erased == []
    await fold.all(put(into, conversations.Gone(name(1), BOB)))
    assert fold.erased == []
    await fold.all(put(into, conversations.Gone(name(1), ALICE)))
    assert {key.removeprefix(name(1)) for key in fold.erased} == {
        ":metadata",
        ":title",
        ":pinned",
        ":n:r1",
        ":n:n",
        ":i:i",
        ":d:x",
        ":s:s",
    }
    await fold.all(put(into, turn(1, "late", "n"), conversations.Gone(name(1), ALICE)))
    assert fold.erased[-1] == f"{name(1)}:n:late"
    assert len(fold.erased) == 9
    left = await dump(engine)
    assert b"secret" not in left
    assert left.count(name(1).encode()) == 1
    assert (await found(engine, 1)) == conversations.Conversation(name(1), gone={ALICE.key})


async def test_of_attempts_to_make_it_the_first_counts_and_the_others_are_erased(
    engine: AsyncEngine,
) -> None:
    into, fold = Topics(), Fold(engine)
    made = [created(1, attempt=str(n), title=f"secret {n}") for n in range(4)]
    whole = put(into, made[0], made[1], turn(1, "r1"), conversations.Gone(name(1), ALICE), made[2])
    for batch in (whole[:2], whole[2:]):
        await fold.all(batch)
    late = put(into, made[3])
    await fold.all(late)
    erased = {key for key in fold.erased if ":c:" in key}
    assert erased == {f"{name(1)}:c:{n}" for n in range(4)}
    before = await dump(engine)
    assert b"secret" not in before
    assert (await found(engine, 1)) == conversations.Conversation(name(1), gone={ALICE.key})
    # All at once, and what compaction leaves.
    for batch in ([*whole, *late], [r for r in whole if r.key == name(1).encode()]):
        await migration.migrate(engine, "base")
        await migration.migrate(engine)
        await Fold(engine).all(batch)
        assert (await dump(engine)).count(name(1).encode()) == 1
    one = put(into, created(2, attempt="1", title="kept"), created(2, attempt="2", title="no"))
    await Fold(engine).all(one)
    assert (await found(engine, 2)).title == "kept"
    assert (await found(engine, 2)).attempt == "1"


async def test_a_tombstone_erases_the_content_of_an_item(engine: AsyncEngine) -> None:
    into = Topics()
    item = conversations.Item(name(1), ALICE, "i", {"secret": 1})
    batch = put(into, created(1), item, conversations.Added(name(1), ALICE, "n", ["i"]))
    await Fold(engine).all(batch)
    erased = into.put(topics.CONVERSATIONS, P, conversations.key(item), None)
    folded = await Fold(engine).all([erased])
    assert (folded.garbage, folded.erased) == (0, 0)
    assert (await found(engine, 1)).contents == {}
    assert b"secret" not in await dump(engine)


async def test_garbage_changes_nothing(engine: AsyncEngine) -> None:
    into = Topics()
    await Fold(engine).all(put(into, created(1), turn(1, "a")))
    before = await found(engine, 1)
    forged = put(into, turn(1, "b", "a"))[0]._replace(forgery="no tag")
    bad = [
        forged,
        into.put(topics.CONVERSATIONS, P, f"{name(1)}:n:c", b"{}"),
        into.put(topics.CONVERSATIONS, P, name(1), b"\xff"),
        into.put(topics.CONVERSATIONS, P, "resp_of_version_0.1", b"{}"),
    ]
    folded = await Fold(engine).all(bad)
    assert (folded.garbage, folded.erased) == (3, 0)
    assert await found(engine, 1) == before


def _acts(chance: random.Random) -> list[conversations.Act]:
    """What gateways might write of three conversations."""
    acts: list[conversations.Act] = [created(1), created(2), created(3, attempt="1")]
    nodes: dict[int, list[str | None]] = {1: [None], 2: [None], 3: [None]}
    for step in range(120):
        n = chance.choice((1, 2, 3))
        parent = chance.choice(nodes[n])
        node = f"r{step}"
        match chance.randrange(9):
            case 0 | 1:
                acts.append(turn(n, node, parent, branch=chance.random() < 0.5))
                nodes[n].append(node)
            case 2:
                acts.append(conversations.Item(name(n), ALICE, f"i{step}", {"x": step}))
                acts.append(conversations.Added(name(n), ALICE, node, [f"i{step}"], parent))
                nodes[n].append(node)
            case 3:
                acts.append(conversations.Chosen(name(n), ALICE, parent))
            case 4:
                acts.append(conversations.Changed(name(n), ALICE, title=f"t{step}"))
            case 5:
                acts.append(conversations.Removed(name(n), ALICE, f"i{chance.randrange(step + 1)}"))
            case 6 if parent is not None:
                acts.append(conversations.Shared(name(n), ALICE, f"s{step}", parent, 1, 2, "t"))
            case 7:
                acts.append(
                    conversations.Unshared(name(n), ALICE, f"s{chance.randrange(step + 1)}")
                )
            case 8 if step > 100 and n == 3:
                acts.append(conversations.Gone(name(n), ALICE))
    return acts


def _folded(batch: Sequence[log.Record], n: int) -> conversations.Conversation:
    state = conversations.Conversation(name(n))
    for record in batch:
        act = conversations.decode(record.key, record.value)
        if act is not None and act.id == name(n):
            state.apply(act, record.timestamp)
    return state


@pytest.mark.parametrize("seed", range(4))
async def test_any_batches_give_what_the_fold_says_and_a_rebuild_is_equal(
    engine: AsyncEngine, seed: int
) -> None:
    chance, into = random.Random(seed), Topics()
    batch = put(into, *_acts(chance))
    fold = Fold(engine)
    at = 0
    while at < len(batch):
        step = chance.randrange(1, 30)
        await fold.all(batch[at : at + step])
        at += step
    for n in (1, 2, 3):
        assert await found(engine, n) == _folded(batch, n)
    before = await dump(engine)
    await migration.migrate(engine, "base")
    await migration.migrate(engine)
    await Fold(engine).all(batch)
    assert await dump(engine) == before
