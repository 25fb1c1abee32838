"""The sealed cookie: nothing of it can be read or made up, and it ends with its credential."""

from __future__ import annotations

import dataclasses

import hypothesis
import pytest
from hypothesis import strategies as st
from starlette.requests import HTTPConnection
from starlette.responses import Response

from tailrace.auth.principal import InvalidCredential, Principal
from tailrace.web import session_cookie
from tests.support import cases
from tests.support.gateway_parts import ALICE

KEY, OTHER = b"k" * 32, b"o" * 32
NOW = 1_000_000.0
FULL = Principal(
    "https://i", "Жанна 🌊" * 30, "acme", frozenset({"read"}), int(NOW) + 60, int(NOW), "c-1"
)


def asked(host: str, **headers: str) -> HTTPConnection:
    pairs = [(b"host", host.encode())]
    pairs += [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return HTTPConnection({"type": "http", "headers": pairs})


def test_a_session_stands_for_the_whole_principal() -> None:
    cookies = session_cookie.SessionCookies(KEY)
    value = cookies.seal(FULL)
    assert cookies.open(value, NOW) == FULL
    assert session_cookie.SessionCookies(KEY).open(value, NOW) == FULL, "at any gateway"
    assert len(value) < session_cookie.MAX_COOKIE_CHARS
    assert value != cookies.seal(FULL)


def test_it_ends_with_its_credential() -> None:
    cookies = session_cookie.SessionCookies(KEY)
    value = cookies.seal(FULL)
    with pytest.raises(InvalidCredential):
        cookies.open(value, FULL.expires_at)


def test_under_another_key_it_is_nothing() -> None:
    value = session_cookie.SessionCookies(KEY).seal(FULL)
    with pytest.raises(InvalidCredential):
        session_cookie.SessionCookies(OTHER).open(value, NOW)


@cases.each("place", [0, 5, 20, -2])
def test_a_changed_character_is_noticed(place: int) -> None:
    cookies = session_cookie.SessionCookies(KEY)
    value = list(cookies.seal(ALICE))
    value[place] = "A" if value[place] != "A" else "B"
    with pytest.raises(InvalidCredential):
        cookies.open("".join(value), NOW)


@hypothesis.given(
    st.text(max_size=200) | st.binary(max_size=200).map(lambda b: b.decode("latin-1"))
)
def test_whatever_comes_as_a_cookie_is_refused_and_nothing_else(value: str) -> None:
    with pytest.raises(InvalidCredential):
        session_cookie.SessionCookies(KEY).open(value, NOW)


def test_the_token_is_of_this_cookie_alone() -> None:
    cookies = session_cookie.SessionCookies(KEY)
    one, other = cookies.seal(ALICE), cookies.seal(ALICE)
    token = cookies.token(one)
    assert cookies.shows_token(asked("h", x_tailrace_session=token), one)
    assert not cookies.shows_token(asked("h", x_tailrace_session=token), other)
    assert not cookies.shows_token(asked("h"), one)
    forged = session_cookie.SessionCookies(OTHER).token(one)
    assert not cookies.shows_token(asked("h", x_tailrace_session=forged), one)


@cases.each(
    ("host", "name", "secure"),
    [
        ("chat.example", "__Host-tailrace", True),
        ("chat.example:8443", "__Host-tailrace", True),
        ("127.0.0.1:8000", "tailrace-8000", False),
        ("localhost:8001", "tailrace-8001", False),
        ("[::1]:8000", "tailrace-8000", False),
        ("127.0.0.1.evil.example", "__Host-tailrace", True),
        ("localhost:99999999", "__Host-tailrace", True),
        ("", "__Host-tailrace", True),
    ],
)
def test_only_on_this_machine_it_travels_without_tls(host: str, name: str, secure: bool) -> None:
    cookies = session_cookie.SessionCookies(KEY)
    for act in ("set", "clear"):
        response = Response()
        if act == "set":
            cookies.set(response, asked(host), "value", 60.0)
        else:
            cookies.clear(response, asked(host))
        cookie = response.headers["set-cookie"]
        assert cookie.startswith(f"{name}=")
        parts = {part.strip().lower() for part in cookie.split(";")[1:]}
        assert {"httponly", "samesite=strict", "path=/"} <= parts
        assert ("secure" in parts) is secure
        assert not any(part.startswith("domain") for part in parts)


def test_the_whole_principal_has_every_member() -> None:
    """Who adds a member of `Principal` sees above whether a session keeps it."""
    bare = Principal("", "", None, frozenset(), 0)
    for each in dataclasses.fields(Principal):
        assert getattr(FULL, each.name) != getattr(bare, each.name), each.name
