"""One key of an issuer: read from text, checked, and turned into a key object."""

import base64
import binascii
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from cryptography import exceptions as crypto_exceptions
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tailrace.auth import jwt_library
from tailrace.auth.strict_json import is_clean

Algorithm = Literal["RS256", "ES256", "HS256"]

MAX_KEY_ID_CHARS: Final = 1_024
_RSA_BITS: Final = range(2048, 4097)
_HMAC_MIN_BYTES: Final = 32
_HMAC_MIN_DISTINCT: Final = 8


class IssuersRefused(Exception):
    """The issuers file, or a key in it, is not acceptable: the process must not start. The text
    never contains key material."""


@dataclass(frozen=True, slots=True)
class Key:
    """A checked key. `handle` is the JWT library's key object; `signature_chars` is the one length
    that a signature made with this key can have, in base64url."""

    algorithm: Algorithm
    signature_chars: int
    handle: jwt_library.KeyHandle = field(repr=False)


def is_key_id(text: str) -> bool:
    """Whether `text` may name a key: any text (RFC 7517, 4.5) that is not empty, has a sane length
    and does no harm where it is printed."""
    return 1 <= len(text) <= MAX_KEY_ID_CHARS and is_clean(text)


def public_key(pem: str, algorithm: Algorithm) -> Key:
    """A key from SPKI or PKCS#1 in PEM. Raises IssuersRefused."""
    if not pem.lstrip().startswith("-----BEGIN "):
        raise IssuersRefused("a public key must be PEM text")
    try:
        key = serialization.load_pem_public_key(pem.encode())
    except (ValueError, TypeError, crypto_exceptions.UnsupportedAlgorithm) as error:
        raise IssuersRefused("not a public key in PEM") from error
    return checked_key(key, algorithm)


def checked_key(key: object, algorithm: Algorithm) -> Key:
    """A key from a public key that `cryptography` has loaded.

    The key is written out again before the JWT library sees it. So the library reads plain SPKI of
    the right type, whatever text the key came from.

    Raises:
        IssuersRefused: wrong kind or size of key.
    """
    if algorithm == "RS256":
        if not isinstance(key, rsa.RSAPublicKey) or key.key_size not in _RSA_BITS:
            raise IssuersRefused(
                f"RS256 takes an RSA public key of {_RSA_BITS.start} to {_RSA_BITS.stop - 1} bits"
            )
        return Key(
            algorithm,
            _signature_chars((key.key_size + 7) // 8),
            jwt_library.rsa_key(_spki(key)),
        )
    if algorithm == "ES256":
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(
            key.curve, ec.SECP256R1
        ):
            raise IssuersRefused("ES256 takes an EC public key on P-256")
        return Key(algorithm, _signature_chars(64), jwt_library.ec_key(_spki(key)))
    raise IssuersRefused("an HS256 issuer has secrets, not keys")


def _spki(key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def secret_key(text: str) -> Key:
    """A key from a secret in base64. Raises IssuersRefused.

    A secret that looks like a key in any form is refused: a public key as HMAC secret is the
    classic way to forge HS256. Not every form can be recognised; the protection that always holds
    is that an issuer has one algorithm.
    """
    try:
        secret = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise IssuersRefused("a secret must be base64") from error
    if len(secret) < _HMAC_MIN_BYTES or len(set(secret)) < _HMAC_MIN_DISTINCT:
        raise IssuersRefused(f"a secret needs {_HMAC_MIN_BYTES} random bytes or more")
    if b"-----BEGIN" in secret or secret.lstrip().startswith((b"ssh-", b"ecdsa-", b"sk-", b"{")):
        raise IssuersRefused("this secret is a key in text form")
    if _is_der_key(secret) or _is_der_key(_base64_inside(secret)):
        raise IssuersRefused("this secret is a key in DER form")
    return Key("HS256", _signature_chars(32), jwt_library.hmac_key(secret))


def _base64_inside(secret: bytes) -> bytes:
    try:
        return base64.b64decode(secret)
    except binascii.Error:
        return b""


def _is_der_key(content: bytes) -> bool:
    return _loads(serialization.load_der_public_key, content) or _loads(
        serialization.load_der_private_key, content, None
    )


def _loads(load: Callable[..., object], *args: object) -> bool:
    try:
        load(*args)
    except ValueError:
        return False
    except (TypeError, crypto_exceptions.UnsupportedAlgorithm):
        # An encrypted private key, or a key of a kind that cryptography knows but does not use.
        return True
    return True


def _signature_chars(length: int) -> int:
    return math.ceil(length * 4 / 3)
