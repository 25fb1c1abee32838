"""Tokens of links: only what was sealed here is opened, and in one spelling."""

from __future__ import annotations

import base64
import string

from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol import ids, records, seals, share_tokens
from tests.support import cases

KEY, OLDER = b"k" * 32, b"o" * 32
TOKENS = share_tokens.Tokens([KEY])
ALICE = records.Owner("https://one", "alice")
CONVERSATION = ids.mint(ids.Address(b"inc1", 3, 77), bytes(11), "conv_")
LINK = share_tokens.Link(ALICE, CONVERSATION, "share_1", "resp_1", 2_000_000_000)
ALPHABET = string.ascii_letters + string.digits + "-_"


def refused(token: str, tokens: share_tokens.Tokens = TOKENS) -> bool:
    try:
        tokens.open(token)
    except share_tokens.InvalidToken:
        return True
    return False


def test_a_token_names_its_link_and_equal_links_have_equal_tokens() -> None:
    token = TOKENS.seal(LINK)
    assert TOKENS.open(token) == LINK
    assert token == share_tokens.Tokens([KEY]).seal(LINK)
    assert set(token) <= set(ALPHABET), "as it stands it is a part of a path"


def test_it_tells_nothing_of_the_owner() -> None:
    raw = base64.urlsafe_b64decode(TOKENS.seal(LINK) + "==")
    for word in (b"alice", b"https", CONVERSATION.encode(), b"resp_"):
        assert word not in raw


@given(st.text(max_size=255), st.text(max_size=255), st.text(max_size=64))
def test_any_owner_fits(issuer: str, subject: str, tenant: str) -> None:
    link = share_tokens.Link(records.Owner(issuer, subject, tenant), CONVERSATION, "s", "h", 1)
    assert TOKENS.open(TOKENS.seal(link)) == link


def test_a_token_that_was_altered_at_any_place_is_refused() -> None:
    token = TOKENS.seal(LINK)
    for place, was in enumerate(token):
        for other in (
            "A",
            "a",
            "0",
            "-",
            "_",
            "~",
            ".",
            "=",
            "/",
            "%",
            " ",
            "\n",
            "\0",
            "é",
            "\ud800",
        ):
            if other != was:
                assert refused(token[:place] + other + token[place + 1 :]), (place, other)
        assert refused(token[:place]), "cut"
        assert refused(token[:place] + token[place + 1 :]), "one character less"


@cases.each("more", ["A", "=", "==", "\n", " ", "/", "?after=1", "A" * 9_000])
def test_nothing_may_follow_a_token_or_come_before_it(more: str) -> None:
    token = TOKENS.seal(LINK)
    assert refused(token + more)
    assert refused(more + token)


def test_a_last_character_with_spare_bits_is_refused() -> None:
    """Base64 of another length would be read as the same bytes."""
    for n in range(3):
        link = share_tokens.Link(ALICE, CONVERSATION, "s" * n, "resp_1", 2_000_000_000)
        token = TOKENS.seal(link)
        same = [c for c in ALPHABET if not refused(token[:-1] + c)]
        assert same == [token[-1]]


@cases.each("token", ["", "x", "a" * 39, "a" * 100, "../" * 20, "%2e" * 30, "A" * 10**6])
def test_what_is_no_token_is_refused(token: str) -> None:
    assert refused(token)


def test_an_older_key_opens_and_another_deployments_does_not() -> None:
    both = share_tokens.Tokens([KEY, OLDER])
    assert both.open(share_tokens.Tokens([OLDER]).seal(LINK)) == LINK
    assert both.seal(LINK) == TOKENS.seal(LINK)
    assert refused(share_tokens.Tokens([OLDER]).seal(LINK))


def test_what_the_key_seals_for_other_uses_is_no_token() -> None:
    sealed = seals.Keys([KEY]).close(CONVERSATION.replace("conv_", "cmp_"), "x" * 100, ALICE)
    assert sealed is not None
    assert refused(sealed)
    key_id = TOKENS.seal(LINK)[:6]
    assert refused(key_id + sealed.rpartition(".")[2])
