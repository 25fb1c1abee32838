"""The development issuer: a key in the data folder, and credentials that it signs. Services never
read the key."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tailrace.auth import issuers, jwt_library, principal
from tailrace.local import paths

ISSUER = "https://tailrace.local/dev"
AUDIENCE = "tailrace"
KEY_ID = "dev-1"
MAX_LIFETIME_S = 86_400
LEEWAY_S = 30

# The page's credential outlives a working day and is renewed every hour.
PAGE_SUBJECT = "dev"
PAGE_LIFETIME_S = 12 * 3600
RENEW_AFTER_S = 3600

# All except `admin`, which must be requested.
DEFAULT_SCOPES = ("create", "read")

_DURATION = re.compile(r"(\d+)([smhd]?)\Z")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds(text: str) -> int:
    """A lifetime ("90", "90s", "15m", "1h", "1d") in seconds.

    Raises:
        ValueError: it is not a lifetime, or longer than MAX_LIFETIME_S. The text is for the user.
    """
    match = _DURATION.match(text.strip())
    value = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 1 <= value <= MAX_LIFETIME_S:
        raise ValueError(
            f"{text!r} is no lifetime: give a number with s, m or h, at most 24h (for example 1h)"
        )
    return value


def _write_private(path: Path, text: str) -> None:
    """Write a file atomically. Only its owner can read it, from the first byte on."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
    fresh.rename(path)


def generate_key() -> tuple[str, str]:
    """Make a P-256 key. Returns the private and the public PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return private.decode("ascii"), public.decode("ascii")


def mint(
    private_pem: str,
    kid: str,
    iss: str,
    audience: str,
    subject: str,
    now: float,
    ttl: int,
    tenant: str | None = None,
    scopes: Sequence[str] = (),
    credential: str | None = None,
) -> str:
    """Return an ES256 credential. `now` is in seconds since the epoch, `ttl` in seconds.

    Raises:
        ValueError: the key is not an EC key on P-256, or `ttl` is out of range.
    """
    key = serialization.load_pem_private_key(private_pem.encode(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("a development key is an EC key on P-256")
    if not 1 <= ttl <= issuers.MAX_LIFETIME_S:
        raise ValueError(f"ttl must be 1 to {issuers.MAX_LIFETIME_S} s")
    issued_at = int(now)
    claims: dict[str, Any] = {
        "iss": iss,
        "aud": audience,
        "sub": subject,
        "iat": issued_at,
        "exp": issued_at + ttl,
    }
    if tenant is not None:
        claims["tenant"] = tenant
    if credential is not None:
        claims["jti"] = credential
    if scopes:
        claims["scope"] = " ".join(scopes)
    return jwt_library.sign_es256(claims, private_pem, kid)


def ensure(data: paths.Data) -> None:
    """Write a new key and issuers file if one of the two is missing, and the gateways' session
    key."""
    if not data.session_key.exists():
        data.make()
        _write_private(data.session_key, secrets.token_urlsafe(32))
    if data.dev_key.exists() and data.issuers.exists():
        return
    data.make()
    private, public = generate_key()
    issuer = {
        "iss": ISSUER,
        "audience": AUDIENCE,
        "algorithm": "ES256",
        "types": ["JWT"],
        "max_lifetime": MAX_LIFETIME_S,
        "leeway": LEEWAY_S,
        "keys": {KEY_ID: public},
    }
    _write_private(data.dev_key, private)
    _write_private(data.issuers, json.dumps({"issuers": [issuer]}, indent=2))


def scopes(text: str) -> list[str]:
    """Scopes from a list with commas.

    Raises:
        ValueError: one is unknown, or there is none. The text is for the user.
    """
    names = [each.strip() for each in text.split(",") if each.strip()]
    if not names or not principal.SCOPES.issuperset(names):
        raise ValueError(f"{text!r}: scopes are {', '.join(sorted(principal.SCOPES))}")
    return names


def issue(data: paths.Data, subject: str, ttl: int, scopes: Sequence[str] = DEFAULT_SCOPES) -> str:
    """A credential of this data folder's issuer. `ttl` is in seconds."""
    ensure(data)
    return mint(
        data.dev_key.read_text(),
        KEY_ID,
        ISSUER,
        AUDIENCE,
        subject,
        time.time(),
        ttl,
        scopes=scopes,
        credential=secrets.token_hex(8),
    )


def renew_page_credential(data: paths.Data) -> None:
    """Write a new credential for the gateway's page, unless the last one is recent."""
    try:
        if time.time() - data.credential.stat().st_mtime < RENEW_AFTER_S:
            return
    except FileNotFoundError:
        pass
    _write_private(data.credential, issue(data, PAGE_SUBJECT, PAGE_LIFETIME_S))
