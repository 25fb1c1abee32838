"""Key sets and credentials in the forms in which issuers send them.

They are written and signed here by RFC 7515, 7517, 7518, 7519 and 9068, with the primitives of
`cryptography` and without the JWT library that checks them.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tailrace.auth import jwks, jwt_library, verification
from tailrace.auth.issuers import load_issuers
from tailrace.auth.keys import MAX_KEY_ID_CHARS, IssuersRefused
from tailrace.auth.principal import InvalidCredential, Principal, Reason
from tests.support import attacks, cases

NOW = int(time.time())
ISS = "https://id.example"
URL = "https://id.example/keys"
EC_KEYS = [ec.generate_private_key(ec.SECP256R1()) for _ in range(3)]
RSA_KEYS = [rsa.generate_private_key(65537, bits) for bits in (2048, 3072)]
EC, RSA = EC_KEYS[0], RSA_KEYS[0]
NO_ID = object()

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
Json = dict[str, Any]


def entry(key: PrivateKey, **members: Any) -> Json:
    """The key's entry in a set: the members that RFC 7518 requires, and `members`."""
    if isinstance(key, rsa.RSAPrivateKey):
        modulus = key.public_key().public_numbers()
        return {
            "kty": "RSA",
            "n": attacks.number64(modulus.n, key.key_size // 8),
            "e": "AQAB",
            **members,
        }
    point = key.public_key().public_numbers()
    coordinates = {"x": attacks.number64(point.x, 32), "y": attacks.number64(point.y, 32)}
    return {"kty": "EC", "crv": "P-256", **coordinates, **members}


def private_entry(key: PrivateKey, **members: Any) -> Json:
    exponent = (
        key.private_numbers().d
        if isinstance(key, rsa.RSAPrivateKey)
        else key.private_numbers().private_value
    )
    return entry(key, d=attacks.number64(exponent, key.key_size // 8), **members)


def made(key: PrivateKey, header: Json | None = None, **claims: Any) -> str:
    """A credential; a member `None` is left out."""
    is_rsa = isinstance(key, rsa.RSAPrivateKey)
    members = {"alg": "RS256" if is_rsa else "ES256", "typ": "JWT", **(header or {})}
    content = {
        **{"iss": ISS, "aud": "tailrace", "sub": "alice", "iat": NOW, "exp": NOW + 600},
        **claims,
    }
    return attacks.signed(
        _json({name: value for name, value in members.items() if value is not None}),
        _json({name: value for name, value in content.items() if value is not None}),
        attacks.rs256(key) if isinstance(key, rsa.RSAPrivateKey) else attacks.es256(key),
    )


def _json(members: Json) -> bytes:
    return json.dumps(members, ensure_ascii=False).encode()


class Published:
    """An issuer whose set can be replaced; counts the fetches."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.fetches = 0
        self.fails = False
        self.now = 1000.0  # the clock of KeySets

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.fetches += 1
        content = json.dumps({"keys": self.keys}).encode()
        return httpx.Response(500 if self.fails else 200, stream=httpx.ByteStream(content))


class Checker:
    """Checks credentials against the keys that `published` has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.published = Published()
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self.published))
        self.sets = self.configured()

    def configured(self, **settings: Any) -> jwks.KeySets:
        path = self.folder / "issuers.json"
        issuer = {
            **{"iss": ISS, "audience": "tailrace", "algorithm": "ES256", "types": ["JWT"]},
            **{"max_lifetime": 3600, "jwks_url": URL},
            **settings,
        }
        present = {name: value for name, value in issuer.items() if value is not None}
        path.write_text(json.dumps({"issuers": [present]}))
        self.sets = jwks.KeySets(
            load_issuers(path), self.client, lambda: self.published.now, lambda iss, what: None
        )
        return self.sets

    async def accepts(self, keys: list[Any], token: str, **settings: Any) -> Principal:
        self.configured(**settings)
        self.published.keys = keys
        return await self.sets.verify(token, NOW)

    async def refuses(self, keys: list[Any], token: str, **settings: Any) -> Reason:
        with pytest.raises(InvalidCredential) as refused:
            await self.accepts(keys, token, **settings)
        return refused.value.reason

    async def reason(self, token: str) -> Reason:
        """Why the token is refused with the sets as they are."""
        with pytest.raises(InvalidCredential) as refused:
            await self.sets.verify(token, NOW)
        return refused.value.reason


@pytest.fixture
async def checker(tmp_path: Path) -> AsyncIterator[Checker]:
    checker = Checker(tmp_path)
    async with checker.client:
        yield checker


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> Iterator[None]:
    with attacks.library_clock(NOW):
        yield


# ---- key ids

KEY_IDS = {
    "standard base64 (older Entra, Spring)": "nOo3ZDrODXEK1jKWhXslHR/KXEg+Lw==",
    "a date (PingFederate, IdentityServer)": "2026-11-30T00:00:00Z",
    "a URL": "https://id.example/keys/1?v=2#sig",
    "a URN of a thumbprint (RFC 9278)": "urn:ietf:params:oauth:jwk-thumbprint:sha-256:NzbLsXh8uDCc",
    "a DID": "did:web:id.example#key-1",
    "an ARN": "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab",
    "SHA-512 in hex": "ab" * 64,
    "with blanks": "signing key 1",
    "not ASCII": "ключ-1",
    "the longest": "k" * MAX_KEY_ID_CHARS,
}


@cases.each("kid", KEY_IDS.values(), ids=KEY_IDS.keys())
async def test_any_text_is_a_key_id(checker: Checker, kid: str) -> None:
    keys = [entry(EC, kid=kid), entry(EC_KEYS[1], kid="other")]
    assert (await checker.accepts(keys, made(EC, {"kid": kid}))).subject == "alice"
    wrong = made(EC_KEYS[1], {"kid": kid})
    assert await checker.refuses(keys, wrong) is Reason.SIGNATURE, "an id names one key"
    pem = attacks.pem(EC.public_key())
    checker.configured(keys={kid: pem}, jwks_url=None)
    assert await checker.sets.verify(made(EC, {"kid": kid}), NOW)


@cases.each("kid", ["k" * (MAX_KEY_ID_CHARS + 1), "a\nb", "\x00", "\x1b[31m", "\x7f", "a\u0085"])
async def test_a_key_id_that_is_too_long_or_spoils_a_log_is_refused_alone(
    checker: Checker, kid: str
) -> None:
    keys = [entry(EC, kid=kid), entry(EC_KEYS[1], kid="good")]
    assert await checker.refuses(keys, made(EC, {"kid": kid})) is Reason.KEY_ID
    assert await checker.accepts(keys, made(EC_KEYS[1], {"kid": "good"}))
    with pytest.raises(IssuersRefused, match="key id") as refused:
        checker.configured(keys={kid: attacks.pem(EC.public_key())}, jwks_url=None)
    assert kid not in str(refused.value)


# ---- keys without id, credentials without id

WITHOUT_ID = [entry(EC), entry(EC_KEYS[1])]
NAMED = [entry(EC, kid="a"), entry(EC_KEYS[1], kid="b")]
EMPTY_ID = [entry(EC, kid="")]


@cases.each(
    ("keys", "kid"),
    [
        (WITHOUT_ID[:1], None),
        (WITHOUT_ID[:1], "thumbprint"),
        (WITHOUT_ID, None),
        (WITHOUT_ID[::-1], None),
        (WITHOUT_ID[::-1], "thumbprint"),
        (NAMED[:1], None),
        (NAMED[::-1], None),
        ([NAMED[1], WITHOUT_ID[0]], None),
        ([NAMED[1], WITHOUT_ID[0]], "thumbprint"),
        ([entry(RSA), *WITHOUT_ID], None),
        (EMPTY_ID, None),
        (EMPTY_ID, ""),
        (WITHOUT_ID[:1], ""),
    ],
    ids=lambda value: (
        f"{[each.get('kid') for each in value]}" if isinstance(value, list) else value
    ),
)
async def test_without_an_id_on_either_side_the_keys_of_the_algorithm_are_tried(
    checker: Checker, keys: list[Json], kid: str | None
) -> None:
    assert await checker.accepts(keys, made(EC, {"kid": kid}))
    forged = made(EC_KEYS[2], {"kid": kid})
    assert await checker.refuses(keys, forged) in {Reason.SIGNATURE, Reason.UNKNOWN_KEY}


async def test_an_unknown_id_is_not_tried_against_keys_that_have_one(checker: Checker) -> None:
    assert await checker.refuses(NAMED, made(EC, {"kid": "c"})) is Reason.UNKNOWN_KEY


async def test_keys_of_another_size_are_candidates_too(checker: Checker) -> None:
    keys = [entry(key) for key in RSA_KEYS]
    for key in RSA_KEYS:
        assert await checker.accepts(keys, made(key), algorithm="RS256")


async def test_the_same_rule_holds_for_keys_in_the_issuers_file(checker: Checker) -> None:
    pem = attacks.pem(EC.public_key())
    for keys, kid in (({"": pem}, "any"), ({"": pem}, None), ({"a": pem}, None)):
        checker.configured(keys=keys, jwks_url=None)
        assert await checker.sets.verify(made(EC, {"kid": kid}), NOW)


async def test_only_so_many_keys_are_tried(
    checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0
    original = jwt_library.signed_claims

    def count(*args: Any, **options: Any) -> Any:
        nonlocal tries
        tries += 1
        return original(*args, **options)

    monkeypatch.setattr(jwt_library, "signed_claims", count)
    private = [ec.generate_private_key(ec.SECP256R1()) for _ in range(12)]
    checker.published.keys = [entry(key) for key in private]
    await checker.reason(made(EC))
    checker.published.now += 1
    tries = 0
    await checker.reason(made(EC))
    assert tries == verification.MAX_TRIES < 12


# ---- one odd key

ODD = {
    "of another type, with the same id": entry(RSA, kid="k"),
    "for encryption, with the same id": entry(EC_KEYS[1], kid="k", use="enc"),
    "of another algorithm, with the same id": entry(EC_KEYS[1], kid="k", alg="ES384"),
    "of another curve, with the same id": {**entry(EC_KEYS[1], kid="k"), "crv": "P-384"},
    "a good one with the same id": entry(EC_KEYS[1], kid="k"),
    "the same once more": entry(EC, kid="k"),
    "private, with the same id": private_entry(EC_KEYS[1], kid="k"),
    "no object": 1,
    "null": None,
    "a list": [],
    "with a number for an id": entry(EC_KEYS[1], kid=1),
    "with null for an id": entry(EC_KEYS[1], kid=None),
    "with a list for a type": entry(EC_KEYS[1], kty=[]),
    "post-quantum (RFC 9964)": {"kty": "AKP", "alg": "ML-DSA-44", "kid": "k", "pub": "AA"},
    "Ed25519 (RFC 8037)": {"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": "AA"},
    "a secret": {"kty": "oct", "kid": "k", "k": "AA"},
    "a modulus out of range": {"kty": "RSA", "kid": "k", "n": "_" * 40_000, "e": "AQAB"},
    "not on the curve": {**entry(EC_KEYS[1], kid="k"), "y": "AQ"},
}


@cases.each("odd", ODD.values(), ids=ODD.keys())
async def test_an_odd_key_takes_no_other_away(checker: Checker, odd: object) -> None:
    good = entry(EC, kid="k", use="sig", alg="ES256")
    for keys in ([odd, good], [good, odd]):
        assert await checker.accepts(keys, made(EC, {"kid": "k"}))


async def test_two_good_keys_with_one_id_are_both_tried(checker: Checker) -> None:
    keys = [entry(key, kid="k") for key in EC_KEYS[:2]]
    for key in EC_KEYS[:2]:
        assert await checker.accepts(keys, made(key, {"kid": "k"}))
    assert await checker.refuses(keys, made(EC_KEYS[2], {"kid": "k"})) is Reason.SIGNATURE


@cases.each(
    "private",
    [
        private_entry(EC, kid="k"),
        private_entry(EC, kid="other"),
        private_entry(EC),
        private_entry(EC, kid="k", use="enc"),
        private_entry(EC, kid=1),
    ],
)
async def test_a_key_whose_private_half_is_published_is_not_used_by_any_entry(
    checker: Checker, private: Json
) -> None:
    keys = [entry(EC, kid="k"), private, entry(EC_KEYS[1], kid="good")]
    for header in ({"kid": "k"}, {"kid": "other"}, {}):
        reason = await checker.refuses(keys, made(EC, header))
        assert reason in {Reason.UNKNOWN_KEY, Reason.SIGNATURE}
    assert await checker.accepts(keys, made(EC_KEYS[1], {"kid": "good"}))


async def test_an_rsa_key_with_any_private_member_is_refused(checker: Checker) -> None:
    primes = RSA.private_numbers()
    for name, number in (("d", primes.d), ("p", primes.p), ("dq", primes.dmq1)):
        leak = {name: attacks.number64(number, 256)}
        for keys in (
            [entry(RSA, kid="k", **leak)],
            [entry(RSA, kid="k"), entry(RSA, kid="enc", use="enc", **leak)],
        ):
            token = made(RSA, {"kid": "k"})
            assert await checker.refuses(keys, token, algorithm="RS256") is Reason.UNKNOWN_KEY


# ---- key_ops


@cases.each(
    "members",
    [
        {"key_ops": ["verify"]},
        {"key_ops": ["sign", "verify"]},
        {"key_ops": ["verify"], "use": "sig"},
        {"key_ops": ["verify", "https://id.example/audit"]},
    ],
)
async def test_a_key_that_may_verify_is_used(checker: Checker, members: Json) -> None:
    assert await checker.accepts([entry(EC, kid="k", **members)], made(EC, {"kid": "k"}))


@cases.each(
    "members",
    [
        {"key_ops": ["encrypt"]},
        {"key_ops": ["sign"]},
        {"key_ops": ["deriveKey", "deriveBits"], "use": "sig"},
        {"key_ops": ["verify"], "use": "enc"},
        {"key_ops": []},
        {"key_ops": "verify"},
        {"key_ops": None},
        {"key_ops": {"verify": True}},
        {"key_ops": ["Verify"]},
    ],
)
async def test_a_key_for_something_else_is_not_used(checker: Checker, members: Json) -> None:
    token = made(EC, {"kid": "k"})
    assert await checker.refuses([entry(EC, kid="k", **members)], token) is Reason.UNKNOWN_KEY


# ---- typ


@cases.each(
    ("types", "typ"),
    [
        (["at+jwt"], "at+jwt"),
        (["at+jwt"], "AT+JWT"),
        (["at+jwt"], "application/at+jwt"),
        (["at+jwt"], "Application/AT+JWT"),
        (["JWT"], "JWT"),
        (["JWT"], "jwt"),
        (["JWT"], "application/jwt"),
        (["JWT", "at+jwt"], "AT+jwt"),
        (["JWT", ""], None),
        ([""], None),
        (["JWT", ""], "jwt"),
    ],
)
async def test_a_media_type_is_taken_in_every_spelling(
    checker: Checker, types: list[str], typ: str | None
) -> None:
    assert await checker.accepts([entry(EC)], made(EC, {"typ": typ}), types=types)


@cases.each(
    ("types", "typ"),
    [
        (["JWT"], None),
        (["at+jwt"], None),
        ([""], ""),
        (["JWT", ""], ""),
        ([""], "JWT"),
        (["at+jwt", ""], "JWT"),
        (["JWT"], "application/at+jwt"),
        (["at+jwt"], "application/JWT"),
        (["JWT"], "application/application/jwt"),
        (["JWT"], "text/jwt"),
        (["JWT"], "application/"),
        ([""], "application/"),
        (["JWT"], "/jwt"),
        (["JWT"], "jwt "),
        (["JWT"], "dpop+jwt"),
        (["JWT"], "logout+jwt"),
    ],
)
async def test_another_type_is_refused(checker: Checker, types: list[str], typ: str | None) -> None:
    assert await checker.refuses([entry(EC)], made(EC, {"typ": typ}), types=types) is Reason.TYPE


# ---- times


@cases.each(
    ("claims", "kept"),
    [
        ({"iat": NOW - 0.25, "exp": NOW + 599.75}, (NOW - 1, NOW + 599)),
        ({"exp": NOW + 600.999}, (NOW, NOW + 600)),
        ({"iat": float(NOW), "exp": NOW + 3600.5}, (NOW, NOW + 3600)),
        ({"nbf": NOW - 0.5}, (NOW, NOW + 600)),
        ({"nbf": float(NOW)}, (NOW, NOW + 600)),
    ],
    ids=attacks.stable_id,
)
async def test_a_date_may_have_a_fraction_and_the_principal_has_whole_seconds(
    checker: Checker, claims: Json, kept: tuple[int, int]
) -> None:
    principal = await checker.accepts([entry(EC)], made(EC, **claims))
    assert (principal.issued_at, principal.expires_at) == kept
    assert type(principal.issued_at) is type(principal.expires_at) is int


@cases.each(
    ("claims", "reason"),
    [
        ({"iat": NOW + 0.5}, Reason.NOT_YET_VALID),
        ({"nbf": NOW + 0.5}, Reason.NOT_YET_VALID),
        ({"iat": NOW - 600, "exp": NOW + 0.9}, Reason.EXPIRED),
        ({"exp": NOW + 3601.5}, Reason.LIFETIME),
        ({"exp": NOW + 0.5}, Reason.LIFETIME),
        ({"exp": float("nan")}, Reason.MALFORMED),
        ({"exp": float("inf")}, Reason.MALFORMED),
        ({"iat": -0.5}, Reason.CLAIMS),
        ({"iat": -0.0}, Reason.CLAIMS),
        ({"exp": 2.0**53}, Reason.CLAIMS),
        ({"exp": 1e300}, Reason.CLAIMS),
        ({"exp": f"{NOW + 600}.5"}, Reason.CLAIMS),
        ({"exp": True}, Reason.CLAIMS),
        ({"nbf": False}, Reason.CLAIMS),
        ({"exp": [NOW + 600.5]}, Reason.CLAIMS),
    ],
    ids=attacks.stable_id,
)
async def test_a_date_that_is_none_or_does_not_hold_is_refused(
    checker: Checker, claims: Json, reason: Reason
) -> None:
    assert await checker.refuses([entry(EC)], made(EC, **claims)) is reason


# ---- scopes


@cases.each(
    ("claims", "scopes"),
    [
        ({"scp": "read admin"}, {"read", "admin"}),  # Entra
        ({"scp": ["openid", "create"]}, {"create"}),  # Okta
        ({"scope": ["read", "admin"]}, {"read", "admin"}),
        ({"scope": "read", "scp": "admin"}, {"read"}),  # RFC 9068 names `scope`
        ({"scope": "read", "scp": 1}, {"read"}),
        ({"scope": "", "scp": "admin"}, set()),
        ({"scope": [], "scp": ["admin"]}, set()),
        ({"scope": ""}, set()),
        ({"scp": ""}, set()),
        ({"scp": []}, set()),
        ({"scp": "User.Read"}, set()),
        ({}, set()),
    ],
)
async def test_scopes_are_read_as_a_text_or_a_list(
    checker: Checker, claims: Json, scopes: set[str]
) -> None:
    """What names others only has what its issuer says: here nothing, there the default. What names
    nothing has nothing."""
    token = made(EC, **claims)
    assert (await checker.accepts([entry(EC)], token, default_scopes=[])).scopes == scopes
    principal = await checker.accepts([entry(EC)], token, default_scopes=["read"])
    names_nothing = claims.get("scope", claims.get("scp")) in ("", [])
    assert principal.scopes == (scopes or (set() if names_nothing else {"read"}))


@cases.each("name", ["scope", "scp"])
async def test_scopes_of_another_shape_are_refused(checker: Checker, name: str) -> None:
    shapes: list[Any] = [
        1,
        None,
        True,
        {},
        [1],
        [None],
        [["read"]],
        ["read admin"],
        [""],
        "a  b",
        ["x"] * 65,
    ]
    for value in shapes:
        token = attacks.signed(
            _json({"alg": "ES256", "typ": "JWT"}),
            _json({**json.loads(_payload(made(EC))), name: value}),
            attacks.es256(EC),
        )
        assert await checker.refuses([entry(EC)], token) is Reason.CLAIMS, value


def _payload(token: str) -> bytes:
    return verification._decode(token.split(".")[1])


# ---- rotation


@cases.each("kid", [None, "thumbprint"])
async def test_a_rotated_key_without_id_is_found_after_a_bad_signature(
    checker: Checker, kid: str | None
) -> None:
    old, new = (made(key, {"kid": kid}) for key in EC_KEYS[:2])
    await checker.accepts([entry(EC)], old)
    fetches = checker.published.fetches
    checker.published.keys = [entry(EC_KEYS[1])]
    checker.published.now += jwks.SPACING_S
    assert await checker.sets.verify(new, NOW)
    assert checker.published.fetches == fetches + 1
    assert await checker.reason(old) in {Reason.SIGNATURE, Reason.UNKNOWN_KEY}


async def test_a_rotated_key_of_another_size_is_found(checker: Checker) -> None:
    await checker.accepts([entry(RSA_KEYS[0])], made(RSA_KEYS[0]), algorithm="RS256")
    checker.published.keys = [entry(RSA_KEYS[1])]
    checker.published.now += jwks.SPACING_S
    assert await checker.sets.verify(made(RSA_KEYS[1]), NOW)


@cases.each("forged", [made(EC_KEYS[2]), made(EC_KEYS[2], {"kid": "x"})], ids=["no id", "an id"])
async def test_a_thousand_bad_signatures_cause_one_fetch_per_cooldown(
    checker: Checker, forged: str
) -> None:
    await checker.accepts([entry(EC)], made(EC))
    checker.published.now += jwks.SPACING_S
    fetches = checker.published.fetches
    for _ in range(1000):
        await checker.reason(forged)
        checker.published.now += jwks.COOLDOWN_S / 1100
    assert checker.published.fetches == fetches + 1
    await asyncio.gather(*(checker.reason(forged) for _ in range(50)))
    assert checker.published.fetches == fetches + 1
    checker.published.now += jwks.COOLDOWN_S
    await asyncio.gather(*(checker.reason(forged) for _ in range(50)))
    assert checker.published.fetches == fetches + 2


async def test_a_bad_signature_of_a_key_that_its_id_names_causes_no_fetch(checker: Checker) -> None:
    await checker.accepts([entry(EC, kid="k")], made(EC, {"kid": "k"}))
    checker.published.now += jwks.COOLDOWN_S
    await checker.reason(made(EC_KEYS[2], {"kid": "k"}))
    assert checker.published.fetches == 1


async def test_a_look_up_that_succeeded_delays_the_next_one_only_by_the_spacing(
    checker: Checker,
) -> None:
    """The cool-down used to start at every look-up, so a rotation soon after the start of a process
    was not seen for half a minute."""
    await checker.accepts([entry(EC, kid="1")], made(EC, {"kid": "1"}))
    checker.published.keys = [entry(EC_KEYS[1], kid="2")]
    assert await checker.reason(made(EC_KEYS[1], {"kid": "2"})) is Reason.UNKNOWN_KEY
    assert checker.published.fetches == 1
    checker.published.now += jwks.SPACING_S
    assert await checker.sets.verify(made(EC_KEYS[1], {"kid": "2"}), NOW)
    assert checker.published.fetches == 2


async def test_two_sets_that_an_issuer_serves_in_turn_cost_no_fetch_per_request(
    checker: Checker,
) -> None:
    for turn in range(100):
        checker.published.keys = [entry(EC_KEYS[turn % 2], kid=str(turn % 2))]
        token = made(EC_KEYS[turn % 2], {"kid": str(turn % 2)})
        try:
            await checker.sets.verify(token, NOW)
        except InvalidCredential:
            checker.published.now += jwks.SPACING_S / 20
    assert 2 <= checker.published.fetches <= 100 / 20 + 1


async def test_a_look_up_that_failed_cools_down_whatever_the_cause(checker: Checker) -> None:
    checker.published.fails = True
    token = made(EC)
    assert await checker.reason(token) is Reason.UNKNOWN_KEY
    checker.published.fails = False
    checker.published.keys = [entry(EC)]
    checker.published.now += jwks.COOLDOWN_S - 1
    assert await checker.reason(token) is Reason.UNKNOWN_KEY
    checker.published.now += 1
    assert await checker.sets.verify(token, NOW)
    assert checker.published.fetches == 2


async def test_a_caller_that_goes_away_leaves_the_cooldown_behind(checker: Checker) -> None:
    """Else a fetch per request could be had by hanging up."""
    stall = asyncio.Event()

    async def stalled(request: httpx.Request) -> httpx.Response:
        checker.published.fetches += 1
        await stall.wait()
        raise httpx.ConnectError("gone")

    async with httpx.AsyncClient(transport=httpx.MockTransport(stalled)) as client:
        checker.client = client
        checker.configured()
        for _ in range(5):
            task = asyncio.create_task(checker.sets.verify(made(EC), NOW))
            await asyncio.sleep(0)
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert checker.published.fetches == 1


# ---- whole sets, as their issuers publish them

CERTIFICATE = {"x5c": ["MIICmzCCAYMCBgF"], "x5t": "bGV0", "x5t#S256": "c2hhMjU2"}


@cases.each(
    ("keys", "token", "settings"),
    [
        (
            [
                entry(RSA_KEYS[1], kid="e1_Ve-Ag", alg="RSA-OAEP", use="enc", **CERTIFICATE),
                entry(RSA, kid="FJ86GcF3jTbNLOco4NvZ", alg="RS256", use="sig", **CERTIFICATE),
            ],
            made(RSA, {"kid": "FJ86GcF3jTbNLOco4NvZ"}, scope="openid read", typ="Bearer"),
            {},
        ),
        (
            [
                entry(
                    RSA,
                    kid="nOo3ZDrODXEK1jKWhXslHR_KXEg",
                    use="sig",
                    issuer=f"{ISS}/v2.0",
                    cloud_instance_name="microsoftonline.com",
                    **CERTIFICATE,
                )
            ],
            made(RSA, {"kid": "nOo3ZDrODXEK1jKWhXslHR_KXEg", "x5t": "nOo3"}, scp="read", nbf=NOW),
            {"ignored_headers": ["x5t"]},
        ),
        (
            [entry(RSA, kid="5RLqJvQXYrE", alg="RS256", use="sig")],
            made(RSA, {"kid": "5RLqJvQXYrE", "typ": "application/okta-internal-at+jwt"}),
            None,
        ),
        (
            [entry(RSA, kid="5RLqJvQXYrE", alg="RS256", use="sig")],
            made(RSA, {"kid": "5RLqJvQXYrE", "typ": None}, scp=["read"]),
            {"types": ["JWT", ""]},
        ),
        (
            [entry(RSA, kid="NjVBRjY5", alg="RS256", use="sig", **CERTIFICATE)],
            made(RSA, {"kid": "NjVBRjY5", "typ": "at+jwt"}, aud=["tailrace", f"{ISS}/userinfo"]),
            {"types": ["at+jwt"], "audience_lists": True},
        ),
        (
            [entry(RSA, kid="a5f2", alg="RS256", use="sig", key_ops=["verify"])],
            made(RSA, {"kid": "a5f2", "typ": None}),
            {"types": [""]},
        ),
    ],
    ids=["Keycloak", "Entra", "Okta, a type of its own", "Okta", "Auth0", "Dex"],
)
async def test_a_set_and_a_credential_of_a_known_issuer(
    checker: Checker, keys: list[Json], token: str, settings: Json | None
) -> None:
    if settings is None:
        assert await checker.refuses(keys, token, algorithm="RS256") is Reason.TYPE
    else:
        assert await checker.accepts(keys, token, algorithm="RS256", **settings)


async def test_the_algorithm_stays_the_issuers(checker: Checker) -> None:
    """Trying several keys gives no choice of algorithm."""
    spki = EC.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    keys = [entry(EC), entry(RSA), {"kty": "oct", "k": attacks.b64(spki)}]
    claims = _payload(made(EC))
    for alg, sign in (
        ("HS256", attacks.hs256(spki)),
        ("RS256", attacks.rs256(RSA)),
        ("none", attacks.hs256(spki)),
    ):
        token = attacks.signed(_json({"alg": alg, "typ": "JWT"}), claims, sign)
        assert await checker.refuses(keys, token) is Reason.ALGORITHM
    assert await checker.refuses(keys, made(RSA, {"alg": "ES256"})) is Reason.SIGNATURE
