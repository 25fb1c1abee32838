"""The adapter of python-jose: the only module that imports it, so that it can be replaced here.

The library is used to check and to make signatures, with key objects that were built and checked
by this package. It lets too much through to decide more (missing claims, junk in the signature,
key confusion with a DER key; tests/unit/tailrace/auth/test_jwt_library.py shows each).
"""

from collections.abc import Mapping
from typing import Any, Final, NewType

from jose import backends, jwt
from jose import exceptions as jose_exceptions

KeyHandle = NewType("KeyHandle", object)  # a key object of the library
SignatureRefused: Final[type[Exception]] = jose_exceptions.JOSEError
CredentialExpired: Final[type[Exception]] = jose_exceptions.ExpiredSignatureError

_REQUIRED: Final = {f"require_{name}": True for name in ("aud", "iss", "sub", "exp", "iat")}


def rsa_key(spki: bytes) -> KeyHandle:
    """An RS256 key from SPKI in PEM."""
    return KeyHandle(backends.RSAKey(spki, "RS256"))


def ec_key(spki: bytes) -> KeyHandle:
    """An ES256 key from SPKI in PEM."""
    return KeyHandle(backends.ECKey(spki, "ES256"))


def hmac_key(secret: bytes) -> KeyHandle:
    """An HS256 key."""
    return KeyHandle(backends.HMACKey(secret, "HS256"))


def signed_claims(
    token: str, key: KeyHandle, *, algorithm: str, audience: str, issuer: str, leeway_s: int
) -> dict[str, Any]:
    """The claims of a token whose signature, audience, issuer and times hold.

    Raises:
        CredentialExpired: by the library's own clock.
        SignatureRefused: anything else.
    """
    claims: dict[str, Any] = jwt.decode(
        token,
        key,
        algorithms=[algorithm],
        audience=audience,
        issuer=issuer,
        options={**_REQUIRED, "leeway": leeway_s},
    )
    return claims


def sign_es256(claims: Mapping[str, Any], private_pem: str, kid: str) -> str:
    """A signed token; for development credentials only, services sign nothing."""
    token: str = jwt.encode(
        dict(claims),
        backends.ECKey(private_pem, "ES256"),
        algorithm="ES256",
        headers={"kid": kid},
    )
    return token


def unsafe_backend() -> str | None:
    """The name of a key class that does not use `cryptography`, or None.

    jose falls back silently to pure Python (`ecdsa`, open to timing attacks) when its preferred
    backend does not import.
    """
    for name in ("RSAKey", "ECKey", "HMACKey"):
        backend = getattr(backends, name)
        if backend is None or backend.__module__ != "jose.backends.cryptography_backend":
            return name
    return None
