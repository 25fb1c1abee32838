"""Whatever the API accepts, the archive holds exactly: on SQLite and on a real PostgreSQL.

Values are generated over every field that a client fills in: those of a response's request, of its
metadata, of a conversation and of its items, and the names in a credential.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.parsing import conversations_api, json_body, shared_fields
from tailrace.archive import archived, fold, sql_reader
from tailrace.auth.verification import MAX_NAME_CHARS
from tailrace.protocol import conversations, errors, history, records, topics
from tests.support import cases
from tests.support.archive_rows import Fold
from tests.support.histories import INCARNATION, Topics, history_of, rid

ODD = (
    "\0",
    "\x01",
    "\x010",
    "\x011\x010\0",
    "a\0b\0",
    "\x1b\x7f\x80\x9f",
    "\ufeff\ufffe\uffff\U0010ffff",
    "\ud7ff\ue000\u2028\u2029\u202e",
    "e\u0301\u0130\u00df\u1e9e",
    "'\"\\%_;--\\0\\u0000$1:x{}[]",
    " \t\r\n",
    "NaN",
    "\U0001f468\u200d\U0001f469",
)


def texts(chance: random.Random, longest: int) -> str:
    """A text of up to `longest` characters, now and then of as many."""
    length = longest if chance.random() < 0.1 else chance.randrange(min(longest, 40) + 1)
    found = ""
    while len(found) < length:
        if chance.random() < 0.5:
            found += chance.choice(ODD)
        else:
            code = chance.choice([chance.randrange(0x80), chance.randrange(0x110000)])
            found += "" if 0xD800 <= code < 0xE000 else chr(code)
    return found[:length]


def metadata(chance: random.Random) -> dict[str, str]:
    made = {
        texts(chance, shared_fields.MAX_METADATA_KEY): texts(
            chance, shared_fields.MAX_METADATA_VALUE
        )
        for _ in range(chance.randrange(5))
    }
    return shared_fields.metadata({"metadata": made}) or {}  # the gateway takes it


def owner(chance: random.Random) -> records.Owner:
    """As long as a credential's names may be, and of characters that take most bytes."""
    name = "".join(chr(chance.randrange(0x10000, 0x10FFFF)) for _ in range(MAX_NAME_CHARS))
    return records.Owner("https://issuer.test/" + "x" * 200, name, "t" * 64)


def response(chance: random.Random, number: int, by: records.Owner) -> history.History:
    return history_of(
        number,
        " ".join(texts(chance, 60) for _ in range(3)),
        owner=by,
        metadata=metadata(chance),
        model=texts(chance, 60) or "m",
        previous=rid(number + 500) if chance.random() < 0.5 else None,
    )


def acts(chance: random.Random, number: int, by: records.Owner) -> list[conversations.Act]:
    """A conversation of odd words, each as the gateway takes it."""
    name = rid(number).replace("resp_", conversations.PREFIX)
    made: list[conversations.Act] = [
        conversations.Created(name, by, 7, metadata(chance), title(chance), f"attempt{number}"),
        conversations.Changed(name, by, title=title(chance)),
        conversations.Changed(name, by, metadata=metadata(chance)),
        conversations.Turn(name, by, rid(number)),
        conversations.Item(name, by, f"msg_{number}", item(chance)),
        conversations.Added(name, by, f"node_{number}", [f"msg_{number}"], rid(number)),
        conversations.Shared(name, by, "share_1", rid(number), 7, 9, title(chance)),
    ]
    return made


def title(chance: random.Random) -> str:
    asked = json_body.decode(json.dumps({"title": texts(chance, 100) or "-"}))
    return conversations_api.parse_update(asked).title or ""  # as the gateway takes it


def item(chance: random.Random) -> dict[str, Any]:
    text = {"type": "input_text", "text": texts(chance, 400), texts(chance, 20): texts(chance, 20)}
    return {"type": "message", "role": "user", "content": [text]}


async def judge(engine: AsyncEngine, seed: int, count: int) -> None:
    """Fold what clients may have said, and compare all that is read with the log."""
    chance, log_ = random.Random(seed), Topics()
    owners = [owner(chance) for _ in range(3)]
    whole = [response(chance, n, chance.choice(owners)) for n in range(count)]
    log_.history(*whole)
    changes = {each.rid: metadata(chance) for each in whole if chance.random() < 0.4}
    for each in whole:
        if each.rid in changes:
            value = records.encode(records.Metadata(each.rid, each.owner, changes[each.rid]))
            key = history.metadata_key(each.rid)
            log_.put(topics.HISTORY, 0, key, value)
    talks: dict[str, conversations.Conversation] = {}
    for number in range(count):
        for act in acts(chance, number, whole[number].owner):
            talk = talks.setdefault(act.id, conversations.Conversation(act.id))
            assert talk.apply(act, 1_000)
            log_.put(topics.CONVERSATIONS, 0, conversations.key(act), conversations.encode(act))
    folded = await Fold(engine).all(log_.records)
    assert (folded.garbage, folded.aside) == (0, ())
    read = sql_reader.SqlReader(engine)
    with cases.collected() as case:
        for each in whole:
            with case(each.rid):
                said = changes.get(each.rid, each.request.echo["metadata"])
                assert await read.find(each.rid, each.owner.key) == archived.ArchivedResponse(
                    each, said
                )
                wanted = archived.ListQuery(
                    each.owner.key, fold.RESPONSE, each.model, said, limit=count
                )
                groups = await read.list_responses(wanted)
                assert each.rid in [group[0].history.rid for group in groups]
        for name, talk in talks.items():
            with case(name):
                found, _ = await read.conversation(name, INCARNATION, 0, contents=True)
                assert found == talk


async def test_odd_values_are_read_from_the_archive_as_the_log_has_them(
    engine: AsyncEngine,
) -> None:
    """Symptom: U+0000 in a title or in metadata, which PostgreSQL's texts cannot hold, stopped the
    archive for everybody."""
    await judge(engine, 1, 12)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 10))
async def test_many_odd_values_are_read_as_the_log_has_them(engine: AsyncEngine, seed: int) -> None:
    await judge(engine, seed, 120)


async def test_a_search_finds_words_beside_odd_characters(engine: AsyncEngine) -> None:
    chance, log_ = random.Random(3), Topics()
    by = owner(chance)
    name = rid(1).replace("resp_", conversations.PREFIX)
    created = conversations.Created(name, by, 7, title="before\0after \x01zebra\x01")
    log_.put(topics.CONVERSATIONS, 0, conversations.key(created), conversations.encode(created))
    await Fold(engine).all(log_.records)
    for asked in ("zebra", "after", "before"):
        found = await sql_reader.SqlReader(engine).search(by.key, asked, None, 5)
        assert [match.conversation.id for match in found] == [name], asked
        assert found[0].conversation.title == created.title


@cases.each("body", [rb'{"title": "\ud800"}', rb'{"title": "\udc00\ud800"}'])
def test_half_a_character_is_refused_before_the_log(body: bytes) -> None:
    """No log, store or database can hold it as UTF-8."""
    with pytest.raises(errors.ApiError):
        json_body.decode(body)
