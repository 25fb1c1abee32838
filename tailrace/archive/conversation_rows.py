"""Conversations between rows and the fold of their records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from tailrace.archive import tables, text_rows
from tailrace.protocol import conversations, log_words, records

AT_ONCE: Final = 500  # values of one statement; SQLite takes 32,766

_owner = msgspec.json.Decoder(records.Owner)
_metadata = msgspec.json.Decoder(dict[str, str])
_items = msgspec.json.Decoder(list[str])
_content = msgspec.json.Decoder(dict[str, Any])
_shares = msgspec.json.Decoder(dict[str, conversations.Share])


class Address(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    key: str


class Folded(NamedTuple):
    """What became of records. `erased`: what is to be erased from the topic: it belongs to no
    conversation that there is. `texts`: those that may have changed."""

    garbage: int
    erased: set[Address]
    texts: text_rows.Touched


async def fold(connection: AsyncConnection, new: Sequence[log_words.Record]) -> Folded:
    """Fold records of `llm.conversations`, in the order of the log. What is under the key of no
    conversation is left alone: version 0.1 wrote deletions there."""
    garbage, erased = 0, set[Address]()
    mine = [(name, r) for r in new if (name := conversations.id_from_key(r.key)) is not None]
    was = await read(connection, sorted({name for name, _ in mine}), contents=False)
    now = {name: _copy(each) for name, each in was.items()}
    lost: dict[str, set[str]] = {name: set() for name in was}
    for name, record in mine:
        state, key = now[name], (record.key or b"").decode()
        if record.value is None:
            state.erase(record.key)
            lost[name].add(conversations.item_from_key(record.key) or "")
            continue
        act = None if record.forgery else conversations.decode(record.key, record.value)
        if act is None or act.id != name:
            garbage += 1
            continue
        there = state.owner is not None
        left = await _keys(connection, state) if isinstance(act, conversations.Gone) else {key}
        accepted = state.apply(act, record.timestamp)
        # Of those that make one conversation at once only the first counts. It may come again.
        late = (
            isinstance(act, conversations.Created)
            and act.attempt not in ("", state.attempt)
            and not accepted
        )
        if late or (state.owner is None and (there or not isinstance(act, conversations.Gone))):
            erased |= {Address(record.topic, record.partition, each) for each in left}
    texts = text_rows.Touched(set(), set())
    for name, state in now.items():
        await _save(connection, was[name], state, lost[name])
        if state.owner is None:
            texts.gone.add(name)
        else:
            texts.places.update((name, at) for at in _said_anew(was[name], state, lost[name]))
    return Folded(garbage, erased, texts)


async def read(
    connection: AsyncConnection, names: Sequence[str], *, contents: bool = True
) -> dict[str, conversations.Conversation]:
    """Conversations by id; one that is not there is as before its creation. `contents`: with those
    of added items."""
    found = {name: conversations.Conversation(name) for name in names}
    nodes, items, erased = tables.NODES.c, tables.ITEMS.c, tables.ERASED.c
    for some in _slices(names):
        found |= await heads(connection, some)
        question = sa.select(erased.rid, erased.owner).where(erased.rid.in_(some))
        for name, by in (await connection.execute(question)).all():
            found[name].gone.add(by)
        in_order = sa.select(tables.NODES).where(nodes.id.in_(some)).order_by(nodes.number)
        for row in (await connection.execute(in_order)).all():
            found[row.id].nodes[row.node] = conversations.Node(
                row.parent, tuple(_items.decode(row.items)), row.until, row.at_ms
            )
        question = sa.select(items.id, items.item, items.content).where(items.id.in_(some))
        if not contents:
            question = question.where(items.content.is_(None))
        for name, item, content in (await connection.execute(question)).all():
            if content is None:
                found[name].removed.add(item)
            else:
                found[name].contents[item] = _content.decode(content)
    return found


async def listed(
    connection: AsyncConnection, owner: str, *, after: str | None, limit: int
) -> list[conversations.Conversation] | None:
    """An owner's conversations without their nodes, that in which something happened last first.
    None: `after` is none of them."""
    rows = tables.CONVERSATIONS.c
    question = sa.select(tables.CONVERSATIONS).where(rows.owner == owner)
    if after is not None:
        place = sa.select(rows.updated_ms, rows.id).where(rows.id == after, rows.owner == owner)
        found = (await connection.execute(place)).first()
        if found is None:
            return None
        behind = sa.tuple_(*map(sa.literal, found))
        question = question.where(sa.tuple_(rows.updated_ms, rows.id) < behind)
    question = question.order_by(rows.updated_ms.desc(), rows.id.desc()).limit(limit)
    return [_of_row(row) for row in (await connection.execute(question)).all()]


async def heads(
    connection: AsyncConnection, names: Sequence[str]
) -> dict[str, conversations.Conversation]:
    """Those of these conversations that are there, by id, without their nodes."""
    rows = tables.CONVERSATIONS.c
    found: dict[str, conversations.Conversation] = {}
    for some in _slices(names):
        question = sa.select(tables.CONVERSATIONS).where(rows.id.in_(some))
        for row in (await connection.execute(question)).all():
            found[row.id] = _of_row(row)
    return found


def _said_anew(
    was: conversations.Conversation, now: conversations.Conversation, lost: set[str]
) -> set[str]:
    """Nodes whose text may have changed, and `TITLE` if that has."""
    found = now.nodes.keys() - was.nodes.keys()
    for item in {*now.contents, *lost, *(now.removed - was.removed)}:
        node = now.node_of(item)
        found |= {node} if node is not None else set()
    return found | ({text_rows.TITLE} if was.title != now.title else set())


def _of_row(row: Any) -> conversations.Conversation:
    return conversations.Conversation(
        row.id,
        owner=_owner.decode(row.principal),
        created_at=row.created_at,
        updated_ms=row.updated_ms,
        metadata=_metadata.decode(row.metadata),
        title=row.title,
        pinned=row.pinned,
        head=row.head,
        shares=_shares.decode(row.shares),
        attempt=row.attempt,
    )


def _copy(was: conversations.Conversation) -> conversations.Conversation:
    return dataclasses.replace(was.copy(), contents={})


async def _keys(connection: AsyncConnection, found: conversations.Conversation) -> set[str]:
    """Keys of what the topic has of a conversation, but for those of `Chosen` and `Unshared`:
    they are known to no client, and hold no words of a user."""
    items = tables.ITEMS.c
    written = (
        await connection.execute(sa.select(items.item).where(items.id == found.id))
    ).scalars()
    named = {item for node in found.nodes.values() for item in node.items}
    return {
        *((f"{found.id}:c:{found.attempt}",) if found.attempt else ()),
        *(f"{found.id}:{name}" for name in ("metadata", "title", "pinned")),
        *(f"{found.id}:n:{node}" for node in found.nodes),
        *(f"{found.id}:i:{item}" for item in {*written, *found.contents, *named} - found.removed),
        *(f"{found.id}:d:{item}" for item in found.removed),
        *(conversations.share_key(found.id, share) for share in found.shares),
    }


async def _save(
    connection: AsyncConnection,
    was: conversations.Conversation,
    now: conversations.Conversation,
    lost: set[str],
) -> None:
    """Write what differs. `lost`: items whose content has a tombstone."""
    marks = [{"rid": now.id, "owner": by} for by in sorted(now.gone - was.gone)]
    if marks:
        await connection.execute(sa.insert(tables.ERASED), marks)
    if now.owner is None:
        if was.owner is not None:
            for table in (tables.CONVERSATIONS, tables.NODES, tables.ITEMS):
                await connection.execute(sa.delete(table).where(table.c.id == now.id))
        return
    row = _row(now)
    if was.owner is None:
        await connection.execute(sa.insert(tables.CONVERSATIONS).values(row))
    elif row != _row(was):
        mine = tables.CONVERSATIONS.c.id == now.id
        await connection.execute(sa.update(tables.CONVERSATIONS).where(mine).values(row))
    nodes = [
        {
            "id": now.id,
            "number": number,
            "node": node,
            "parent": each.parent,
            "items": msgspec.json.encode(each.items).decode(),
            "until": each.until,
            "at_ms": each.at_ms,
        }
        for number, (node, each) in enumerate(now.nodes.items())
        if node not in was.nodes
    ]
    removed = now.removed - was.removed
    items: dict[str, str | None] = {
        item: msgspec.json.encode(content).decode() for item, content in now.contents.items()
    }
    items |= dict.fromkeys(removed)
    for some in _slices(sorted({*items, *(lost - now.removed)})):
        of_these = sa.and_(tables.ITEMS.c.id == now.id, tables.ITEMS.c.item.in_(some))
        await connection.execute(sa.delete(tables.ITEMS).where(of_these))
    rows = [{"id": now.id, "item": item, "content": text} for item, text in sorted(items.items())]
    for table, values in ((tables.NODES, nodes), (tables.ITEMS, rows)):
        for some in _slices(values):
            await connection.execute(sa.insert(table), list(some))


def _row(of: conversations.Conversation) -> dict[str, Any]:
    assert of.owner is not None
    return {
        "id": of.id,
        "owner": of.owner.key,
        "principal": msgspec.json.encode(of.owner).decode(),
        "created_at": of.created_at,
        "updated_ms": of.updated_ms,
        "metadata": msgspec.json.encode(of.metadata, order="sorted").decode(),
        "title": of.title,
        "pinned": of.pinned,
        "head": of.head,
        "shares": msgspec.json.encode(of.shares).decode(),
        "attempt": of.attempt,
    }


def _slices(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (values[i : i + AT_ONCE] for i in range(0, len(values), AT_ONCE))
