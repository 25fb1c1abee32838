"""Authentication tags: what is genuine, and every way in which a record is forged."""

from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import record_tags, records, topics
from tests.support import cases

SECRETS = {role: bytes([n]) * 32 for n, role in enumerate(record_tags.ROLES, 1)}
OWNER = records.Owner("https://tests", "ann")
REQUESTS = topics.requests("default", "interactive")
KEY = b"resp_1"
CANCEL = records.encode(records.Cancel("resp_1", OWNER))
YIELD = records.encode(records.Yield("resp_1", "own", 3))


def key(
    name: str, role: record_tags.Role, secret: bytes = b"", signs_from: int = 0
) -> record_tags.Key:
    text = base64.b64encode(secret or SECRETS[role]).decode()
    return record_tags.Key(name, role, text, signs_from)


def keyring(*more: record_tags.Key, untagged: str = "refused") -> record_tags.Keyring:
    keys = [*(key(role, role) for role in record_tags.ROLES), *more]
    text = msgspec.json.encode({"keys": keys, "untagged": untagged})
    return record_tags.parse(text)


def signed(
    by: record_tags.Role, topic: str, value: bytes, partition: int = 2, key: bytes = KEY
) -> list[tuple[str, bytes]]:
    return [("tag", keyring().tag(by, topic, partition, key, value))]


@cases.each(
    ("by", "topic", "value"),
    [
        ("gateway", REQUESTS, b"{}"),
        ("gateway", topics.TOKENS, CANCEL),
        ("gateway", topics.CONVERSATIONS, b"{}"),
        ("gateway", topics.DELETIONS, b"{}"),
        ("operator", topics.DELETIONS, b"{}"),
        ("gateway", topics.REVOCATIONS, b"{}"),
        ("operator", topics.REVOCATIONS, b"{}"),
        ("operator", topics.META, b"{}"),
        ("worker", topics.TOKENS, YIELD),
        ("worker", topics.USAGE, b"{}"),
        ("worker", topics.DLQ, b"{}"),
        ("worker", topics.HISTORY, b"{}"),
        ("gateway", topics.HISTORY, b'{"t":"METADATA","rid":"r"}'),
    ],
)
def test_what_its_writer_signed_is_genuine(by: record_tags.Role, topic: str, value: bytes) -> None:
    headers = [("traceparent", b"00-1"), *signed(by, topic, value)]
    assert keyring().forgery(topic, 2, KEY, value, headers) is None


@cases.each(
    ("by", "topic", "value"),
    [
        ("worker", REQUESTS, b"{}"),
        ("operator", REQUESTS, b"{}"),
        ("gateway", topics.TOKENS, YIELD),
        ("gateway", topics.TOKENS, CANCEL.replace(b'{"t":', b'{ "t":')),
        ("operator", topics.TOKENS, CANCEL),
        ("worker", topics.CONVERSATIONS, b"{}"),
        ("operator", topics.CONVERSATIONS, b"{}"),
        ("worker", topics.DELETIONS, b"{}"),
        ("worker", topics.REVOCATIONS, b"{}"),
        ("gateway", topics.META, b"{}"),
        ("gateway", topics.USAGE, b"{}"),
        ("gateway", topics.HISTORY, b"{}"),
        ("operator", topics.HISTORY, b"{}"),
    ],
)
def test_a_role_signs_only_what_it_may_write(
    by: record_tags.Role, topic: str, value: bytes
) -> None:
    assert keyring().forgery(topic, 2, KEY, value, signed(by, topic, value)) == "not its writer"


def test_a_value_with_two_types_is_garbage() -> None:
    # So a text that begins as a CANCEL is no other record.
    assert CANCEL.startswith(b'{"t":"CANCEL",')
    for second in (b'"t":"YIELD","own":"o","seq":1}', b'"t":"CANCEL"}'):
        two = b'{"t":"CANCEL","rid":"r",' + second
        assert not isinstance(records.decode_token(two), records.Yield)
    assert records.decode_token(b'{"t":"CANCEL","rid":"r","own":"o","seq":1,"t":"YIELD"}') is None


@cases.each(
    "changed",
    [
        {"topic": topics.requests("other", "interactive")},
        {"partition": 3},
        {"key": b"resp_2"},
        {"key": None},
        {"value": b'{"a":2}'},
        {"key": b"resp_1{", "value": b'"a":1}'},
    ],
)
def test_a_tag_holds_for_one_record_in_one_place(changed: dict[str, object]) -> None:
    value = b'{"a":1}'
    headers = signed("gateway", REQUESTS, value)
    place = {"topic": REQUESTS, "partition": 2, "key": KEY, "value": value}
    assert keyring().forgery(**place, headers=headers) is None  # type: ignore[arg-type]
    assert keyring().forgery(**(place | changed), headers=headers) == "wrong tag"  # type: ignore[arg-type]


