"""The table of topics: names, partitions, clean-up, writers and readers (pure).

One command applies it (`tailrace topics apply`); no service creates topics. The gate in `k8s/`
compares the cluster's topics, users and ACLs with it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Literal

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
PriorityClass = Literal["interactive", "batch"]
CLASSES: tuple[PriorityClass, ...] = ("interactive", "batch")

TOKENS = "llm.tokens"
CONVERSATIONS = "llm.conversations"
ACTIVITY = "llm.activity"
DELETIONS = "llm.deletions"
REVOCATIONS = "llm.revocations"
FILES = "llm.files"
HISTORY = "llm.history"
UPLOADS = "llm.uploads"
VECTOR_STORES = "llm.vector_stores"
PASSAGES = "llm.passages"
DLQ = "llm.dlq"
AUDIT = "llm.audit"
USAGE = "llm.usage"
META = "llm.meta"

# A revocation reaches at most a year ahead, and its credentials may live for a day and a minute.
REVOCATION_DAYS = 365 + 2
# For how long after it was written a chunk of a file may be named by a new request.
FILE_REUSE_MS = 12 * HOUR_MS
DELETION_MS = 2 * DAY_MS
_FILE_DAYS = 2
# For how long a client may name a file that it uploaded. It may have been in the log for the time
# of reuse already.
UPLOAD_S = (_FILE_DAYS * DAY_MS - FILE_REUSE_MS) // 1000

_POOL = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")

Service = Literal["gateway", "push", "worker", "archive", "operator"]


@dataclass(frozen=True, slots=True)
class Topic:
    """One row of the table.

    `partitions` 0 means the log's partition count: co-partitioned with `llm.tokens` (log rule P1).
    `config` holds Kafka topic settings.
    """

    name: str
    partitions: int
    config: dict[str, str] = field(hash=False)
    writers: frozenset[Service] = frozenset()
    readers: frozenset[Service] = frozenset()


def requests(pool: str, priority: str) -> str:
    """The name of a pool's request topic for one priority class. Raises ValueError."""
    if not _POOL.match(pool) or priority not in CLASSES:
        raise ValueError(f"no such pool or class: {pool!r}, {priority!r}")
    return f"llm.requests.{pool}.{priority}"


def pool_of(name: str) -> str:
    """The pool of a request topic; empty for any other name."""
    parts = name.split(".")
    return parts[2] if len(parts) == 4 and parts[:2] == ["llm", "requests"] else ""


def class_of(name: str) -> str:
    """The priority class of a request topic; empty for any other name."""
    return name.rpartition(".")[2] if pool_of(name) else ""


def group(pool: str) -> str:
    """Consumer group of a pool's workers."""
    return f"tailrace.{pool}"


def _deleted_after(ms: int, **more: str) -> dict[str, str]:
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(ms),
        "message.timestamp.type": "LogAppendTime",
        **more,
    }


_COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.ms": "600000",
}


