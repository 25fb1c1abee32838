"""Seals: equal text is sealed to equal bytes, and only its owner's is opened."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import ids, records, seals
from tests.support import cases

ALICE = records.Owner("https://one", "alice")
RID = ids.mint(ids.Address(b"inc1", 3, 77), bytes(11))
ITEM = ids.item_id(RID, "rs_", 2)
KEY, OLDER = b"k" * 32, b"o" * 32
KEYS = seals.Keys([KEY])


@given(st.text(), st.integers(0, 30))
def test_a_text_is_opened_as_it_was_sealed_and_equal_ones_have_equal_bytes(
    text: str, index: int
) -> None:
    item = ids.item_id(RID, "rs_", index)
    sealed = KEYS.for_response(RID, ALICE).close(item, text)
    assert sealed == seals.Keys([KEY]).for_response(RID, ALICE).close(item, text)
    assert sealed is not None
    assert KEYS.open(sealed, "rs_", ALICE) == text


def test_a_reader_of_the_log_makes_the_same_bytes_without_the_keys() -> None:
    made = KEYS.for_response(RID, ALICE)
    read = seals.Seal.from_echo(made.echo_member)
    assert read is not None
    assert read.close(ITEM, "thought") == made.close(ITEM, "thought")


@cases.each("member", [None, 5, "", "aa", "aa:zz", "aa:" + "00" * 31])
def test_an_echo_without_a_usable_seal_has_none(member: object) -> None:
    assert seals.Seal.from_echo(member) is None


@cases.each(
    "other",
    [
        records.Owner("https://one", "bob"),
        records.Owner("https://two", "alice"),
        records.Owner("https://one", "alice", "tenant"),
        records.Owner("https://one|", "alice"),
    ],
)
def test_anothers_text_is_not_opened(other: records.Owner) -> None:
    sealed = KEYS.for_response(RID, other).close(ITEM, "thought")
    assert sealed is not None
    with pytest.raises(seals.InvalidSeal):
        KEYS.open(sealed, "rs_", ALICE)


@given(st.data())
def test_a_changed_or_cut_text_is_not_opened(data: st.DataObject) -> None:
    sealed = KEYS.for_response(RID, ALICE).close(ITEM, "a thought of some length")
    assert sealed is not None
    at = data.draw(st.integers(0, len(sealed) - 1))
    other = data.draw(st.sampled_from("AQgw._-0aZ\n").filter(lambda c: c != sealed[at]))
    changed = data.draw(
        st.sampled_from([sealed[:at], sealed[:at] + other + sealed[at + 1 :], sealed + other])
    )
    with pytest.raises(seals.InvalidSeal):
        KEYS.open(changed, "rs_", ALICE)


def test_an_item_is_opened_only_as_what_it_is() -> None:
    sealed = KEYS.close("cmp_" + "a" * 32, "summary", ALICE)
    assert sealed is not None
    assert KEYS.open(sealed, "cmp_", ALICE) == "summary"
    with pytest.raises(seals.InvalidSeal):
        KEYS.open(sealed, "rs_", ALICE)


def test_an_older_key_opens_and_seals_no_more() -> None:
    before = seals.Keys([OLDER]).for_response(RID, ALICE).close(ITEM, "thought")
    both = seals.Keys([KEY, OLDER])
    assert before is not None
    assert both.open(before, "rs_", ALICE) == "thought"
    assert both.for_response(RID, ALICE).close(ITEM, "thought") == KEYS.for_response(
        RID, ALICE
    ).close(ITEM, "thought")
    with pytest.raises(seals.InvalidSeal):
        KEYS.open(before, "rs_", ALICE)


def test_a_seal_of_another_version_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seals, "_FORMAT", b"2")
    sealed = KEYS.for_response(RID, ALICE).close(ITEM, "thought")
    monkeypatch.undo()
    assert sealed is not None
    with pytest.raises(seals.InvalidSeal):
        KEYS.open(sealed, "rs_", ALICE)


def test_what_could_not_be_sent_back_is_not_sealed() -> None:
    seal = KEYS.for_response(RID, ALICE)
    assert seal.close(ITEM, "x" * seals.MAX_TEXT_BYTES) is not None
    assert seal.close(ITEM, "x" * (seals.MAX_TEXT_BYTES + 1)) is None
