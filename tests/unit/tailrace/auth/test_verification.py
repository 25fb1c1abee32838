"""What `verify` refuses and accepts. The forged tokens themselves are in tests/support/attacks.py,
to be used on endpoints too."""

import dataclasses
import json
import socket
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tailrace.auth import jwt_library
from tailrace.auth.issuers import Issuers, load_issuers
from tailrace.auth.principal import DEFAULT_SCOPES, InvalidCredential, Principal, Reason
from tailrace.auth.verification import verify
from tests.support import attacks, cases

FORGE = attacks.Forge()
NOW = time.time()
CORPUS = list(attacks.corpus(FORGE, NOW))


def _load(content: object, folder: Path) -> Issuers:
    path = folder / "issuers.json"
    path.write_text(json.dumps(content))
    return load_issuers(path)


@pytest.fixture(scope="module")
def issuers(tmp_path_factory: pytest.TempPathFactory) -> Issuers:
    return _load(FORGE.settings(), tmp_path_factory.mktemp("issuers"))


def _reason(token: Any, issuers: Issuers, now: float = NOW) -> Reason:
    with pytest.raises(InvalidCredential) as refused:
        verify(token, issuers, now)
    return refused.value.reason


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> Iterator[None]:
    with attacks.library_clock(NOW):
        yield


# ---- accepted


@cases.each("short", ["rs", "es", "hs", "at", "anon"])
def test_a_good_token_of_each_issuer_is_accepted(issuers: Issuers, short: str) -> None:
    principal = verify(FORGE.token(short, NOW), issuers, NOW)
    assert principal == Principal(
        attacks.iss(short), "alice", None, DEFAULT_SCOPES, int(NOW) + 600, principal.issued_at
    )
    assert NOW - 600 <= principal.issued_at <= NOW


@cases.each(
    ("claims", "why"),
    [
        ({"exp": -29}, "expired inside leeway"),
        ({"iat": 29}, "issued ahead inside leeway"),
        ({"nbf": 29}, "not before, inside leeway"),
        ({"exp": 3600}, "the longest lifetime"),
        ({"nbf": -500}, "not before in the past"),
    ],
)
def test_inside_leeway_and_lifetime_a_token_is_accepted(
    issuers: Issuers, claims: dict[str, int], why: str
) -> None:
    members = FORGE.claims("es", NOW)
    if claims.get("exp", 1) < 0:
        members = attacks.replaced(members, "iat", str(int(NOW) - 100))
    for name, offset in claims.items():
        members = attacks.replaced(members, name, str(int(NOW) + offset))
    assert verify(FORGE.token("es", NOW, claims=members), issuers, NOW).subject == "alice", why


def test_the_clock_is_the_one_that_was_given(issuers: Issuers) -> None:
    token = FORGE.token("es", NOW)
    assert _reason(token, issuers, NOW + 600 + 30) is Reason.EXPIRED
    assert _reason(token, issuers, NOW - 40) is Reason.NOT_YET_VALID
    verify(token, issuers, NOW + 600 + 28)


def test_a_token_that_the_librarys_own_clock_calls_expired_is_refused_even_if_ours_does_not(
    issuers: Issuers,
) -> None:
    old = NOW - 86400
    assert _reason(FORGE.token("es", old), issuers, old) is Reason.EXPIRED


def test_tenant_and_scopes_are_read_and_other_claims_dropped(issuers: Issuers) -> None:
    members = [
        *FORGE.claims("es", NOW),
        ("tenant", '"acme"'),
        ("scope", '"read write"'),
        ("admin", "true"),
        ("jti", '"c-1"'),
    ]
    principal = verify(FORGE.token("es", NOW, claims=members), issuers, NOW)
    assert (principal.tenant, principal.scopes) == ("acme", {"read"})
    assert principal.credential == "c-1"
    assert "admin" not in repr(principal)


@cases.each(
    ("scope", "allowed"),
    [
        ("create", {"create"}),
        ("openid read admin", {"read", "admin"}),
        ("openid profile", {"create", "read"}),  # names none of the three: the issuer's default
        ("", set()),
        ("Admin ADMIN administrator", {"create", "read"}),
    ],
)
def test_a_credential_allows_what_it_names_and_else_what_its_issuer_says(
    issuers: Issuers, scope: str, allowed: set[str]
) -> None:
    members = [*FORGE.claims("es", NOW), ("scope", f'"{scope}"')]
    assert verify(FORGE.token("es", NOW, claims=members), issuers, NOW).scopes == allowed


@cases.each("jti", ["1", "null", '""', '["a"]', '"' + "x" * 256 + '"', r'"a\nb"'])
def test_an_id_of_a_credential_that_is_none_is_refused(issuers: Issuers, jti: str) -> None:
    with pytest.raises(InvalidCredential):
        verify(
            FORGE.token("es", NOW, claims=[*FORGE.claims("es", NOW), ("jti", jti)]), issuers, NOW
        )


