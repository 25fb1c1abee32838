"""The searchable rows: texts of conversations and their words.

They follow from the rows of responses and conversations: a text exists if its conversation exists,
its node is in it and, for a turn, its response is archived and belongs to the conversation's owner.
So the order of these records does not matter, and an erasure of any of them erases the text.
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
# A worker never writes a row that is larger, decompressed.
MAX_HISTORY_BYTES: Final = 256 << 20
TITLE: Final = ""  # instead of a node
MERGED_PAGES: Final = 300  # of SQLite's index, in one transaction

_items = msgspec.json.Decoder(list[str])
_content = msgspec.json.Decoder(dict[str, Any])

Place = tuple[str, str]  # a conversation, and a node of it or `TITLE`


class Changes(NamedTuple):
    """Texts that a transaction may have changed.

    Attributes:
        deleted: conversations that are deleted.
        places: nodes and titles of others.
        responses: those that were archived, or erased (None).
    """

    deleted: set[str]
    places: set[Place]
    responses: Mapping[str, history.History | None] = {}


async def refresh(connection: AsyncConnection, changes: Changes) -> int:
    """Rebuild these texts from the other rows. Returns the number of former texts."""
    removed = await _forget(connection, changes.deleted)
    nodes = await _nodes(connection, sorted(changes.responses), changes.places)
    for batch in _slices(sorted(nodes)):
        # A response that has just been archived had none.
        old = [at for at in batch if at in changes.places or changes.responses.get(at[1]) is None]
        removed += await _erase(connection, old)
        batch_nodes = {place: nodes[place] for place in batch}
        await _insert(connection, await _build_texts(connection, batch_nodes, changes.responses))
    return removed


async def index_older(connection: AsyncConnection, count: int) -> int:
    """Build the texts of up to `count` conversations that have none yet. Returns the number of
    remaining ones."""
    waiting = tables.UNINDEXED.c.id
    rows = await connection.execute(sa.select(waiting).order_by(waiting).limit(count))
    names = list(rows.scalars())
    if not names:
        return 0
    nodes = tables.NODES.c
    question = sa.select(nodes.id, nodes.node).where(nodes.id.in_(names))
    places: list[Place] = [(name, node) for name, node in (await connection.execute(question))]
    places += [(name, TITLE) for name in names]
    for batch in _slices(places, OLDER_AT_ONCE):
        await refresh(connection, Changes(set(), {*batch}))
    await connection.execute(sa.delete(tables.UNINDEXED).where(waiting.in_(names)))
    remaining = sa.select(sa.func.count()).select_from(tables.UNINDEXED)
    return int((await connection.execute(remaining)).scalar_one())


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


async def _nodes(
    connection: AsyncConnection, rids: Sequence[str], places: Collection[Place]
) -> dict[Place, _Node | None]:
    """The nodes of these responses and at these places; None: no node, or a title."""
    nodes = tables.NODES.c
    by_place: dict[Place, _Node | None] = dict.fromkeys(places)
    by_name = {*rids, *(node for _, node in places if node != TITLE)}
    for batch in _slices(sorted(by_name)):
        question = sa.select(nodes.id, nodes.node, nodes.number, nodes["items"]).where(
            nodes.node.in_(batch)
        )
        for name, node, number, items in (await connection.execute(question)).all():
            by_place[name, node] = _Node(number, _items.decode(items))
    return by_place


async def _erase(connection: AsyncConnection, places: Sequence[Place]) -> int:
    if not places:
        return 0
    rows = tables.TEXTS.c
    question = sa.select(rows.number).where(sa.tuple_(rows.id, rows.node).in_(places))
    return await _remove(connection, list((await connection.execute(question)).scalars()))


async def _forget(connection: AsyncConnection, names: Collection[str]) -> int:
    """Remove all texts of conversations."""
    removed = 0
    for batch in _slices(sorted(names)):
        question = sa.select(tables.TEXTS.c.number).where(tables.TEXTS.c.id.in_(batch))
        removed += await _remove(connection, list((await connection.execute(question)).scalars()))
        await connection.execute(
            sa.delete(tables.UNINDEXED).where(tables.UNINDEXED.c.id.in_(batch))
        )
    return removed


async def _remove(connection: AsyncConnection, numbers: Sequence[int]) -> int:
    for batch in _slices(numbers):
        for column in (tables.WORDS.c.rowid, tables.TEXTS.c.number):
            await connection.execute(sa.delete(column.table).where(column.in_(batch)))
    return len(numbers)


class _Node(NamedTuple):
    number: int
    items: list[str]


class _Text(NamedTuple):
    place: Place
    number: int
    owner: str
    text: str


async def _build_texts(
    connection: AsyncConnection,
    nodes: Mapping[Place, _Node | None],
    histories: Mapping[str, history.History | None],
) -> list[_Text]:
    """The texts of these nodes."""
    names = sorted({name for name, _ in nodes})
    talks = tables.CONVERSATIONS.c
    question = sa.select(talks.id, talks.owner, talks.title).where(talks.id.in_(names))
    owners, built = dict[str, str](), list[_Text]()
    for name, owner, title in (await connection.execute(question)).all():
        owners[name] = owner
        if (name, TITLE) in nodes:
            built.append(_Text((name, TITLE), -1, owner, title))
    present = {place: node for place, node in nodes.items() if node and place[0] in owners}
    items = {place: node.items for place, node in present.items()}
    texts = await _texts(connection, items, owners, histories) if items else {}
    for place, node in present.items():
        built.append(_Text(place, node.number, owners[place[0]], texts[place]))
    return [each for each in built if each.text]


async def _texts(
    connection: AsyncConnection,
    nodes: Mapping[Place, list[str]],
    owners: Mapping[str, str],
    histories: Mapping[str, history.History | None],
) -> dict[Place, str]:
    """The texts of nodes, by their items."""
    removed, contents = await _item_rows(connection, nodes)
    turns = {node for (_, node), items in nodes.items() if not items}
    whole = {**histories, **await _histories(connection, sorted(turns - histories.keys()))}
    texts: dict[Place, str] = {}
    for (name, node), items in nodes.items():
        if items:
            item_contents = (contents[name, item] for item in items if (name, item) in contents)
            texts[name, node] = turn_texts.items_text(item_contents)
            continue
        turn = whole.get(node)
        same_owner = turn is not None and turn.owner.key == owners[name]
        removed_items = removed.get(name, ())
        texts[name, node] = turn_texts.turn_text(turn, removed_items) if turn and same_owner else ""
    return texts


async def _item_rows(
    connection: AsyncConnection, nodes: Mapping[Place, list[str]]
) -> tuple[dict[str, set[str]], dict[Place, dict[str, Any]]]:
    """Removed items of these conversations, and the contents of added items."""
    rows = tables.ITEMS.c
    removed: dict[str, set[str]] = {}
    for names in _slices(sorted({name for name, _ in nodes})):
        question = sa.select(rows.id, rows.item).where(rows.id.in_(names), rows.content.is_(None))
        for name, item in (await connection.execute(question)).all():
            removed.setdefault(name, set()).add(item)
    places = [(name, item) for (name, _), items in nodes.items() for item in items]
    contents: dict[Place, dict[str, Any]] = {}
    for batch in _slices(places):
        in_batch = sa.tuple_(rows.id, rows.item).in_(batch)
        question = sa.select(rows.id, rows.item, rows.content).where(
            in_batch, rows.content.is_not(None)
        )
        for name, item, content in (await connection.execute(question)).all():
            contents[name, item] = _content.decode(content)
    return removed, contents


async def _histories(
    connection: AsyncConnection, rids: Sequence[str]
) -> dict[str, history.History | None]:
    rows = tables.RESPONSES.c
    question = sa.select(rows.rid, rows.history).where(rows.rid.in_(rids))
    values = (await connection.execute(question)).all() if rids else []
    return {rid: decompress(value) for rid, value in values}


def decompress(value: bytes) -> history.History | None:
    """The HISTORY of a row of `responses`; None if it cannot be read."""
    return history.decode(zlib.decompressobj().decompress(bytes(value), MAX_HISTORY_BYTES))


async def _insert(connection: AsyncConnection, texts: Sequence[_Text]) -> None:
    if not texts:
        return
    last = (await connection.execute(sa.select(sa.func.max(tables.TEXTS.c.number)))).scalar()
    by_number = list(zip(itertools.count((last or 0) + 1), texts))
    rows = [
        {
            "number": number,
            "id": each.place[0],
            "node": each.place[1],
            "place": each.number,
            "text": each.text.encode(errors="replace"),
        }
        for number, each in by_number
    ]
    await connection.execute(sa.insert(tables.TEXTS), rows)
    word_rows: list[tuple[int, Any]] = [
        (number, words.index_words(each.text, each.owner)) for number, each in by_number
    ]
    if connection.dialect.name == "postgresql":
        statement = "INSERT INTO words (rowid, said) VALUES ($1, array_to_tsvector($2::text[]))"
    else:
        statement = "INSERT INTO words (rowid, said) VALUES (?, ?)"
        word_rows = [(number, " ".join(each)) for number, each in word_rows]
    await connection.exec_driver_sql(statement, word_rows)


def _slices(values: Sequence[Any], size: int = AT_ONCE) -> Iterable[Sequence[Any]]:
    return (values[i : i + size] for i in range(0, len(values), size))
