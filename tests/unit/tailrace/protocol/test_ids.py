"""Response ids: an id is its own address, has one spelling, and anything else is refused without a
crash."""

from __future__ import annotations

import base64
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import ids
from tests.support import cases

TAG = ids.incarnation_tag("a log")
ENTROPY = bytes(range(ids.RANDOM_BYTES))
ALPHABET = string.ascii_letters + string.digits + "-_"

addresses = st.builds(
    ids.Address,
    incarnation=st.binary(min_size=4, max_size=4),
    partition=st.integers(0, 2**16 - 1),
    offset=st.integers(0, 2**48 - 1),
)


def minted(partition: int = 3, offset: int = 1000) -> str:
    return ids.mint(ids.Address(TAG, partition, offset), ENTROPY)


def with_format(version: int) -> str:
    raw = base64.urlsafe_b64decode(minted()[len(ids.PREFIX) :])
    return ids.PREFIX + base64.urlsafe_b64encode(bytes((version,)) + raw[1:]).decode()


@given(addresses, st.binary(min_size=ids.RANDOM_BYTES, max_size=ids.RANDOM_BYTES))
def test_an_id_gives_back_the_address_it_was_minted_with(
    address: ids.Address, entropy: bytes
) -> None:
    rid = ids.mint(address, entropy)
    assert ids.parse(rid) == address
    assert len(rid) == len(ids.PREFIX) + 32
    assert set(rid[len(ids.PREFIX) :]) <= set(ALPHABET)


@given(addresses, st.binary(min_size=11, max_size=11), st.binary(min_size=11, max_size=11))
def test_ids_differ_when_their_randomness_differs(
    address: ids.Address, one: bytes, other: bytes
) -> None:
    assert (ids.mint(address, one) == ids.mint(address, other)) == (one == other)


@given(st.text(alphabet=ALPHABET, min_size=32, max_size=32))
def test_no_two_spellings_name_the_same_address(body: str) -> None:
    """A cache keyed by id text would otherwise show one response under two keys, and a deletion
    could be walked around."""
    rid = ids.PREFIX + body
    try:
        address = ids.parse(rid)
    except ids.InvalidId:
        return
    raw = base64.urlsafe_b64decode(body)
    assert ids.mint(address, raw[13:]) == rid


MALFORMED = {
    "empty": "",
    "prefix only": "resp_",
    "31 characters": minted()[:-1],
    "33 characters": minted() + "A",
    "padding": minted() + "=",
    "padding inside": minted()[:-1] + "=",
    "other prefix": "msg_" + minted()[5:],
    "prefix in capitals": "RESP_" + minted()[5:],
    "no prefix": minted()[5:],
    "leading space": " " + minted(),
    "trailing newline": minted() + "\n",
    "newline as last character": minted()[:-1] + "\n",
    "NUL": minted()[:-1] + "\0",
    "base64 of the other alphabet": minted()[:-1] + "+",
    "slash": minted()[:-1] + "/",
    "full-width digits": minted()[:-1] + "１",
    "lone surrogate": minted()[:-1] + "\ud800",
    "path": "resp_../../../../../../../../etc/pas",
    "very long": "resp_" + "A" * 100_000,
    "unknown format 0": with_format(0),
    "unknown format 2": with_format(2),
    "unknown format 255": with_format(255),
}


@cases.each("rid", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_this_format_cannot_have_minted_is_refused(rid: str) -> None:
    with pytest.raises(ids.InvalidId):
        ids.parse(rid)


@cases.each("rid", [None, 1, b"resp_" + b"A" * 32, ["resp_"], {}])
def test_what_is_no_text_is_refused(rid: object) -> None:
    with pytest.raises(ids.InvalidId):
        ids.parse(rid)  # type: ignore[arg-type]


@given(st.text())
def test_no_text_makes_parsing_fail_otherwise(text: str) -> None:
    for rid in (text, ids.PREFIX + text):
        try:
            ids.parse(rid, 8)
        except ids.InvalidId:
            pass


def test_a_partition_this_log_does_not_have_is_refused() -> None:
    assert ids.parse(minted(partition=7), 8).partition == 7
    for partition in (8, 9, 2**16 - 1):
        with pytest.raises(ids.InvalidId):
            ids.parse(minted(partition), 8)


def test_an_id_keeps_its_partition_when_the_log_grows() -> None:
    assert ids.parse(minted(partition=7), 8) == ids.parse(minted(partition=7), 64)


@cases.each(
    "address",
    [
        ids.Address(TAG, -1, 0),
        ids.Address(TAG, 2**16, 0),
        ids.Address(TAG, 0, -1),
        ids.Address(TAG, 0, 2**48),
        ids.Address(b"abc", 0, 0),
        ids.Address(b"abcde", 0, 0),
    ],
)
def test_an_address_that_does_not_fit_is_refused_at_minting(address: ids.Address) -> None:
    with pytest.raises(ValueError):
        ids.mint(address, ENTROPY)


@cases.each("size", [0, 10, 12])
def test_minting_takes_exactly_the_promised_randomness(size: int) -> None:
    assert ids.RANDOM_BYTES * 8 >= 80
    with pytest.raises(ValueError):
        ids.mint(ids.Address(TAG, 0, 0), bytes(size))


def test_another_log_has_another_tag() -> None:
    assert ids.incarnation_tag("a log") == TAG
    assert ids.incarnation_tag("another log") != TAG
    assert len(TAG) == 4


def test_the_format_is_frozen() -> None:
    """Ids live in clients for as long as the log: a change of layout needs a new format version,
    not this test's edit."""
    rid = ids.mint(ids.Address(bytes.fromhex("01020304"), 5, 6), ENTROPY)
    assert rid == "resp_AQECAwQABQAAAAAABgABAgMEBQYHCAkK"


def test_the_output_item_of_a_response_has_a_derived_id() -> None:
    assert ids.item_id("resp_abc") == "msg_abc"
    assert ids.item_id(minted()) == "msg_" + minted()[5:]