def test_an_audience_list_is_taken_only_where_the_issuer_allows_it(
    issuers: Issuers,
) -> None:
    token = FORGE.with_claim("at", NOW, "aud", '["other","tailrace"]')
    assert verify(token, issuers, NOW).subject == "alice"


def test_a_header_listed_as_ignorable_is_ignored(issuers: Issuers) -> None:
    assert verify(FORGE.with_header("at", NOW, "x5t", '"abc"'), issuers, NOW)


@cases.each("subject", ["x", "s" * 255, "Жанна 🌊", "a|b", "auth0|123"])
def test_odd_but_legal_subjects_are_kept_as_they_are(issuers: Issuers, subject: str) -> None:
    assert (
        verify(FORGE.with_claim("es", NOW, "sub", attacks.quoted(subject)), issuers, NOW).subject
        == subject
    )


def test_the_longest_token_is_accepted_and_one_character_more_is_not(
    issuers: Issuers,
) -> None:
    tokens = [
        FORGE.with_claim("es", NOW, "pad", attacks.quoted("x" * n)) for n in range(5700, 5960)
    ]
    longest = max((token for token in tokens if len(token) <= 8192), key=len)
    assert len(longest) >= 8190
    assert verify(longest, issuers, NOW)
    assert (
        _reason(min((token for token in tokens if len(token) > 8192), key=len), issuers)
        is Reason.MALFORMED
    )


def test_two_principals_never_share_a_key() -> None:
    def key(tenant: str | None, subject: str) -> str:
        return Principal("https://i", subject, tenant, frozenset(), 1).key

    assert key("acme", "alice") == "https://i|acme|alice"
    assert (
        len({key(None, "a|b"), key(None, "a"), key("a", "b"), key("b", "a"), key("a", "|b")}) == 5
    )


# ---- refused


@pytest.fixture
def isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a token names may be fetched or opened."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("verify did I/O")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr("io.open", refuse)


def test_the_corpus_is_there() -> None:
    assert len(CORPUS) > 400
    assert len({attack.name for attack in CORPUS}) == len(CORPUS)


@pytest.mark.usefixtures("isolated")
@cases.each("attack", CORPUS, ids=[attacks.stable_id(attack.name) for attack in CORPUS])
def test_a_forged_token_is_refused_by_the_check_that_is_meant_for_it(
    issuers: Issuers, attack: attacks.Attack
) -> None:
    """The exact reason matters: without one check, most tokens would still be refused by another
    one, and the loss would not be seen."""
    assert _reason(attack.token, issuers) == attack.reason


class _Sly(str):
    """Claims to be short."""

    def __len__(self) -> int:
        return 10


@cases.each(
    "thing",
    [None, b"a.b.c", 1, [], {}, ["a", "b"], _Sly(FORGE.token("es", NOW))],
    ids=attacks.stable_id,
)
def test_what_is_no_plain_text_is_refused(issuers: Issuers, thing: object) -> None:
    assert _reason(thing, issuers) is Reason.MALFORMED


def test_only_an_unknown_key_names_its_issuer_so_that_its_keys_can_be_fetched_again(
    issuers: Issuers,
) -> None:
    with pytest.raises(InvalidCredential) as refused:
        verify(FORGE.with_header("es", NOW, "kid", '"key-2"'), issuers, NOW)
    assert refused.value.issuer == attacks.iss("es")


def test_what_is_refused_is_not_in_the_message(issuers: Issuers) -> None:
    for attack in CORPUS[::7]:
        with pytest.raises(InvalidCredential) as refused:
            verify(attack.token, issuers, NOW)
        assert str(refused.value) == attack.reason


def test_a_defect_below_is_refused_and_counted_as_internal(
    issuers: Issuers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OverflowError("as jose does for 1e400")

    monkeypatch.setattr(jwt_library.jwt, "decode", broken)
    assert _reason(FORGE.token("es", NOW), issuers) is Reason.INTERNAL


def test_claims_that_the_library_reads_differently_are_refused(
    issuers: Issuers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwt_library.jwt, "decode", lambda *_, **__: {"sub": "root"})
    assert _reason(FORGE.token("es", NOW), issuers) is Reason.INTERNAL


def test_the_library_is_called_with_one_algorithm_and_a_built_key(
    issuers: Issuers, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, dict[str, Any]]] = []
    original = jwt_library.jwt.decode

    def spy(token: str, key: Any, **options: Any) -> Any:
        seen.append((key, options))
        return original(token, key, **options)

    monkeypatch.setattr(jwt_library.jwt, "decode", spy)
    for short in ("rs", "es", "hs"):
        verify(FORGE.token(short, NOW), issuers, NOW)
    assert [options["algorithms"] for _, options in seen] == [["RS256"], ["ES256"], ["HS256"]]
    assert all(type(key).__module__ == "jose.backends.cryptography_backend" for key, _ in seen)
    required = {f"require_{name}" for name in ("aud", "iss", "sub", "exp", "iat")}
    assert all(options["options"].keys() >= required for _, options in seen)


