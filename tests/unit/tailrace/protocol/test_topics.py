"""The table of topics: co-partitioned, never compacted where history matters, and written only as
the access matrix grants."""

from __future__ import annotations

import pytest

from tailrace.protocol import topics
from tests.support import cases

POOLS = ("default", "large")


def rows() -> dict[str, topics.Topic]:
    return {row.name: row for row in topics.table(POOLS)}


def request_topics() -> list[str]:
    return [topics.requests(pool, priority) for pool in POOLS for priority in topics.CLASSES]


def test_a_request_topic_names_its_pool() -> None:
    assert [topics.pool_of(name) for name in request_topics()] == [
        pool for pool in POOLS for _ in topics.CLASSES
    ]
    assert [topics.pool_of(name) for name in ("", topics.TOKENS, "a.b.c.d")] == ["", "", ""]


def test_the_table_holds_each_topic_once() -> None:
    names = [row.name for row in topics.table(POOLS)]
    assert sorted(names) == sorted(
        [
            *request_topics(),
            *("llm.tokens", "llm.conversations", "llm.revocations", "llm.dlq", "llm.audit"),
            *("llm.usage", "llm.meta", "llm.files", "llm.uploads", "llm.history", "llm.deletions"),
            "llm.activity",
            "llm.vector_stores",
            "llm.passages",
        ]
    )


def test_requests_and_tokens_have_the_logs_partition_count() -> None:
    """P1 of the log rule: a request in partition p has its records in partition p of llm.tokens."""
    co_partitioned = {name for name, row in rows().items() if row.partitions == 0}
    assert co_partitioned == {*request_topics(), topics.TOKENS}


def test_tokens_are_never_compacted_nor_deleted_by_size() -> None:
    """By key, compaction would keep only the last record of a response."""
    config = rows()[topics.TOKENS].config
    assert config["cleanup.policy"] == "delete"
    assert config["retention.bytes"] == "-1"


def test_only_topics_that_hold_a_last_state_per_key_are_compacted() -> None:
    compacted = {name for name, row in rows().items() if "compact" in row.config["cleanup.policy"]}
    assert compacted == {
        topics.CONVERSATIONS,
        topics.DELETIONS,
        topics.REVOCATIONS,
        topics.META,
        topics.HISTORY,
        topics.UPLOADS,
        topics.VECTOR_STORES,
        topics.PASSAGES,
    }


@cases.each("name", request_topics())
def test_tokens_outlive_requests(name: str) -> None:
    """A request redelivered after its first records are gone would look new, and be answered
    twice."""
    tokens, requests = rows()[topics.TOKENS].config, rows()[name].config
    # Retention works on closed segments: a request may stay one segment longer than its own
    # retention says.
    assert int(requests["retention.ms"]) + int(requests["segment.ms"]) <= int(
        tokens["retention.ms"]
    )
    assert int(tokens["retention.ms"]) >= topics.DAY_MS  # the resume window
    assert int(tokens["segment.ms"]) * 10 <= int(tokens["retention.ms"])


def test_files_outlive_the_requests_that_name_them() -> None:
    """A file is named until it is half a day old, and that request may stay a segment longer than
    its retention says."""
    kept = int(rows()[topics.FILES].config["retention.ms"])
    assert kept >= topics.FILE_REUSE_MS + topics.UPLOAD_S * 1000
    assert int(rows()[topics.UPLOADS].config["retention.ms"]) >= topics.UPLOAD_S * 1000
    for name in request_topics():
        requests = rows()[name].config
        named = int(requests["retention.ms"]) + int(requests["segment.ms"])
        assert topics.FILE_REUSE_MS + named <= kept


def test_deadlines_and_freshness_depend_on_the_brokers_clock() -> None:
    for name in (*request_topics(), topics.TOKENS, topics.FILES, topics.USAGE, topics.AUDIT):
        assert rows()[name].config["message.timestamp.type"] == "LogAppendTime"


