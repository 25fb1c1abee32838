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


class FoldResult(NamedTuple):
    """The result of folding records. `erased`: records to be erased from the topic, because their
    conversation does not exist. `texts`: texts that may have changed."""

    garbage: int
    erased: set[Address]
    texts: text_rows.Changes


async def fold(connection: AsyncConnection, new: Sequence[log_words.Record]) -> FoldResult:
    """Fold records of `llm.conversations`, in the order of the log. Records without the key of a
    conversation are skipped: version 0.1 wrote deletions there."""
    garbage, erased = 0, set[Address]()
    acts = [(name, r) for r in new if (name := conversations.id_from_key(r.key)) is not None]
    was = await read(connection, sorted({name for name, _ in acts}), contents=False)
    now = {name: _copy(each) for name, each in was.items()}
    lost_items: dict[str, set[str]] = {name: set() for name in was}
    for name, record in acts:
        state, key = now[name], (record.key or b"").decode()
        if record.value is None:
            state.erase(record.key)
            lost_items[name].add(conversations.item_from_key(record.key) or "")
            continue
        act = None if record.forgery else conversations.decode(record.key, record.value)
        if act is None or act.id != name:
            garbage += 1
            continue
        existed = state.owner is not None
        keys = await _keys(connection, state) if isinstance(act, conversations.Gone) else {key}
        accepted = state.apply(act, record.timestamp)
        # If one conversation is created several times, the first counts. It may be read again.
        late = (
            isinstance(act, conversations.Created)
            and act.attempt not in ("", state.attempt)
            and not accepted
        )
        if late or (state.owner is None and (existed or not isinstance(act, conversations.Gone))):
            erased |= {Address(record.topic, record.partition, each) for each in keys}
    texts = text_rows.Changes(set(), set())
    for name, state in now.items():
        await _save(connection, was[name], state, lost_items[name])
        if state.owner is None:
            texts.deleted.add(name)
        else:
            texts.places.update(
                (name, at) for at in _changed_nodes(was[name], state, lost_items[name])
            )
    return FoldResult(garbage, erased, texts)


async def read(
    connection: AsyncConnection, names: Sequence[str], *, contents: bool = True
) -> dict[str, conversations.Conversation]:
    """Conversations by id; a missing one is as before its creation. `contents`: include contents of
    added items."""
    states = {name: conversations.Conversation(name) for name in names}
    nodes, items, erased = tables.NODES.c, tables.ITEMS.c, tables.ERASED.c
    for batch in _slices(names):
        states |= await heads(connection, batch)
        question = sa.select(erased.rid, erased.owner).where(erased.rid.in_(batch))
        for name, by in (await connection.execute(question)).all():
            states[name].gone.add(by)
        in_order = sa.select(tables.NODES).where(nodes.id.in_(batch)).order_by(nodes.number)
        for row in (await connection.execute(in_order)).all():
            states[row.id].nodes[row.node] = conversations.Node(
                row.parent, tuple(_items.decode(row.items)), row.until, row.at_ms
            )
        question = sa.select(items.id, items.item, items.content).where(items.id.in_(batch))
        if not contents:
            question = question.where(items.content.is_(None))
        for name, item, content in (await connection.execute(question)).all():
            if content is None:
                states[name].removed.add(item)
            else:
                states[name].contents[item] = _content.decode(content)
    return states


async def list_heads(
    connection: AsyncConnection, owner: str, *, after: str | None, limit: int
) -> list[conversations.Conversation] | None:
    """An owner's conversations without their nodes, the one with the latest change first. None:
    `after` is not one of them."""
    rows = tables.CONVERSATIONS.c
    question = sa.select(tables.CONVERSATIONS).where(rows.owner == owner)
    if after is not None:
        place = sa.select(rows.updated_ms, rows.id).where(rows.id == after, rows.owner == owner)
        last = (await connection.execute(place)).first()
        if last is None:
            return None
        after_last = sa.tuple_(*map(sa.literal, last))
        question = question.where(sa.tuple_(rows.updated_ms, rows.id) < after_last)
    question = question.order_by(rows.updated_ms.desc(), rows.id.desc()).limit(limit)
    return [_from_row(row) for row in (await connection.execute(question)).all()]