def test_no_tag_an_unknown_key_and_a_broken_tag() -> None:
    value = b"{}"
    ring, [(_, good)] = keyring(), signed("gateway", REQUESTS, value)
    for headers, why in (
        ([], "no tag"),
        ([("Tag", good)], "no tag"),
        ([("tag", b"")], "unknown key"),
        ([("tag", b"nobody:" + good[8:])], "unknown key"),
        ([("tag", b"gateway")], "wrong tag"),
        ([("tag", good[:-1])], "wrong tag"),
        ([("tag", good + b"x")], "wrong tag"),
        # The first one counts: a record cannot try several.
        ([("tag", good[:-1]), ("tag", good)], "wrong tag"),
    ):
        assert ring.forgery(REQUESTS, 2, KEY, value, headers) == why


@given(
    st.binary(max_size=40),
    st.binary(max_size=40) | st.none(),
    st.lists(st.tuples(st.just("tag"), st.binary(max_size=60)), max_size=3),
)
def test_nothing_that_was_not_signed_is_genuine(
    value: bytes, key: bytes | None, headers: list[tuple[str, bytes]]
) -> None:
    assert keyring().forgery(topics.TOKENS, 0, key, value, headers) is not None


def test_a_record_without_a_value_is_not_judged() -> None:
    assert keyring().forgery(REQUESTS, 0, KEY, None, []) is None


def test_untagged_records_count_only_where_the_file_says_so() -> None:
    ring = keyring(untagged="accepted")
    assert ring.forgery(REQUESTS, 0, KEY, b"{}", []) is None
    assert ring.forgery(REQUESTS, 0, KEY, b"{}", [("tag", b"gateway:bad")]) == "wrong tag"


def test_the_newest_key_signs_once_its_time_has_come_and_all_are_accepted() -> None:
    ring = keyring(
        key("new", "gateway", b"n" * 32, 1_000), key("newer", "gateway", b"m" * 32, 2_000)
    )
    assert ring.signing_key("gateway", 999.0) == ("gateway", 1_000)
    assert ring.signing_key("gateway", 1_000.0) == ("new", 2_000)
    assert ring.signing_key("gateway", 5_000.0) == ("newer", float("inf"))
    assert ring.signing_key("worker", 5_000.0) == ("worker", float("inf"))
    for name in ("gateway", "new", "newer"):
        tag = ring.tag(name, REQUESTS, 0, KEY, b"{}")
        assert ring.forgery(REQUESTS, 0, KEY, b"{}", [("tag", tag)]) is None


def test_a_key_of_the_future_signs_where_there_is_no_other() -> None:
    keys = [key(role, role, signs_from=9_000) for role in record_tags.ROLES]
    ring = record_tags.Keyring(record_tags.KeyFile(keys))
    assert ring.signing_key("worker", 1.0) == ("worker", 9_000)


@cases.each(
    ("text", "why"),
    [
        (b"", "Input data"),
        (b"\xff", "UTF-8|malformed"),
        (b"[]", "Expected `object`"),
        (b'{"keys":[]}', "no key for gateway"),
        (b'{"keys":[],"more":1}', "more"),
        (b'{"keys":[{"id":"A b","role":"gateway","secret":""}]}', "id"),
        (b'{"keys":[{"id":"a","role":"push","secret":""}]}', "push"),
        (b'{"keys":[{"id":"a","role":"gateway","secret":"***"}]}', "not base64"),
        (b'{"keys":[{"id":"a","role":"gateway","secret":"c2hvcnQ="}]}', "5 bytes, not 32"),
        (
            msgspec.json.encode({"keys": [key("a", "gateway"), key("a", "worker")]}),
            "twice",
        ),
    ],
)
def test_a_bad_file_is_refused_with_the_reason(text: bytes, why: str) -> None:
    with pytest.raises(record_tags.InvalidKeys, match=why):
        record_tags.parse(text)


def test_no_secret_is_shown() -> None:
    shown = f"{keyring()!r} {key('a', 'worker')!r}"
    for secret in SECRETS.values():
        assert base64.b64encode(secret).decode() not in shown
