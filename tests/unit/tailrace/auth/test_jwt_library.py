"""What python-jose 3.5.0 lets through by itself: the reasons for the checks in tailrace/auth/.

A failure here after an upgrade is news, not a defect: the library changed, so its row in the
security notes and the check that answers it are looked at again, and the corpus is run on the new
release before the pin moves.
"""

import base64
import importlib.metadata
import json
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.support import attacks, cases

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from jose import backends, exceptions, jwk, jwt

FORGE = attacks.Forge()
NOW = time.time()
RSA_PEM = attacks.pem(FORGE.rsa.public_key())
SHORT_RSA_PEM = attacks.pem(rsa.generate_private_key(65537, 1024).public_key())  # noqa: S505
EC_PEM = attacks.pem(FORGE.ec.public_key())
RSA_DER = FORGE.rsa.public_key().public_bytes(
    serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
)
RSA_PKCS1 = FORGE.rsa.public_key().public_bytes(
    serialization.Encoding.DER, serialization.PublicFormat.PKCS1
)
PEM_BODY = "\n".join(RSA_PEM.splitlines()[1:-1]).encode()
SECRET_KEY = backends.HMACKey(attacks.SECRET, "HS256")


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> Iterator[None]:
    with attacks.library_clock(NOW):
        yield


def _forged(secret: bytes) -> str:
    return attacks.signed(
        attacks.replaced(FORGE.header("rs"), "alg", '"HS256"'),
        FORGE.claims("rs", NOW),
        attacks.hs256(secret),
    )


def _decode(
    token: str, key: Any = SECRET_KEY, algorithms: Any = ("HS256",), **options: Any
) -> dict[str, Any]:
    claims: dict[str, Any] = jwt.decode(
        token,
        key,
        algorithms=algorithms,
        audience=attacks.AUDIENCE,
        issuer=attacks.iss("hs"),
        **options,
    )
    return claims


def test_these_measurements_are_of_this_release() -> None:
    assert importlib.metadata.version("python-jose") == "3.5.0"


@cases.each("algorithms", [None, ["RS256", "HS256"]])
@cases.each("key", [RSA_DER, RSA_PKCS1, PEM_BODY], ids=["SPKI DER", "PKCS#1 DER", "PEM body"])
def test_it_accepts_hs256_forged_with_a_raw_public_key(
    key: bytes, algorithms: list[str] | None
) -> None:
    assert (
        jwt.decode(_forged(key), key, algorithms=algorithms, audience=attacks.AUDIENCE)["sub"]
        == "alice"
    )


@pytest.mark.parametrize(
    "key", [RSA_PEM.encode(), RSA_PEM.replace("\n", "").encode()], ids=["PEM", "PEM on one line"]
)
def test_it_rejects_the_forgery_with_pem(key: bytes) -> None:
    with pytest.raises(exceptions.JOSEError):
        jwt.decode(_forged(key), key, algorithms=["RS256", "HS256"], audience=attacks.AUDIENCE)


@cases.each("secret", [RSA_DER, RSA_PKCS1, PEM_BODY, RSA_PEM.encode()])
def test_a_ready_made_key_object_stops_every_confusion(secret: bytes) -> None:
    """What K1 relies on."""
    with pytest.raises(exceptions.JOSEError):
        jwt.decode(
            _forged(secret),
            backends.RSAKey(RSA_PEM, "RS256"),
            algorithms=["RS256", "HS256"],
            audience=attacks.AUDIENCE,
        )


@cases.each(
    "secret",
    [
        RSA_DER,
        PEM_BODY,
        json.dumps({"kty": "RSA", "n": "AA", "e": "AQAB"}).encode(),
        b"",
        b"secret",
    ],
)
def test_it_builds_a_secret_from_a_public_key_from_nothing_and_from_six_bytes(
    secret: bytes,
) -> None:
    assert backends.HMACKey(secret, "HS256")


@cases.each(
    ("build", "pem", "algorithm"),
    [
        (
            backends.ECKey,
            attacks.pem(ec.generate_private_key(ec.SECP384R1()).public_key()),
            "ES256",
        ),
        (backends.RSAKey, SHORT_RSA_PEM, "RS256"),
        (backends.RSAKey, EC_PEM, "RS256"),
        (backends.ECKey, RSA_PEM, "ES256"),
    ],
)
def test_it_builds_keys_of_a_wrong_size_curve_or_type(
    build: Callable[..., Any], pem: str, algorithm: str
) -> None:
    assert build(pem, algorithm)


