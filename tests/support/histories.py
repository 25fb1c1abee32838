"""Finished responses and their records of `llm.history`, for tests of the archive."""

from __future__ import annotations

from typing import Any

from tailrace import log
from tailrace.protocol import events, fold, history, ids, records, topics

ALICE = records.Owner("https://issuer.test", "alice", "acme")
BOB = records.Owner("https://issuer.test", "bob", "acme")
INCARNATION = "the log"
PARTITIONS = topics.partitions_of(topics.HISTORY)
TAG = ids.incarnation_tag(INCARNATION)


def rid(number: int, partition: int = 0) -> str:
    entropy = number.to_bytes(ids.RANDOM_BYTES, "big")
    return ids.mint(ids.Address(TAG, partition, number), entropy)


def history_of(
    number: int,
    text: str = "One two.",
    *,
    owner: records.Owner = ALICE,
    created_at: int = 0,
    model: str = "m",
    metadata: dict[str, str] | None = None,
    choice: records.Choice | None = None,
    reason: str = "stop",
    partition: int = 0,
    **more: Any,
) -> history.History:
    """Response number `number`, whose every character is a token and whose every word a frame."""
    name = rid(number, partition)
    echo = events.echo(name, created_at or 1_000 + number, model, metadata=metadata)
    request = records.Request(
        name,
        owner,
        model,
        [{"role": "user", "content": f"question {number}"}],
        records.Sampling(100),
        echo,
        [{"type": "message", "role": "user", "content": f"question {number}"}],
        choice=choice,
        **more,
    )
    accepted: list[records.TokenRecord] = [
        records.Claim(name, f"own{number}", None, owner, "w", "t", 0, "r", "d", 3, echo)
    ]
    state, seq = fold.H0, 0
    for word in text.split(" ") if text else []:
        tokens = [ord(c) for c in f"{word} "]
        accepted.append(records.Tok(name, f"own{number}", seq, tokens, f"{word} ", state))
        state, seq = fold.roll(state, tokens), seq + len(tokens)
    if reason == "cancelled":
        accepted.append(records.Cancel(name, owner))
    else:
        usage = records.Usage(3, seq)
        accepted.append(records.End(name, f"own{number}", seq, reason, state, "", usage))
    return history.from_records(request, accepted, 1_700_000_000_000)


class Topics:
    """Records as a log would have them, in the order in which they were put."""

    def __init__(self) -> None:
        self.records: list[log.Record] = []
        self._ends: dict[tuple[str, int], int] = {}

    def put(self, topic: str, partition: int, key: str, value: bytes | None) -> log.Record:
        offset = self._ends.get((topic, partition), 0)
        self._ends[topic, partition] = offset + 1
        found = log.Record(topic, partition, offset, 1_000, key.encode(), value, ())
        self.records.append(found)
        return found

    def history(self, *whole: history.History) -> list[log.Record]:
        """Each as the worker writes it."""
        return [
            self.put(topics.HISTORY, history.partition(each.rid, PARTITIONS), key, value)
            for each in whole
            for key, value in history.parts(each)
        ]

    def metadata(self, name: str, by: records.Owner, **metadata: str) -> log.Record:
        value = records.encode(records.Metadata(name, by, metadata))
        return self.put(
            topics.HISTORY, history.partition(name, PARTITIONS), f"{name}:metadata", value
        )