READ, WRITE = "Read", "Write"
BOTH = {READ, WRITE}
# The access matrix of the security document, one row per principal: what each may at most do.
MATRIX: dict[topics.Service, dict[str, set[str]]] = {
    "gateway": {
        "llm.requests": BOTH,
        topics.TOKENS: BOTH,
        topics.CONVERSATIONS: BOTH,
        topics.DELETIONS: BOTH,
        topics.REVOCATIONS: BOTH,
        topics.FILES: BOTH,
        topics.UPLOADS: BOTH,
        topics.VECTOR_STORES: BOTH,
        topics.PASSAGES: BOTH,
        topics.HISTORY: BOTH,
        topics.ACTIVITY: {READ},
        topics.AUDIT: {WRITE},
        topics.USAGE: {WRITE},
    },
    "worker": {
        "llm.requests": {READ},
        topics.FILES: {READ},
        topics.HISTORY: {WRITE},
        topics.ACTIVITY: {WRITE},
        topics.TOKENS: BOTH,
        topics.DLQ: {WRITE},
        topics.AUDIT: {WRITE},
        topics.USAGE: {WRITE},
    },
    "push": {
        name: {READ}
        for name in (
            "llm.requests",
            topics.TOKENS,
            topics.HISTORY,
            topics.CONVERSATIONS,
            topics.ACTIVITY,
            topics.DELETIONS,
            topics.REVOCATIONS,
        )
    },
    "archive": {topics.HISTORY: BOTH, topics.CONVERSATIONS: BOTH, topics.DELETIONS: {READ}},
    "operator": {
        name: {READ}
        for name in (
            "llm.requests",
            topics.TOKENS,
            topics.FILES,
            topics.UPLOADS,
            topics.VECTOR_STORES,
            topics.PASSAGES,
            topics.HISTORY,
            topics.CONVERSATIONS,
            topics.ACTIVITY,
            topics.DLQ,
            topics.AUDIT,
            topics.USAGE,
        )
    }
    | {topics.REVOCATIONS: BOTH, topics.DELETIONS: BOTH},
}
# Granted by the matrix, and not used yet: the table asks for less. A writer that comes must
# be added to the table first.
UNUSED = {("gateway", topics.AUDIT, WRITE), ("gateway", topics.USAGE, WRITE)}


def test_the_table_gives_each_service_what_the_access_matrix_grants_and_no_more() -> None:
    granted = {
        (service, name, right)
        for service, row in MATRIX.items()
        for prefix, rights in row.items()
        for name in rows()
        if name == prefix or name.startswith(prefix + ".")
        for right in rights
    }
    asked = {(service, row.name, READ) for row in rows().values() for service in row.readers}
    asked |= {(service, row.name, WRITE) for row in rows().values() for service in row.writers}
    # The incarnation is younger than the matrix: every service must know which log it is, and only
    # the operator names it.
    meta = {(service, topics.META, READ) for service in MATRIX} | {("operator", topics.META, WRITE)}
    assert asked == (granted - UNUSED) | meta


def test_every_topic_has_a_writer_and_the_operator_reads_it() -> None:
    """What the operator may not read it does not see: `topics apply` would try to create it."""
    for row in rows().values():
        assert row.writers, row.name
        assert "operator" in row.readers, row.name


@cases.each(
    ("pool", "priority"),
    [
        ("", "batch"),
        ("Default", "batch"),
        ("a.b", "batch"),
        ("-a", "batch"),
        ("a_b", "batch"),
        ("a\n", "batch"),
        ("a/../b", "batch"),
        ("a" * 64, "batch"),
        ("default", "urgent"),
        ("default", ""),
    ],
)
def test_a_name_that_kafka_or_the_access_rules_could_misread_is_refused(
    pool: str, priority: str
) -> None:
    with pytest.raises(ValueError):
        topics.requests(pool, priority)


def test_names_are_stable() -> None:
    assert topics.requests("default", "interactive") == "llm.requests.default.interactive"
    assert topics.group("default") == "tailrace.default"


def test_two_tables_do_not_share_settings() -> None:
    """The settings are dictionaries: one deployment's change must not reach another's."""
    one, other = rows(), {row.name: row for row in topics.table(POOLS)}
    one[topics.CONVERSATIONS].config["segment.ms"] = "1"
    one[topics.TOKENS].config["segment.ms"] = "1"
    assert other[topics.CONVERSATIONS].config["segment.ms"] != "1"
    assert other[topics.TOKENS].config["segment.ms"] != "1"
    assert other[topics.META].config["segment.ms"] != "1"


@cases.each(
    "name", [topics.CONVERSATIONS, topics.DELETIONS, topics.USAGE, topics.META, topics.HISTORY]
)
def test_a_fixed_number_of_partitions_is_what_the_table_says(name: str) -> None:
    assert topics.partitions_of(name) == rows()[name].partitions


@cases.each("name", [topics.TOKENS, *request_topics(), "llm.none"])
def test_a_topic_with_the_logs_partition_count_or_none_has_no_fixed_number(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        topics.partitions_of(name)


def test_every_version_and_service_puts_a_key_into_the_same_partition() -> None:
    """Compaction keeps the last record of a key in each partition."""
    keys = ("resp_AWFiY2QAAQAAAAAAXQAAAAAAAAAAAAAA", "a", "")
    assert [topics.partition_of(topics.DELETIONS, key) for key in keys] == [0, 5, 0]
    assert {topics.partition_of(topics.META, key) for key in keys} == {0}
