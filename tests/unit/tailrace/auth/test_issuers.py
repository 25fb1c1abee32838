"""Keys and issuers at start: whatever is doubtful ends the process before it listens, and says what
is wrong without showing the key."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tailrace.auth import jwt_library
from tailrace.auth.issuers import Issuers, load_issuers
from tailrace.auth.keys import IssuersRefused, public_key, secret_key
from tests.support import attacks, cases

FORGE = attacks.Forge()
SHORT_RSA_PEM = attacks.pem(rsa.generate_private_key(65537, 1024).public_key())  # noqa: S505
ED25519_PEM = attacks.pem(
    ed25519.Ed25519PrivateKey.generate().public_key()  # type: ignore[arg-type]
)
EC_PEM = attacks.pem(FORGE.ec.public_key())
RSA_PEM = attacks.pem(FORGE.rsa.public_key())
GOOD = {
    "iss": "https://i.test",
    "audience": "tailrace",
    "algorithm": "ES256",
    "types": ["JWT"],
    "max_lifetime": 3600,
    "keys": {"k": EC_PEM},
}


def _load(content: object, folder: Path) -> Issuers:
    path = folder / "issuers.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_issuers(path)


def _issuer(folder: Path, **changes: Any) -> Issuers:
    return _load(
        {
            "issuers": [
                {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
            ]
        },
        folder,
    )


def _private(
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, form: str = "PKCS8", encoding: str = "PEM"
) -> bytes:
    return key.private_bytes(
        getattr(serialization.Encoding, encoding),
        getattr(serialization.PrivateFormat, form),
        serialization.NoEncryption(),
    )


def _der(key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _openssh(key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


# ---- accepted


@cases.each("bits", [2048, 3072, 4096])
def test_rsa_keys_of_good_sizes_are_taken_with_the_right_signature_length(bits: int) -> None:
    private = rsa.generate_private_key(65537, bits)
    key = public_key(attacks.pem(private.public_key()), "RS256")
    assert key.signature_chars == len(attacks.b64(attacks.rs256(private)("x")))


def test_a_pkcs1_pem_is_accepted_and_written_out_again() -> None:
    pem = (
        FORGE.rsa.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.PKCS1)
        .decode()
    )
    assert public_key(pem, "RS256").signature_chars == 342


def test_a_pem_that_lost_its_line_breaks_is_the_same_key() -> None:
    assert public_key(EC_PEM.replace("\n", ""), "ES256").signature_chars == 86


def test_a_random_secret_is_taken() -> None:
    assert secret_key(base64.b64encode(bytes(range(200, 232))).decode()).signature_chars == 43


def test_every_setting_reaches_the_issuer(tmp_path: Path) -> None:
    issuers = _issuer(
        tmp_path, leeway=60, audience_lists=True, ignored_headers=["x5t"], types=["JWT", "at+jwt"]
    )
    issuer = issuers.by_name["https://i.test"]
    assert (issuer.leeway, issuer.audience_lists, issuer.ignored_headers) == (60, True, {"x5t"})
    assert (issuer.types, issuer.max_lifetime, list(issuer.keys)) == (
        {"JWT", "at+jwt"},
        3600,
        ["k"],
    )


def test_issuers_and_keys_cannot_be_changed_afterwards(tmp_path: Path) -> None:
    issuers = _issuer(tmp_path)
    with pytest.raises(TypeError):
        issuers.by_name["x"] = None  # type: ignore[index]
    with pytest.raises(TypeError):
        issuers.by_name["https://i.test"].keys["x"] = None  # type: ignore[index]
    with pytest.raises(AttributeError):
        issuers.by_name["https://i.test"].audience = "x"  # type: ignore[misc]


def test_a_key_does_not_show_itself(tmp_path: Path) -> None:
    assert "handle" not in repr(_issuer(tmp_path))


# ---- public keys refused


@cases.each(
    ("algorithm", "pem"),
    [
        ("RS256", SHORT_RSA_PEM),
        ("RS256", EC_PEM),
        ("ES256", RSA_PEM),
        ("ES256", attacks.pem(ec.generate_private_key(ec.SECP384R1()).public_key())),
        ("ES256", attacks.pem(ec.generate_private_key(ec.SECP256K1()).public_key())),
        ("ES256", ED25519_PEM),
        ("RS256", _private(FORGE.rsa).decode()),
        ("ES256", _private(FORGE.ec).decode()),
        ("ES256", _private(FORGE.ec, "TraditionalOpenSSL").decode()),
        ("ES256", _der(FORGE.ec.public_key()).decode("latin-1")),
        ("ES256", base64.b64encode(_der(FORGE.ec.public_key())).decode()),
        ("ES256", _openssh(FORGE.ec.public_key()).decode()),
        ("ES256", ""),
        ("ES256", "-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----"),
        ("HS256", EC_PEM),
    ],
    ids=lambda value: attacks.stable_id(value)[:20],
)
def test_a_doubtful_public_key_is_refused(algorithm: Any, pem: str) -> None:
    with pytest.raises(IssuersRefused) as refused:
        public_key(pem, algorithm)
    assert not pem or pem not in str(refused.value)


# ---- secrets refused

_SECRETS = {
    "31 bytes": bytes(range(31)),
    "32 equal bytes": b"x" * 32,
    "7 distinct bytes": b"abcdefg" * 10,
    "empty": b"",
    "private DER": _private(FORGE.ec, encoding="DER"),
    "private RSA DER": _private(FORGE.rsa, encoding="DER"),
    "encrypted private DER": FORGE.ec.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"x"),
    ),
    "private PEM": _private(FORGE.ec),
    "OpenSSH RSA": _openssh(FORGE.rsa.public_key()),
    "OpenSSH EC": _openssh(FORGE.ec.public_key()),
    "OpenSSH private": _private(FORGE.ec, "OpenSSH"),
    "JWK after a blank": b'  {"kty":"RSA","n":"abcdefghijklmnop"}',
    **{f"RSA {form}": secret for form, secret in attacks.public_key_forms(FORGE.rsa.public_key())},
    **{f"EC {form}": secret for form, secret in attacks.public_key_forms(FORGE.ec.public_key())},
}


@cases.each("secret", _SECRETS.values(), ids=_SECRETS.keys())
def test_a_secret_that_is_weak_or_a_key_in_disguise_is_refused(secret: bytes) -> None:
    text = base64.b64encode(secret).decode()
    with pytest.raises(IssuersRefused) as refused:
        secret_key(text)
    assert not text or text not in str(refused.value)


@cases.each(
    "text",
    [
        EC_PEM,
        RSA_PEM,
        "".join(RSA_PEM.splitlines()[1:-1]),
        "not base64!",
        "abc",
        "é" * 50,
        base64.urlsafe_b64encode(b"\xff" * 33).decode(),
    ],
)
def test_a_setting_that_is_no_base64_of_a_secret_is_refused(text: str) -> None:
    with pytest.raises(IssuersRefused):
        secret_key(text)


# ---- issuers files refused

_SECRET_TEXT = base64.b64encode(attacks.SECRET).decode()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iss": ""}, "iss is empty"),
        ({"iss": "a|b"}, "iss is empty"),
        ({"iss": "a\n"}, "iss is empty"),
        ({"audience": ""}, "audience is empty"),
        ({"audience": None}, "audience"),
        ({"algorithm": "none"}, "algorithm"),
        ({"algorithm": "RS512"}, "algorithm"),
        ({"algorithm": ["ES256"]}, "algorithm"),
        ({"types": []}, "types must be"),
        ({"types": ["JWE"]}, "types must be"),
        ({"leeway": 61}, "leeway must be"),
        ({"leeway": -1}, "leeway must be"),
        ({"max_lifetime": 86401}, "max_lifetime must be"),
        ({"max_lifetime": 0}, "max_lifetime must be"),
        ({"max_lifetime": None}, "max_lifetime"),
        ({"max_lifetime": "3600"}, "max_lifetime"),
        ({"max_lifetime": True}, "max_lifetime"),
        ({"ignored_headers": ["crit"]}, "ignored_headers"),
        ({"ignored_headers": ["kid"]}, "ignored_headers"),
        ({"keys": {}}, "exactly one of"),
        ({"keys": None}, "exactly one of"),
        ({"keys": {"k\n": EC_PEM}}, "key id"),
        ({"keys": {"k" * 1025: EC_PEM}}, "key id"),
        ({"keys": {"k": EC_PEM, "": EC_PEM}}, "key id"),
        ({"keys": {"k": RSA_PEM}}, "P-256"),
        ({"secrets": {"k": _SECRET_TEXT}}, "exactly one of"),
        ({"keys": None, "secrets": {"k": _SECRET_TEXT}}, "exactly one of"),
        ({"algorithm": "HS256"}, "exactly one of"),
        ({"algorithm": "HS256", "keys": None, "jwks_url": "https://i.test/jwks"}, "exactly one of"),
        ({"jwks_url": "https://i.test/jwks"}, "exactly one of"),
        ({"keys": None, "jwks_url": "http://i.test/jwks"}, "https"),
        ({"keys": None, "jwks_url": "https://user@i.test/jwks"}, "https"),
        ({"keys": None, "jwks_url": "https:///jwks"}, "https"),
        ({"keys": None, "jwks_url": "file:///etc/passwd"}, "https"),
        ({"verify": False}, "unknown field"),
    ],
    ids=attacks.stable_id,
)
def test_a_doubtful_issuer_is_refused_with_what_is_wrong(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(IssuersRefused, match=message):
        _issuer(tmp_path, **changes)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"issuers": []}',
        "{}",
        '{"issuers": {}}',
        '{"issuers": [1]}',
        '{"issuers": [], "issuers": []}',
        "[" * 5000,
    ],
)
def test_a_file_of_another_shape_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(IssuersRefused):
        _load(content, tmp_path)


def test_the_same_issuer_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IssuersRefused, match="twice"):
        _load({"issuers": [GOOD, GOOD]}, tmp_path)


def test_the_same_key_id_twice_is_refused(tmp_path: Path) -> None:
    text = json.dumps({"issuers": [GOOD]}).replace('{"k":', '{"k": "x", "k":')
    with pytest.raises(IssuersRefused, match="strict JSON"):
        _load(text, tmp_path)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IssuersRefused, match="FileNotFoundError"):
        load_issuers(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    with pytest.raises(IssuersRefused, match="UnicodeDecodeError"):
        load_issuers(tmp_path / "binary.json")


@pytest.mark.parametrize("name", ["RSAKey", "ECKey", "HMACKey"])
def test_a_fallback_backend_of_the_library_stops_the_start(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fallback:
        __module__ = "jose.backends.ecdsa_backend"

    monkeypatch.setattr(jwt_library.backends, name, Fallback)
    with pytest.raises(IssuersRefused, match=name):
        _issuer(tmp_path)


def test_a_renewed_key_set_is_a_copy(tmp_path: Path) -> None:
    issuers = _issuer(tmp_path)
    renewed = issuers.with_keys("https://i.test", {"new": [public_key(EC_PEM, "ES256")]})
    assert list(renewed.by_name["https://i.test"].keys) == ["new"]
    assert list(issuers.by_name["https://i.test"].keys) == ["k"]
