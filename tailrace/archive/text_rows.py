"""The rows that are searched: texts of conversations and their words.

They follow from the rows of responses and conversations: a text is there if its conversation is
there, its node is in it and, of a turn, its response is archived, whose owner has the conversation.
So it does not matter which of these came first, and whatever erases one of them erases the text.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from tailrace.archive import tables, turn_texts, words
from tailrace.protocol import history

AT_ONCE: Final = 500  # values of one statement; SQLite takes 32,766
OLDER_AT_ONCE: Final = 50  # texts whose responses are read for them
# A row larger than this, decompressed, is not what a worker writes.
MAX_HISTORY_BYTES: Final = 256 << 20
TITLE: Final = ""  # in the place of a node
MERGED_PAGES: Final = 300  # of SQLite's index, in one transaction

_items = msgspec.json.Decoder(list[str])
_content = msgspec.json.Decoder(dict[str, Any])

Place = tuple[str, str]  # a conversation, and a node of it or `TITLE`


class Touched(NamedTuple):
    """Of what a transaction may have changed the text.

    Attributes:
        gone: conversations that are deleted.
        places: nodes and titles of others.
        responses: those that were archived, or erased (None).
    """

    gone: set[str]
    places: set[Place]
    responses: Mapping[str, history.History | None] = {}


async def refresh(connection: AsyncConnection, touched: Touched) -> int:
    """Make these texts what the other rows say now. Returns how many were there before."""
    lost = await _forget(connection, touched.gone)
    nodes = await _nodes_of(connection, sorted(touched.responses), touched.places)
    for some in _slices(sorted(nodes)):
        # Of a response that has just been archived there was none.
        old = [at for at in some if at in touched.places or touched.responses.get(at[1]) is None]
        lost += await _erase(connection, old)
        at_these = {place: nodes[place] for place in some}
        await _insert(connection, await _made(connection, at_these, touched.responses))
    return lost


async def index_older(connection: AsyncConnection, count: int) -> int:
    """Make the texts of up to `count` conversations that have none yet. Returns how many are
    left."""
    waiting = tables.UNINDEXED.c.id
    found = await connection.execute(sa.select(waiting).order_by(waiting).limit(count))
    names = list(found.scalars())
    if not names:
        return 0
    nodes = tables.NODES.c
    question = sa.select(nodes.id, nodes.node).where(nodes.id.in_(names))
    places: list[Place] = [(name, node) for name, node in (await connection.execute(question))]
    places += [(name, TITLE) for name in names]
    for some in _slices(places, OLDER_AT_ONCE):
        await refresh(connection, Touched(set(), {*some}))
    await connection.execute(sa.delete(tables.UNINDEXED).where(waiting.in_(names)))
    left = sa.select(sa.func.count()).select_from(tables.UNINDEXED)
    return int((await connection.execute(left)).scalar_one())


async def merge(connection: AsyncConnection) -> bool:
    """Take a step to remove the words of erased texts from SQLite's file, where FTS5 only marks
    them as deleted until then. Returns whether there may be more to do."""
    before = await _changes(connection)
    await connection.exec_driver_sql(
        "INSERT INTO words(words, rank) VALUES ('merge', ?)", (-MERGED_PAGES,)
    )
    return await _changes(connection) - before > 1


async def _changes(connection: AsyncConnection) -> int:
    return int((await connection.exec_driver_sql("SELECT total_changes()")).scalar_one())


async def _nodes_of(
    connection: AsyncConnection, rids: Sequence[str], places: Collection[Place]
) -> dict[Place, _Node | None]:
    """The nodes of these responses and at these places; None: there is none, or it is a title."""
    nodes = tables.NODES.c
    found: dict[Place, _Node | None] = dict.fromkeys(places)
    by_name = {*rids, *(node for _, node in places if node != TITLE)}
    for some in _slices(sorted(by_name)):
        question = sa.select(nodes.id, nodes.node, nodes.number, nodes["items"]).where(
            nodes.node.in_(some)
        )
        for name, node, number, items in (await connection.execute(question)).all():
            found[name, node] = _Node(number, _items.decode(items))
    return found


async def _erase(connection: AsyncConnection, places: Sequence[Place]) -> int:
    if not places:
        return 0
    rows = tables.TEXTS.c
    question = sa.select(rows.number).where(sa.tuple_(rows.id, rows.node).in_(places))
    return await _remove(connection, list((await connection.execute(question)).scalars()))


async def _forget(connection: AsyncConnection, names: Collection[str]) -> int:
    """Remove all texts of conversations."""
    lost = 0
    for some in _slices(sorted(names)):
        question = sa.select(tables.TEXTS.c.number).where(tables.TEXTS.c.id.in_(some))
        lost += await _remove(connection, list((await connection.execute(question)).scalars()))
        await connection.execute(sa.delete(tables.UNINDEXED).where(tables.UNINDEXED.c.id.in_(some)))
    return lost


async def _remove(connection: AsyncConnection, numbers: Sequence[int]) -> int:
    for some in _slices(numbers):
        for column in (tables.WORDS.c.rowid, tables.TEXTS.c.number):
            await connection.execute(sa.delete(column.table).where(column.in_(some)))
    return len(numbers)


class _Node(NamedTuple):
    number: int
    items: list[str]


class _Text(NamedTuple):
    place: Place
    number: int
    owner: str
    text: str


async def _made(
    connection: AsyncConnection,
    nodes: Mapping[Place, _Node | None],
    known: Mapping[str, history.History | None],
) -> list[_Text]:
    """The texts that are to be there."""
    names = sorted({name for name, _ in nodes})
    talks = tables.CONVERSATIONS.c
    question = sa.select(talks.id, talks.owner, talks.title).where(talks.id.in_(names))
    owners, found = dict[str, str](), list[_Text]()
    for name, owner, title in (await connection.execute(question)).all():
        owners[name] = owner
        if (name, TITLE) in nodes:
            found.append(_Text((name, TITLE), -1, owner, title))
    there = {place: node for place, node in nodes.items() if node and place[0] in owners}
    items = {place: node.items for place, node in there.items()}
    texts = await _texts(connection, items, owners, known) if items else {}
    for place, node in there.items():
        found.append(_Text(place, node.number, owners[place[0]], texts[place]))
    return [each for each in found if each.text]


async def _texts(
    connection: AsyncConnection,
    nodes: Mapping[Place, list[str]],
    owners: Mapping[str, str],
    known: Mapping[str, history.History | None],
) -> dict[Place, str]:
    """The texts of nodes, by their items."""
    removed, contents = await _item_rows(connection, nodes)
    turns = {node for (_, node), items in nodes.items() if not items}
    whole = {**known, **await _histories(connection, sorted(turns - known.keys()))}
    found: dict[Place, str] = {}
    for (name, node), items in nodes.items():
        if items:
            added = (contents[name, item] for item in items if (name, item) in contents)
            found[name, node] = turn_texts.of_items(added)
            continue
        turn = whole.get(node)
        mine = turn is not None and turn.owner.key == owners[name]
        left_out = removed.get(name, ())
        found[name, node] = turn_texts.of_turn(turn, left_out) if turn and mine else ""
    return found


async def _item_rows(
    connection: AsyncConnection, nodes: Mapping[Place, list[str]]
) -> tuple[dict[str, set[str]], dict[Place, dict[str, Any]]]:
    """Items of these conversations that are left out, and what added items hold."""
    rows = tables.ITEMS.c
    removed: dict[str, set[str]] = {}
    for some in _slices(sorted({name for name, _ in nodes})):
        question = sa.select(rows.id, rows.item).where(rows.id.in_(some), rows.content.is_(None))
        for name, item in (await connection.execute(question)).all():
            removed.setdefault(name, set()).add(item)
    wanted = [(name, item) for (name, _), items in nodes.items() for item in items]
    contents: dict[Place, dict[str, Any]] = {}
    for these in _slices(wanted):
        named = sa.tuple_(rows.id, rows.item).in_(these)
        question = sa.select(rows.id, rows.item, rows.content).where(
            named, rows.content.is_not(None)
        )
        for name, item, content in (await connection.execute(question)).all():
            contents[name, item] = _content.decode(content)
    return removed, contents


async def _histories(
    connection: AsyncConnection, rids: Sequence[str]
) -> dict[str, history.History | None]:
    rows = tables.RESPONSES.c
    question = sa.select(rows.rid, rows.history).where(rows.rid.in_(rids))
    found = (await connection.execute(question)).all() if rids else []
    return {rid: unpacked(value) for rid, value in found}


def unpacked(value: bytes) -> history.History | None:
    """The HISTORY that a row of `responses` holds; None if it cannot be read."""
    return history.decode(zlib.decompressobj().decompress(bytes(value), MAX_HISTORY_BYTES))


async def _insert(connection: AsyncConnection, texts: Sequence[_Text]) -> None:
    if not texts:
        return
    last = (await connection.execute(sa.select(sa.func.max(tables.TEXTS.c.number)))).scalar()
    numbered = list(zip(itertools.count((last or 0) + 1), texts))
    rows = [
        {
            "number": number,
            "id": each.place[0],
            "node": each.place[1],
            "place": each.number,
            "text": each.text.encode(errors="replace"),
        }
        for number, each in numbered
    ]
    await connection.execute(sa.insert(tables.TEXTS), rows)
    said: list[tuple[int, Any]] = [
        (number, words.indexed(each.text, each.owner)) for number, each in numbered
    ]
    if connection.dialect.name == "postgresql":
        statement = "INSERT INTO words (rowid, said) VALUES ($1, array_to_tsvector($2::text[]))"
    else:
        statement = "INSERT INTO words (rowid, said) VALUES (?, ?)"
        said = [(number, " ".join(each)) for number, each in said]
    await connection.exec_driver_sql(statement, said)


def _slices(values: Sequence[Any], size: int = AT_ONCE) -> Iterable[Sequence[Any]]:
    return (values[i : i + size] for i in range(0, len(values), size))