def test_a_header_that_is_always_refused_cannot_be_made_ignorable(
    issuers: Issuers,
) -> None:
    """The settings refuse to list it; this is the line behind them."""
    careless = dataclasses.replace(
        issuers.by_name[attacks.iss("es")], ignored_headers=frozenset({"crit"})
    )
    assert (
        _reason(
            FORGE.with_header("es", NOW, "crit", '"exp"'),
            Issuers({careless.iss: careless}),
        )
        is Reason.HEADER
    )


@cases.each("change", [lambda text: text + "AAAA", lambda text: text[:-4], lambda text: "A" * 343])
def test_a_signature_of_an_impossible_length_never_reaches_the_library(
    issuers: Issuers, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str]
) -> None:
    monkeypatch.setattr(
        jwt_library.jwt, "decode", None
    )  # calling it would be a defect, and counted as one
    text, _, signature = FORGE.token("hs", NOW).rpartition(".")
    assert _reason(f"{text}.{change(signature)}", issuers) in {
        Reason.SIGNATURE,
        Reason.MALFORMED,
    }


@cases.each("text", ["A" * 50_000_000, "." * 5_000_000, "A." * 2_000_000, "A" * 8190 + ".."])
def test_refusing_a_huge_credential_copies_nothing(issuers: Issuers, text: str) -> None:
    tracemalloc.start()
    try:
        assert _reason(text, issuers) is Reason.MALFORMED
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


# ---- properties

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
_header_names = st.sampled_from(
    ["alg", "typ", "kid", "crit", "jku", "b64", "x5t", "foo"]
) | st.text(max_size=5)
_claim_names = st.sampled_from(
    ["iss", "aud", "sub", "iat", "exp", "nbf", "tenant", "scope", "at_hash", "jti", "foo"]
) | st.text(max_size=5)
_quiet = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def _outcome(token: str, issuers: Issuers) -> Principal | Reason:
    try:
        return verify(token, issuers, NOW)
    except InvalidCredential as refused:
        return refused.reason


@_quiet
@given(
    short=st.sampled_from(["es", "hs", "at", "anon"]),
    header=st.dictionaries(_header_names, _values, max_size=3),
    claims=st.dictionaries(_claim_names, _values, max_size=3),
)
def test_any_signed_header_and_claims_give_a_principal_or_a_reason_and_no_defect(
    issuers: Issuers, short: str, header: dict[str, Any], claims: dict[str, Any]
) -> None:
    members, payload = FORGE.header(short), FORGE.claims(short, NOW)
    for name, value in header.items():
        members = attacks.replaced(members, name, json.dumps(value))
    for name, value in claims.items():
        payload = attacks.replaced(payload, name, json.dumps(value))
    outcome = _outcome(FORGE.token(short, NOW, members, payload), issuers)
    if isinstance(outcome, Principal):
        assert outcome.subject == dict(claims).get("sub", "alice")
        assert not set(header) & {"crit", "jku", "b64", "foo"}
    else:
        assert outcome is not Reason.INTERNAL


@_quiet
@given(
    place=st.integers(0, 10_000),
    char=st.characters(codec="utf-8") | st.sampled_from("AQgw.=-_"),
    kind=st.sampled_from(["replace", "insert", "delete"]),
)
def test_no_edit_of_a_good_token_is_good(
    issuers: Issuers, place: int, char: str, kind: str
) -> None:
    good = FORGE.token("hs", NOW)
    place %= len(good)
    edited = {
        "replace": good[:place] + char + good[place + 1 :],
        "insert": good[:place] + char + good[place:],
        "delete": good[:place] + good[place + 1 :],
    }[kind]
    assume(edited != good)
    assert isinstance(_outcome(edited, issuers), Reason)


@_quiet
@given(
    issued=st.integers(-4000, 4000),
    life=st.integers(-10, 4000),
    start=st.none() | st.integers(-100, 100),
)
def test_times_are_accepted_exactly_by_the_rule(
    issuers: Issuers, issued: int, life: int, start: int | None
) -> None:
    at = int(NOW)
    members = [member for member in FORGE.claims("hs", NOW) if member[0] not in {"iat", "exp"}]
    members += [("iat", str(at + issued)), ("exp", str(at + issued + life))]
    if start is not None:
        members.append(("nbf", str(at + start)))
    accepted = (
        0 < life <= 3600
        and at + issued + life > NOW - 30
        and at + issued <= NOW + 30
        and at + (start or 0) <= NOW + 30
    )
    assert (
        isinstance(_outcome(FORGE.token("hs", NOW, claims=members), issuers), Principal) == accepted
    )


@_quiet
@given(text=st.text(max_size=300) | st.text(alphabet="eyJABCDabcd0123._-=", max_size=300))
def test_any_text_at_all_is_refused_without_a_defect(issuers: Issuers, text: str) -> None:
    assert _outcome(text, issuers) not in {Reason.INTERNAL}
    assert isinstance(_outcome(text, issuers), Reason)