async def heads(
    connection: AsyncConnection, names: Sequence[str]
) -> dict[str, conversations.Conversation]:
    """Those of these conversations that exist, by id, without their nodes."""
    rows = tables.CONVERSATIONS.c
    states: dict[str, conversations.Conversation] = {}
    for batch in _slices(names):
        question = sa.select(tables.CONVERSATIONS).where(rows.id.in_(batch))
        for row in (await connection.execute(question)).all():
            states[row.id] = _from_row(row)
    return states


def _changed_nodes(
    was: conversations.Conversation, now: conversations.Conversation, lost_items: set[str]
) -> set[str]:
    """Nodes whose text may have changed, and `TITLE` if that has."""
    nodes = now.nodes.keys() - was.nodes.keys()
    for item in {*now.contents, *lost_items, *(now.removed - was.removed)}:
        node = now.node_of(item)
        nodes |= {node} if node is not None else set()
    return nodes | ({text_rows.TITLE} if was.title != now.title else set())


def _from_row(row: Any) -> conversations.Conversation:
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


async def _keys(connection: AsyncConnection, state: conversations.Conversation) -> set[str]:
    """Keys of a conversation's records in the topic, except those of `Chosen` and `Unshared`:
    clients do not know them, and they hold no words of a user."""
    items = tables.ITEMS.c
    stored = (await connection.execute(sa.select(items.item).where(items.id == state.id))).scalars()
    node_items = {item for node in state.nodes.values() for item in node.items}
    return {
        *((f"{state.id}:c:{state.attempt}",) if state.attempt else ()),
        *(f"{state.id}:{name}" for name in ("metadata", "title", "pinned")),
        *(f"{state.id}:n:{node}" for node in state.nodes),
        *(
            f"{state.id}:i:{item}"
            for item in {*stored, *state.contents, *node_items} - state.removed
        ),
        *(f"{state.id}:d:{item}" for item in state.removed),
        *(conversations.share_key(state.id, share) for share in state.shares),
    }


async def _save(
    connection: AsyncConnection,
    was: conversations.Conversation,
    now: conversations.Conversation,
    lost_items: set[str],
) -> None:
    """Write the differences. `lost_items`: items whose content has a tombstone."""
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
        same_id = tables.CONVERSATIONS.c.id == now.id
        await connection.execute(sa.update(tables.CONVERSATIONS).where(same_id).values(row))
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
    for batch in _slices(sorted({*items, *(lost_items - now.removed)})):
        same_items = sa.and_(tables.ITEMS.c.id == now.id, tables.ITEMS.c.item.in_(batch))
        await connection.execute(sa.delete(tables.ITEMS).where(same_items))
    rows = [{"id": now.id, "item": item, "content": text} for item, text in sorted(items.items())]
    for table, values in ((tables.NODES, nodes), (tables.ITEMS, rows)):
        for batch in _slices(values):
            await connection.execute(sa.insert(table), list(batch))


def _row(state: conversations.Conversation) -> dict[str, Any]:
    assert state.owner is not None
    return {
        "id": state.id,
        "owner": state.owner.key,
        "principal": msgspec.json.encode(state.owner).decode(),
        "created_at": state.created_at,
        "updated_ms": state.updated_ms,
        "metadata": msgspec.json.encode(state.metadata, order="sorted").decode(),
        "title": state.title,
        "pinned": state.pinned,
        "head": state.head,
        "shares": msgspec.json.encode(state.shares).decode(),
        "attempt": state.attempt,
    }


def _slices(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (values[i : i + AT_ONCE] for i in range(0, len(values), AT_ONCE))
