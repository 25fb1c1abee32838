"""The search over conversations: one owner with many turns among others with as many, in an
archive on SQLite that the archive's own fold has filled.

Texts are made of words whose frequencies fall as in a language (the n-th one is n times rarer than
the first). `fold` is how fast an archive takes these turns, and the same responses where they are
in no conversation, so that they have no texts. Other cases are questions of one kind, each asked by
`Reader.search`: no gateway and no other client is there.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import uvloop

from bench import measure, stacks
from tailrace import log
from tailrace.archive import database, folding, migration, sql_reader
from tailrace.protocol import conversations, events, fold, history, ids, records, topics

NAME: Final = "search"
OVER, UNDER = "with texts", "without"
PLOTS: Final = ("search_p50_ms", "search_p99_ms", "turns_per_s", "kib_per_turn")
OWNERS: Final = 5
TURNS: Final = 10  # of a conversation
VOCABULARY: Final = 30_000
QUESTION_WORDS, ANSWER_WORDS = 40, 200  # words of a turn
TOGETHER: Final = 50  # turns in a transaction
LOG: Final = "bench"
PARTITION: Final = 0
KINDS: Final = ("common word", "rare word", "three words", "one letter", "no hit")


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    turns = plan.pick(1_000, 4_000)  # of each owner
    for side in (UNDER, OVER):
        path, fewer = plan.scratch / f"{side}.sqlite3", turns if side is OVER else turns // 4
        took_s, count = uvloop.run(_fill(path, fewer, side)), fewer * OWNERS
        values = {"turns_per_s": count / took_s, "kib_per_turn": path.stat().st_size / 1024 / count}
        yield measure.Row(NAME, "fold", side, 0, values)
    for number in range(plan.rounds):
        for kind in KINDS:
            times = uvloop.run(_search_times(path, kind, plan.pick(50, 300), number))
            values = {f"search_p{p}_ms": measure.percentile(times, p) for p in (50, 99)}
            yield measure.Row(NAME, f"{kind}, {turns:,} turns", OVER, number, values)


async def _fill(path: Path, turns: int, side: str) -> float:
    """Make an archive; returns the seconds that its fold took."""
    engine = database.engine(f"sqlite:///{path}", create=True)
    await migration.migrate(engine)
    archive_folding = folding.Folding(engine, LOG, _nothing_to_erase)
    ends: dict[folding.Place, int] = {}
    took_s, remaining = 0.0, _history(turns)
    while batch := list(itertools.islice(remaining, TOGETHER)):
        keyed_records = [each for turn in batch for each in turn]
        if side is UNDER:
            keyed_records = [each for each in keyed_records if each[0] == topics.HISTORY]
        some = [_record(ends, *each) for each in keyed_records]
        starts = {
            (r.topic, r.partition): r.offset
            for r in reversed(some)  # the first one of each partition is kept
        }
        began = time.perf_counter()
        await archive_folding.apply(some, starts)
        took_s += time.perf_counter() - began
    await engine.dispose()
    return took_s


async def _nothing_to_erase(_: object) -> None:
    raise AssertionError("nothing is erased here")


async def _search_times(path: Path, kind: str, count: int, number: int) -> list[float]:
    """Milliseconds of each of `count` searches."""
    engine = database.engine(f"sqlite:///{path}")
    reader, chance = sql_reader.SqlReader(engine), random.Random(f"{kind} {number}")
    times = []
    for _ in range(count):
        began = time.perf_counter()
        await reader.search(_owner(0).key, _question(kind, chance), None, 20)
        times.append((time.perf_counter() - began) * 1e3)
    await engine.dispose()
    return times


def _question(kind: str, chance: random.Random) -> str:
    if kind == "common word":
        return _word(chance.randrange(20))
    if kind == "rare word":
        return _word(chance.randrange(VOCABULARY // 2, VOCABULARY))
    if kind == "three words":
        return " ".join(_word(chance.randrange(10, 500)) for _ in range(3))
    if kind == "one letter":
        return chance.choice("bdfgklmnprst")
    return f"{_word(1)} quux{chance.randrange(100)}"


def _word(number: int) -> str:
    """A word that people could say, for each number another one."""
    parts = []
    number += len(_SYLLABLES)
    while number:
        number, at = divmod(number, len(_SYLLABLES))
        parts.append(_SYLLABLES[at])
    return "".join(parts)


_SYLLABLES: Final = tuple(f"{a}{b}" for a in "bdfgklmnprst" for b in "aeiou")


def _owner(number: int) -> records.Owner:
    return records.Owner("https://bench.invalid", f"owner {number}")


KeyedRecord = tuple[str, int, str, bytes]  # topic, partition, key, value


def _history(turns: int) -> Iterator[list[KeyedRecord]]:
    """The records of each turn, those of all owners mixed."""
    chance = random.Random(1)
    weights = list(itertools.accumulate(1 / (n + 1) for n in range(VOCABULARY)))
    vocabulary = [_word(n) for n in range(VOCABULARY)]
    names: dict[int, str] = {}
    for number in range(turns):
        for owner in range(OWNERS):
            keyed_records: list[KeyedRecord] = []
            if number % TURNS == 0:
                names[owner] = ids.mint(_address(), os.urandom(11), conversations.PREFIX)
                title = " ".join(chance.choices(vocabulary, cum_weights=weights, k=5))
                keyed_records += _acts(
                    conversations.Created(names[owner], _owner(owner), 1, title=title)
                )
            turn_words = chance.choices(
                vocabulary, cum_weights=weights, k=QUESTION_WORDS + ANSWER_WORDS
            )
            whole = _response(
                _owner(owner), " ".join(turn_words[:QUESTION_WORDS]), turn_words[QUESTION_WORDS:]
            )
            keyed_records += _acts(conversations.Turn(names[owner], _owner(owner), whole.rid, None))
            at = history.partition(whole.rid, topics.partitions_of(topics.HISTORY))
            keyed_records += [(topics.HISTORY, at, *each) for each in history.parts(whole)]
            yield keyed_records


def _acts(*acts: conversations.Act) -> Iterable[KeyedRecord]:
    for act in acts:
        key = conversations.key(act, os.urandom(8).hex())
        yield topics.CONVERSATIONS, PARTITION, key, conversations.encode(act)


def _address() -> ids.Address:
    return ids.Address(ids.incarnation_tag(LOG), PARTITION, 0)


def _response(owner: records.Owner, question: str, words: Sequence[str]) -> history.History:
    rid = ids.mint(_address(), os.urandom(ids.RANDOM_BYTES))
    echo, own = events.echo(rid, 1_000, "bench"), "own"
    messages = [{"type": "message", "role": "user", "content": question}]
    request = records.Request(rid, owner, "bench", [], records.Sampling(1_000), echo, messages)
    claim = records.Claim(rid, own, None, owner, "w", "t", 0, "r", "d", 3, echo)
    token_records: list[records.TokenRecord] = [claim]
    state = fold.H0
    for seq, word in enumerate(words):
        token_records.append(records.Tok(rid, own, seq, [seq], f"{word} ", state))
        state = fold.roll(state, [seq])
    usage = records.Usage(QUESTION_WORDS, len(words))
    token_records.append(records.End(rid, own, len(words), "stop", state, "", usage))
    return history.from_records(request, token_records, 1_700_000_000_000)


def _record(
    ends: dict[folding.Place, int], topic: str, partition: int, key: str, value: bytes
) -> log.Record:
    offset = ends.get((topic, partition), 0)
    ends[topic, partition] = offset + 1
    return log.Record(topic, partition, offset, 1_000 + offset, key.encode(), value, ())
