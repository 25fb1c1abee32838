"""The search over conversations, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from tailrace import log
from tailrace.archive import (
    archived,
    database,
    fold,
    migration,
    sql_reader,
    text_rows,
    text_search,
    text_upkeep,
)
from tailrace.protocol import conversations, history, ids, records, topics
from tests.contract.test_archived_conversations import created, name, put, turn
from tests.support import waiting
from tests.support.archive_rows import Fold, dump
from tests.support.histories import ALICE, BOB, Topics, history_of, rid

T = TypeVar("T")


def asked(number: int, text: str, answer: str = "Yes.", **more: Any) -> history.History:
    """Response number `number` to this text of a user."""
    whole = history_of(number, answer, **more)
    said = [{"type": "message", "role": "user", "content": text}]
    return msgspec.structs.replace(
        whole, request=msgspec.structs.replace(whole.request, input=said)
    )


def deleted(into: Topics, of: str, by: records.Owner = ALICE) -> log.Record:
    return into.put(fold.DELETIONS, 0, of, records.encode(records.Deleted(of, by)))


def item(n: int, id_: str, text: str, role: str = "user") -> conversations.Item:
    content = {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}
    return conversations.Item(name(n), ALICE, id_, content)


async def search(
    engine: AsyncEngine, words: str, owner: records.Owner = ALICE, **more: Any
) -> list[archived.Match]:
    after, limit = more.get("after"), more.get("limit", 20)
    return await sql_reader.SqlReader(engine).search(owner.key, words, after, limit)


async def found(
    engine: AsyncEngine, words: str, owner: records.Owner = ALICE, **more: Any
) -> list[str]:
    return [each.conversation.id for each in await search(engine, words, owner, **more)]


@pytest.fixture
async def some(engine: AsyncEngine) -> AsyncEngine:
    """Three conversations; the last one is that which was used last."""
    into = Topics()
    first, second = (
        asked(1, "Wie groß ist die ÜBERFAHRT?", "The ferry takes two hours."),
        asked(2, "我想在北京大学学习中文", "Peking University, 0 fees; foo_bar-baz don't."),
    )
    batch = [
        *into.history(first, second),
        *put(
            into,
            created(1, title="Fähre"),
            turn(1, first.rid),
            created(2, title="Studies"),
            turn(2, second.rid),
            item(2, "i1", "the ferry again"),
            item(2, "i2", "Be brief.", role="developer"),
            conversations.Added(name(2), ALICE, "node_1", ["i1", "i2"], second.rid),
            created(3, title="two hours of nothing"),
        ),
    ]
    await Fold(engine).all([r._replace(timestamp=1_000 + r.offset) for r in batch])
    return engine


FOUND = {
    "FERRY": [2, 1],
    "two hours": [3, 1],
    "hours two fer": [1],  # all in one turn, the last one as a beginning
    "fer hours": [],
    "uberfahrt": [1],
    "Überfahrt gross": [1],
    "u\u0308berf": [1],
    "fahre": [1],
    "北京": [2],
    "学": [2],
    "北京大学学习": [2],
    "京学": [],
    "大学北京": [],
    "习中文 peking": [2],
    "foo bar don't": [2],
    "studies peking": [],  # title and turn
    "brief": [],  # what a developer wrote
    "0": [2],
    "": [],
    "?!…": [],
}
HOSTILE = (
    '"ferry" OR "nothing"',
    "ferry OR nothing",
    "ferry NOT two",
    "nothing AND NOT ferry",
    "fe* zz",
    "NEAR(ferry two)",
    "said:ferry zz",
    "^ferry zz",
    "-ferry zz",
    "' OR 1=1 --",
    "%fer%zz",
    "fer_y",
    "ferry & !two zz",
    "ferry <-> zz",
    "ferry:*A zz",
    "\\",
    "');DROP TABLE texts;--",
    "\0ferry\0zz",
    "\ud800",
    '"' * 256,
    "* " * 128,
    "a " * 128,
    "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 4,
)
SIGNS = "\"'*-+:^(){}[]%_\\&|!<>;,.~@#$\0\u200b…"


async def test_words_are_found_and_no_sign_means_anything(some: AsyncEngine) -> None:
    for words, expected in {**FOUND, **{words: [] for words in HOSTILE}}.items():
        assert await found(some, words) == [name(n) for n in expected], words
        assert await found(some, words, BOB) == [], words
    for sign in SIGNS:
        assert await found(some, f"{sign}ferry{sign}") == [name(2), name(1)], sign


async def test_a_match_shows_the_newest_turn_and_where_the_words_are(some: AsyncEngine) -> None:
    [added, turn_] = await search(some, "ferry")
    assert (added.response, added.snippet, added.ranges) == (None, "the ferry again", [(4, 9)])
    assert added.conversation.title == "Studies"
    assert turn_.response == rid(1)
    assert turn_.snippet == "Wie groß ist die ÜBERFAHRT? The ferry takes two hours."
    assert [turn_.snippet[a:b] for a, b in turn_.ranges] == ["ferry"]
    [title, _] = await search(some, "two hou")
    assert (title.response, title.snippet) == (None, "two hours of nothing")
    assert title.ranges == [(0, 3), (4, 9)]


async def test_pages_follow_one_another(some: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    for most in (20_000, 3):
        monkeypatch.setattr(text_search, "MAX_TEXTS", most)
        assert await found(some, "t", limit=1) == [name(3), name(2)]  # one more: there is more
        assert await found(some, "t", limit=2, after=name(3)) == [name(2), name(1)]
        assert await found(some, "t", limit=2, after=name(2)) == [name(1)]
    with pytest.raises(archived.UnknownPlace):
        await found(some, "t", BOB, after=name(1))


async def test_what_is_erased_is_found_no_more_from_its_transaction_on(
    engine: AsyncEngine,
) -> None:
    into, fold_ = Topics(), Fold(engine)
    whole = [asked(n, f"secret{n} of mine", f"answer{n}") for n in range(1, 5)]
    batch = put(into, created(1, title="titled"), created(2, title="secret9"))
    parent = None
    for each in whole:
        batch += put(into, turn(1, each.rid, parent))
        parent = each.rid
    added = [item(1, "i", "secret5"), item(1, "j", "secret6")]
    batch += put(into, *added, conversations.Added(name(1), ALICE, "node_1", ["i", "j"], parent))
    await fold_.all([*batch, *into.history(*whole)])
    erasures = {
        "secret1": [deleted(into, whole[0].rid)],
        "secret2": [into.put(topics.HISTORY, 0, whole[1].rid, None)],
        "secret3": put(into, conversations.Removed(name(1), ALICE, _asked_item(whole[2].rid))),
        "answer3": put(into, conversations.Removed(name(1), ALICE, ids.item_id(whole[2].rid))),
        "secret5": put(into, conversations.Removed(name(1), ALICE, "i")),
        "secret6": [into.put(topics.CONVERSATIONS, 3, conversations.key(added[1]), None)],
        "titled": put(into, conversations.Changed(name(1), ALICE, title="other")),
        "secret9": put(into, conversations.Gone(name(2), ALICE)),
    }
    for word, erasure in erasures.items():
        assert len(await found(engine, word)) == 1, word
        await fold_.all(erasure)
        assert await found(engine, word) == [], word
    assert await found(engine, "answer1") == []
    assert await found(engine, "secret4") == await found(engine, "other") == [name(1)]
    await fold_.all(put(into, conversations.Gone(name(1), ALICE)))
    async with engine.connect() as connection:
        for table in ("texts", "words"):
            count = await connection.execute(sa.text(f"SELECT count(*) FROM {table}"))  # noqa: S608
            assert count.scalar_one() == 0


def _asked_item(of: str) -> str:
    return ids.item_id(of, "msg_0_")


async def test_only_stored_turns_of_their_owner_that_did_not_fail(engine: AsyncEngine) -> None:
    into = Topics()
    others = asked(1, "word1", owner=BOB)
    failed = asked(2, "word2", reason="failed")
    alone = asked(3, "word3")
    cancelled = asked(4, "word4", reason="cancelled")
    batch = put(
        into,
        created(1),
        turn(1, others.rid),
        turn(1, failed.rid, others.rid),
        turn(1, cancelled.rid, failed.rid),
    )
    await Fold(engine).all([*batch, *into.history(others, failed, alone, cancelled)])
    assert [await found(engine, f"word{n}") for n in range(1, 5)] == [[], [], [], [name(1)]]
    assert await found(engine, "word1", BOB) == []


def _mixture(seed: int) -> Topics:
    """Turns, deletions, titles and what is left out, as several processes write them."""
    chance, into = random.Random(seed), Topics()
    for n in (1, 2, 3):
        put(into, created(n, title=f"title{n}"))
    heads: dict[int, str | None] = {1: None, 2: None, 3: None}
    turns: list[str] = []
    for step in range(50):
        n = chance.choice((1, 2, 3))
        match chance.randrange(8):
            case 0 | 1 | 2 | 3:
                whole = asked(step, f"step{step} " * 3, "plain words", partition=step % 4)
                early = chance.random() < 0.5
                if early:
                    into.history(whole)
                put(into, turn(n, whole.rid, heads[n]))
                if not early and chance.random() < 0.8:
                    into.history(whole)
                heads[n] = whole.rid
                turns.append(whole.rid)
            case 4:
                put(into, conversations.Changed(name(n), ALICE, title=f"new{step}"))
            case 5 if turns:
                deleted(into, chance.choice(turns))
            case 6 if turns:
                left_out = _asked_item(chance.choice(turns))
                put(into, conversations.Removed(name(n), ALICE, left_out))
            case 7 if step > 35 and n == 3:
                put(into, conversations.Gone(name(n), ALICE))
    return into


def _by_partition(into: Topics) -> dict[tuple[str, int], list[log.Record]]:
    found: dict[tuple[str, int], list[log.Record]] = {}
    for record in into.records:
        found.setdefault((record.topic, record.partition), []).append(record)
    return found


async def _fold_at_random(engine: AsyncEngine, into: Topics, chance: random.Random) -> None:
    left, folding = _by_partition(into), Fold(engine)
    while left:
        place = chance.choice(sorted(left))
        count = chance.randrange(1, 6)
        await folding.all(left[place][:count])
        left[place] = left[place][count:]
        if not left[place]:
            del left[place]


async def _empty(engine: AsyncEngine) -> None:
    await migration.migrate(engine, "base")
    await migration.migrate(engine)


@pytest.mark.parametrize("seed", range(2))
async def test_built_again_in_another_order_it_is_equal(engine: AsyncEngine, seed: int) -> None:
    into = _mixture(seed)
    await Fold(engine).all(into.records)
    first = await dump(engine)
    assert b"step" in first
    await _empty(engine)
    await _fold_at_random(engine, into, random.Random(seed))
    assert await dump(engine) == first


async def test_topics_that_are_folded_at_once_miss_nothing(engine: AsyncEngine) -> None:
    """Symptom, of PostgreSQL: a response and its deletion that were folded at the same moment did
    not see one another, and the response stayed. So would a turn without its text."""
    into = _mixture(5)
    await Fold(engine).all(into.records)
    wanted = await dump(engine)
    await _empty(engine)

    async def follow(batch: list[log.Record]) -> None:
        folding = Fold(engine)
        for record in batch:
            await folding.all([record])

    await asyncio.gather(*map(follow, _by_partition(into).values()))
    assert await dump(engine) == wanted


async def _as_before_texts(engine: AsyncEngine) -> None:
    """The tables as the revision before had them."""
    async with engine.begin() as connection:
        for name_ in ("texts", "words", "unindexed", "set_aside"):
            await connection.execute(sa.text(f"DROP TABLE {name_}"))
        await connection.execute(sa.text("ALTER TABLE positions DROP COLUMN mark"))
        await connection.execute(sa.text("DROP INDEX nodes_by_name"))
        await connection.execute(sa.text("UPDATE archive_version SET version_num = 'a004'"))


async def test_what_was_archived_before_is_made_searchable(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_upkeep, "CONVERSATIONS_AT_ONCE", 1)
    into = _mixture(6)
    cut = len(into.records) * 2 // 3
    await Fold(engine).all(into.records)
    wanted = await dump(engine, marks=False)
    await _empty(engine)
    await Fold(engine).all(into.records[:cut])
    await _as_before_texts(engine)
    await migration.migrate(engine)
    with pytest.raises(archived.ArchiveUnavailable, match="searchable"):
        await found(engine, "plain")
    assert await found(engine, "plain", BOB) == []

    async def ask(what: Callable[[], Awaitable[T]]) -> T:
        return await what()

    async def rest() -> None:
        for record in into.records[cut:]:
            await Fold(engine).all([record])

    upkeep = asyncio.create_task(text_upkeep.TextUpkeep(engine, ask).run())
    try:
        await rest()

        async def there() -> bool:
            return await dump(engine, marks=False) == wanted

        await waiting.eventually(there, "all texts", within_s=20)
    finally:
        upkeep.cancel()
        await asyncio.gather(upkeep, return_exceptions=True)
    assert name(1) in await found(engine, "plain")


async def test_words_of_erased_texts_leave_the_file_of_sqlite(engine: AsyncEngine) -> None:
    """FTS5 only marks words as deleted until it merges them."""
    if engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL vacuums")
    into, fold_ = Topics(), Fold(engine)
    whole = [asked(n, f"xsecret{n}x") for n in range(1, 4)]
    parent = None
    for each in whole:
        await fold_.all(
            [*put(into, turn(1, each.rid, parent))]
            if parent
            else put(into, created(1), turn(1, each.rid))
        )
        await fold_.all(into.history(each))
        parent = each.rid
    folded = await fold_.all([deleted(into, whole[1].rid)])
    assert folded.texts == 1
    while await _merged(engine):
        pass
    async with engine.connect() as connection:
        await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        data = (await connection.exec_driver_sql("SELECT block FROM words_data")).scalars().all()
    left = b"".join(data)
    assert b"xsecret1x" in left or b"secret1x" in left
    assert b"secret2x" not in left
    assert await found(engine, "xsecret3x") == [name(1)]


async def _merged(engine: AsyncEngine) -> bool:
    async with database.writing(engine) as connection:
        return await text_rows.merge(connection)