def table(pools: tuple[str, ...] | list[str]) -> list[Topic]:
    """All topics of a deployment with these pools.

    Tokens are kept an hour longer than requests. Otherwise a redelivered request could look new,
    because its first token records had expired before it. Files are kept for as long as the last
    request that may name them.
    """
    rows = [
        Topic(
            requests(pool, priority),
            0,
            # Without short segments a busy partition keeps requests days longer than their tokens.
            _deleted_after(DAY_MS, **{"segment.ms": "600000"}),
            frozenset({"gateway"}),
            frozenset({"gateway", "push", "worker", "operator"}),
        )
        for pool in pools
        for priority in CLASSES
    ]
    rows += [
        Topic(
            TOKENS,
            0,
            # Retention works on closed segments, so a segment is much shorter than the retention.
            # Bytes never delete (log rule §8).
            _deleted_after(
                DAY_MS + HOUR_MS,
                **{
                    "retention.bytes": "-1",
                    "segment.ms": "600000",
                    "segment.bytes": str(64 * 2**20),
                },
            ),
            frozenset({"gateway", "worker"}),
            frozenset({"gateway", "push", "worker", "operator"}),
        ),
        Topic(
            FILES,
            6,
            _deleted_after(
                _FILE_DAYS * DAY_MS,
                **{"segment.ms": "3600000", "segment.bytes": str(256 * 2**20)},
            ),
            frozenset({"gateway"}),
            frozenset({"gateway", "worker", "operator"}),
        ),
        Topic(
            HISTORY,
            12,
            # Kept for ever. Erased records disappear within a day, and their tombstones stay for
            # a week: an archive that was down for less than a week sees them.
            {
                **_COMPACTED,
                "message.timestamp.type": "LogAppendTime",
                "max.compaction.lag.ms": str(DAY_MS),
                "delete.retention.ms": str(7 * DAY_MS),
            },
            # A gateway writes metadata and tombstones, the archive tombstones only
            # (tailrace.protocol.record_tags).
            frozenset({"gateway", "worker", "archive"}),
            frozenset({"gateway", "push", "archive", "operator"}),
        ),
        Topic(
            UPLOADS,
            6,
            # Only the deletion remains of a deleted file.
            {
                **_COMPACTED,
                "cleanup.policy": "compact,delete",
                "retention.ms": str(_FILE_DAYS * DAY_MS),
            },
            frozenset({"gateway"}),
            frozenset({"gateway", "operator"}),
        ),
        Topic(
            DELETIONS,
            6,
            # A deletion matters as long as the log may hold a record of the response.
            {
                **_COMPACTED,
                "cleanup.policy": "compact,delete",
                "retention.ms": str(DELETION_MS),
            },
            # The operator copies what an older version wrote into `llm.conversations`.
            frozenset({"gateway", "operator"}),
            frozenset({"gateway", "push", "archive", "operator"}),
        ),
        Topic(
            CONVERSATIONS,
            6,
            # Kept for ever, as the responses are. It may also hold deletions of responses, which
            # gateways of version 0.1 wrote.
            {
                **_COMPACTED,
                "message.timestamp.type": "LogAppendTime",
                "max.compaction.lag.ms": str(DAY_MS),
                "delete.retention.ms": str(7 * DAY_MS),
            },
            # The archive writes tombstones only.
            frozenset({"gateway", "archive"}),
            frozenset({"gateway", "push", "archive", "operator"}),
        ),
        *(
            # Kept for ever. Erased records disappear within a day, and their tombstones stay for
            # a week: a vector database that was down for less than a week sees them.
            Topic(
                name,
                6,
                {
                    **_COMPACTED,
                    "message.timestamp.type": "LogAppendTime",
                    "max.compaction.lag.ms": str(DAY_MS),
                    "delete.retention.ms": str(7 * DAY_MS),
                },
                frozenset({"gateway"}),
                frozenset({"gateway", "operator"}),
            )
            for name in (VECTOR_STORES, PASSAGES)
        ),
        Topic(
            ACTIVITY,
            6,
            # A feed resumes within this time.
            _deleted_after(2 * DAY_MS, **{"segment.ms": "3600000"}),
            frozenset({"worker"}),
            frozenset({"gateway", "push", "operator"}),
        ),
        Topic(
            REVOCATIONS,
            1,
            # A record means nothing once the credentials that it names have expired.
            _COMPACTED
            | _deleted_after(REVOCATION_DAYS * DAY_MS, **{"cleanup.policy": "compact,delete"}),
            frozenset({"gateway", "operator"}),
            frozenset({"gateway", "push", "operator"}),
        ),
        Topic(
            META,
            1,
            dict(_COMPACTED),
            frozenset({"operator"}),
            frozenset({"gateway", "push", "worker", "archive", "operator"}),
        ),
        Topic(DLQ, 1, _deleted_after(14 * DAY_MS), frozenset({"worker"}), frozenset({"operator"})),
        Topic(
            AUDIT, 1, _deleted_after(365 * DAY_MS), frozenset({"worker"}), frozenset({"operator"})
        ),
        Topic(
            USAGE, 6, _deleted_after(30 * DAY_MS), frozenset({"worker"}), frozenset({"operator"})
        ),
    ]
    return rows


def partitions_of(name: str) -> int:
    """Number of partitions of a topic whose count does not depend on the log's.

    Raises:
        ValueError: no such topic.
    """
    for row in table(()):
        if row.name == name and row.partitions:
            return row.partitions
    raise ValueError(f"{name} has no partition count of its own")


def partition_of(name: str, key: str) -> int:
    """The partition of a key in a topic whose partition count does not depend on the log's. Raises
    ValueError like `partitions_of`."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % partitions_of(name)