def test_without_a_list_of_algorithms_the_token_chooses_and_a_text_is_searched_for_a_part() -> None:
    assert _decode(FORGE.token("hs", NOW), algorithms=None)
    with pytest.raises(exceptions.JOSEError):
        _decode(FORGE.token("hs", NOW), algorithms=["RS256"])
    assert _decode(FORGE.with_header("hs", NOW, "alg", '"S256"'), algorithms="HS256")


def test_it_tries_every_key_of_a_set_and_ignores_kid() -> None:
    keys = {
        "keys": [
            jwk.construct(attacks.SECRET, "HS256").to_dict() | {"kid": "right"},
            {"kty": "oct", "k": "AAAA", "alg": "HS256", "kid": "wrong"},
        ]
    }
    assert _decode(FORGE.with_header("hs", NOW, "kid", '"wrong"'), key=keys)


@cases.each(
    ("name", "value"),
    [
        ("crit", '["unheard-of"]'),
        ("b64", "false"),
        ("jku", '"http://x"'),
        ("jwk", "{}"),
        ("zip", '"DEF"'),
        ("kid", f'"{"k" * 10_000}"'),
        ("typ", '"x"'),
    ],
)
def test_it_accepts_headers_that_change_the_meaning(name: str, value: str) -> None:
    assert _decode(FORGE.with_header("hs", NOW, name, value))


@pytest.mark.parametrize("junk", ["!!!", "=="])
def test_it_accepts_junk_after_the_signature(junk: str) -> None:
    assert _decode(FORGE.token("hs", NOW) + junk)


def test_it_accepts_a_non_canonical_signature_and_five_parts() -> None:
    token = FORGE.token("hs", NOW)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    assert _decode(token[:-1] + alphabet[alphabet.index(token[-1]) + 1])
    claims = attacks.json_object(FORGE.claims("hs", NOW))
    header, payload, _ = FORGE.token(
        "hs", NOW, claims=claims.ljust(len(claims) // 3 * 3 + 3)
    ).split(".")  # whole groups, else its padding fails
    dotted = f"{header}.{payload[:12]}.{payload[12:24]}.{payload[24:]}"
    assert _decode(f"{dotted}.{attacks.b64(FORGE.sign('hs', dotted))}")


def test_it_takes_the_last_of_two_members() -> None:
    claims = attacks.json_object([*FORGE.claims("hs", NOW), ("sub", '"root"')])
    assert _decode(FORGE.token("hs", NOW, claims=claims))["sub"] == "root"


@cases.each("name", ["exp", "iat", "sub", "aud"])
def test_it_accepts_a_missing_claim(name: str) -> None:
    assert name not in _decode(FORGE.with_claim("hs", NOW, name, None))


@cases.each(
    ("name", "value"),
    [
        ("sub", '""'),
        ("exp", f'"{int(NOW) + 60}"'),
        ("exp", f"{int(NOW) + 60}.5"),
        ("iat", f'"{int(NOW)}"'),
        ("iat", str(int(NOW) + 86400)),
        ("exp", str(int(NOW) + 10 * 365 * 86400)),
    ],
    ids=attacks.stable_id,
)
def test_it_accepts_claims_of_odd_type_or_value(name: str, value: str) -> None:
    assert _decode(FORGE.with_claim("hs", NOW, name, value))


def test_it_rejects_a_missing_issuer_and_alg_none() -> None:
    with pytest.raises(exceptions.JOSEError):
        _decode(FORGE.with_claim("hs", NOW, "iss", None))
    with pytest.raises(exceptions.JOSEError):
        _decode(
            FORGE.with_header("hs", NOW, "alg", '"none"').rpartition(".")[0] + ".", algorithms=None
        )


@cases.each(
    ("token", "raised"),
    [
        (FORGE.with_claim("hs", NOW, "exp", "1e400"), OverflowError),
        (FORGE.with_claim("hs", NOW, "exp", "null"), TypeError),
        (FORGE.with_claim("hs", NOW, "exp", "[]"), TypeError),
        (FORGE.token("hs", NOW)[:-1] + "\ud800", UnicodeEncodeError),
        (
            FORGE.token("hs", NOW, claims=b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
            RecursionError,
        ),
    ],
    ids=["1e400", "null", "list", "surrogate", "deep"],
)
def test_it_raises_what_is_none_of_its_own_errors(token: str, raised: type[Exception]) -> None:
    with pytest.raises(raised):
        _decode(token)


def test_base64_of_the_standard_library_forgives_what_we_do_not() -> None:
    """Why decoding alone is no check of a part's text."""
    assert base64.urlsafe_b64decode("QUI!=") == b"AB"
