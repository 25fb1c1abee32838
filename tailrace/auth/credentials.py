"""Credentials: a JWT in, a Principal or InvalidCredential out.

python-jose is used for one thing only: checking a signature with a key object that was built and
checked here. Everything else is decided by this module, because the library lets too much through
(missing claims, junk in the signature, key confusion with a DER key). It is the only module that
may import `jose`, so that the library can be replaced in one place.

    load_issuers(path) -> Issuers      once, at start; anything doubtful in the file ends the process there
    verify(token, issuers, now)        per request; synchronous, no I/O, no state

Order inside `verify`: text -> strict JSON -> issuer by name -> header -> key by kid -> claims ->
signature -> parsers agree. So the expensive step comes last, and nothing a stranger sent is used
for more than a dictionary lookup before it.
"""

import base64
import binascii
import dataclasses
import enum
import json
import math
import re
import unicodedata
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn, Self

import msgspec
from cryptography import exceptions as crypto_exceptions
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jose import backends, jwt
from jose import exceptions as jose_exceptions

Algorithm = Literal["RS256", "ES256", "HS256"]

MAX_TOKEN_CHARS: Final = 8192
MAX_HEADER_CHARS: Final = 1400  # of the encoded header part
MAX_DEPTH: Final = 16  # nesting of objects and lists in header and payload
MAX_LIFETIME_S: Final = 24 * 3600
MAX_LEEWAY_S: Final = 60
MAX_SUBJECT_CHARS: Final = 255
MAX_SCOPES: Final = 64
MAX_AUDIENCES: Final = 8

_TOKEN: Final = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_KID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TENANT: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,128}")  # RFC 6749, 3.3
_DENIED_HEADERS: Final = frozenset({"crit", "jku", "x5u", "x5c", "jwk", "zip", "b64", "enc", "cty"})
_USED_HEADERS: Final = frozenset({"alg", "typ", "kid"})
_TYPES: Final = frozenset({"JWT", "at+jwt"})
_RSA_BITS: Final = range(2048, 4097)
_HMAC_MIN_BYTES: Final = 32
_HMAC_MIN_DISTINCT: Final = 8
_MAX_TIME: Final = 2**53  # the largest count every JSON reader holds exactly


class Reason(enum.StrEnum):
    """Why a credential was refused: for metrics. The client sees one message for all of them."""

    MISSING = "missing"  # no credential was presented (said by the endpoints, not here)
    MALFORMED = "malformed"
    HEADER = "header"
    ISSUER = "issuer"
    ALGORITHM = "algorithm"
    TYPE = "type"
    KEY_ID = "key_id"
    UNKNOWN_KEY = "unknown_key"
    AUDIENCE = "audience"
    CLAIMS = "claims"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    LIFETIME = "lifetime"
    SIGNATURE = "signature"
    INTERNAL = "internal"
    TICKET = "ticket"  # unknown, used or outdated one-time ticket (tailrace.store.redis_store)
    TICKET_ORIGIN = "ticket_origin"  # a ticket presented by another origin than it was minted for
    REVOKED = "revoked"


class InvalidCredential(Exception):
    """`issuer` names a configured issuer when `reason` is UNKNOWN_KEY: its key set may be fetched
    anew and the credential tried once more."""

    def __init__(self, reason: Reason, issuer: str | None = None) -> None:
        super().__init__(reason.value)
        self.reason: Final = reason
        self.issuer: Final = issuer


class IssuersRefused(Exception):
    """The issuers file, or a key in it, is not acceptable: the process must not start. The text
    never contains key material."""


@dataclass(frozen=True, slots=True)
class Principal:
    issuer: str
    subject: str
    tenant: str | None
    scopes: frozenset[str]
    expires_at: int  # seconds since the epoch

    @property
    def key(self) -> str:
        """Stable and unambiguous: issuer and tenant cannot contain the separator, the subject comes
        last."""
        return f"{self.issuer}|{self.tenant or ''}|{self.subject}"


@dataclass(frozen=True, slots=True)
class Key:
    """A checked key. `handle` is jose's key object; `signature_chars` the one length a signature
    made with it can have."""

    algorithm: Algorithm
    signature_chars: int
    handle: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Issuer:
    iss: str
    audience: str
    algorithm: Algorithm
    types: frozenset[str]
    keys: Mapping[str, Key]  # by kid; the kid "" belongs to an issuer with one key that has no name
    leeway: int
    max_lifetime: int
    audience_lists: bool = False
    ignored_headers: frozenset[str] = frozenset()
    jwks_url: str | None = None


@dataclass(frozen=True, slots=True)
class Issuers:
    by_name: Mapping[str, Issuer]

    def with_keys(self, iss: str, keys: Mapping[str, Key]) -> Self:
        """A copy in which one issuer has another key set (tailrace.auth.jwks)."""
        renewed = dataclasses.replace(self.by_name[iss], keys=MappingProxyType(dict(keys)))
        return dataclasses.replace(self, by_name=MappingProxyType({**self.by_name, iss: renewed}))


# ---- verify
# ----------------------------------------------------------------------------------------


def verify(token: str, issuers: Issuers, now: float) -> Principal:
    """Raises InvalidCredential and nothing else, whatever `token` is."""
    try:
        return _verify(token, issuers, now)
    except InvalidCredential:
        raise
    except Exception as error:
        # A defect, of ours or of the library: refused like any other, and counted under a name of
        # its own so that it is looked into.
        raise InvalidCredential(Reason.INTERNAL) from error


def _verify(token: str, issuers: Issuers, now: float) -> Principal:
    header_part, payload_part, signature_part = _parts(token)
    header, claims = _object(header_part), _object(payload_part)
    _decoded(signature_part)
    issuer = _issuer(claims, issuers)
    key = _key(header, issuer)
    if len(signature_part) != key.signature_chars:
        raise InvalidCredential(Reason.SIGNATURE)
    _check_claims(claims, issuer)
    _check_times(claims, issuer, now)
    principal = _principal(claims, issuer)
    if _signed_claims(token, key, issuer) != claims:
        raise InvalidCredential(Reason.INTERNAL)  # two JSON readers saw two texts: trust neither
    return principal


def _parts(token: object) -> tuple[str, str, str]:
    # Exactly str: a subclass could answer these questions differently from what jose then reads.
    if type(token) is not str or len(token) > MAX_TOKEN_CHARS or not token.isascii():
        raise InvalidCredential(Reason.MALFORMED)
    match = _TOKEN.fullmatch(token)
    if match is None or len(match[1]) > MAX_HEADER_CHARS:
        raise InvalidCredential(Reason.MALFORMED)
    return match[1], match[2], match[3]


def _decoded(part: str) -> bytes:
    """base64url has several texts for the same bytes (spare bits of the last character); only the
    canonical one is taken."""
    try:
        content = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except binascii.Error as error:
        raise InvalidCredential(Reason.MALFORMED) from error
    if _encoded(content) != part:
        raise InvalidCredential(Reason.MALFORMED)
    return content


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode("ascii")


def _object(part: str) -> dict[str, Any]:
    try:
        return strict_object(_decoded(part).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidCredential(Reason.MALFORMED) from error


def strict_object(text: str) -> dict[str, Any]:
    """A JSON object with no member twice, no number that is none, and bounded depth. Raises
    ValueError or RecursionError."""
    value = json.loads(
        text, object_pairs_hook=_members, parse_constant=_refuse_constant, parse_float=_finite
    )
    if type(value) is not dict:
        raise ValueError("not an object")
    _check_depth(value)
    return value


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member twice")
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number out of range")
    return number


def _check_depth(value: object) -> None:
    layer = [value]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for each in layer:
            if isinstance(each, dict):
                inner.extend(each.values())
            elif isinstance(each, list):
                inner.extend(each)
        if not inner:
            return
        layer = inner
    raise ValueError("nested too deep")


def _issuer(claims: dict[str, Any], issuers: Issuers) -> Issuer:
    iss = claims.get("iss")
    issuer = issuers.by_name.get(iss) if type(iss) is str else None
    if issuer is None:
        raise InvalidCredential(Reason.ISSUER)
    return issuer


def _key(header: dict[str, Any], issuer: Issuer) -> Key:
    names = header.keys()
    if names & _DENIED_HEADERS or names - _USED_HEADERS - issuer.ignored_headers:
        raise InvalidCredential(Reason.HEADER)
    if any(type(value) is not str for value in header.values()):
        raise InvalidCredential(Reason.HEADER)
    if header.get("alg") != issuer.algorithm:
        raise InvalidCredential(Reason.ALGORITHM)
    if header.get("typ") not in issuer.types:
        raise InvalidCredential(Reason.TYPE)
    return _key_by_id(header.get("kid"), issuer)


def _key_by_id(kid: str | None, issuer: Issuer) -> Key:
    if kid is not None and _KID.fullmatch(kid) is None:
        raise InvalidCredential(Reason.KEY_ID)
    key = issuer.keys.get("" if kid is None else kid)
    if key is not None:
        return key
    if kid is None:
        raise InvalidCredential(Reason.KEY_ID)
    raise InvalidCredential(Reason.UNKNOWN_KEY, issuer.iss)


def _check_claims(claims: dict[str, Any], issuer: Issuer) -> None:
    if "at_hash" in claims:
        raise InvalidCredential(
            Reason.TYPE
        )  # an ID token: it says who somebody is, not what they may do here
    if not _is_for_us(claims.get("aud"), issuer):
        raise InvalidCredential(Reason.AUDIENCE)
    subject = claims.get("sub")
    if (
        type(subject) is not str
        or not 1 <= len(subject) <= MAX_SUBJECT_CHARS
        or not _is_clean(subject)
    ):
        raise InvalidCredential(Reason.CLAIMS)


def _is_for_us(audience: object, issuer: Issuer) -> bool:
    if type(audience) is str:
        return audience == issuer.audience
    if (
        type(audience) is not list
        or not issuer.audience_lists
        or not 1 <= len(audience) <= MAX_AUDIENCES
    ):
        return False
    return all(type(each) is str for each in audience) and issuer.audience in audience


def _is_clean(text: str) -> bool:
    """No control characters, and no lone surrogates, which JSON can carry and UTF-8 cannot."""
    return not any(unicodedata.category(char) in {"Cc", "Cs"} for char in text)


def _check_times(claims: dict[str, Any], issuer: Issuer, now: float) -> None:
    issued, expires = _time(claims, "iat"), _time(claims, "exp")
    not_before = _time(claims, "nbf") if "nbf" in claims else issued
    if not issued < expires <= issued + issuer.max_lifetime:
        raise InvalidCredential(Reason.LIFETIME)
    if not expires > now - issuer.leeway:
        raise InvalidCredential(Reason.EXPIRED)
    if not (issued <= now + issuer.leeway and not_before <= now + issuer.leeway):
        raise InvalidCredential(Reason.NOT_YET_VALID)


def _time(claims: dict[str, Any], name: str) -> int:
    value = claims.get(name)
    if type(value) is not int or not 0 < value < _MAX_TIME:  # bool is an int, and is none here
        raise InvalidCredential(Reason.CLAIMS)
    return value


def _principal(claims: dict[str, Any], issuer: Issuer) -> Principal:
    tenant = claims.get("tenant")
    if "tenant" in claims and (type(tenant) is not str or _TENANT.fullmatch(tenant) is None):
        raise InvalidCredential(Reason.CLAIMS)
    scope = claims.get("scope", "")
    if type(scope) is not str:
        raise InvalidCredential(Reason.CLAIMS)
    scopes = scope.split(" ") if scope else []
    if len(scopes) > MAX_SCOPES or any(_SCOPE.fullmatch(each) is None for each in scopes):
        raise InvalidCredential(Reason.CLAIMS)
    return Principal(issuer.iss, claims["sub"], tenant, frozenset(scopes), claims["exp"])


def _signed_claims(token: str, key: Key, issuer: Issuer) -> dict[str, Any]:
    options = {f"require_{name}": True for name in ("aud", "iss", "sub", "exp", "iat")}
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key.handle,
            algorithms=[issuer.algorithm],
            audience=issuer.audience,
            issuer=issuer.iss,
            options={**options, "leeway": issuer.leeway},
        )
    except jose_exceptions.ExpiredSignatureError as error:
        raise InvalidCredential(
            Reason.EXPIRED
        ) from error  # by the library's own clock: the second line
    except jose_exceptions.JOSEError as error:
        raise InvalidCredential(Reason.SIGNATURE) from error
    return claims


# ---- keys
# ------------------------------------------------------------------------------------------


def public_key(pem: str, algorithm: Algorithm) -> Key:
    """From SPKI or PKCS#1 PEM text. Raises IssuersRefused."""
    if not pem.lstrip().startswith("-----BEGIN "):
        raise IssuersRefused("a public key must be PEM text")
    try:
        loaded = serialization.load_pem_public_key(pem.encode())
    except (ValueError, TypeError, crypto_exceptions.UnsupportedAlgorithm) as error:
        raise IssuersRefused("not a public key in PEM") from error
    return checked_key(loaded, algorithm)


def checked_key(loaded: object, algorithm: Algorithm) -> Key:
    """From a public key that `cryptography` has loaded. It is written out again before jose sees
    it: whatever odd text it came from, jose reads plain SPKI of the right type. Raises
    IssuersRefused."""
    if algorithm == "RS256":
        if not isinstance(loaded, rsa.RSAPublicKey) or loaded.key_size not in _RSA_BITS:
            raise IssuersRefused(
                f"RS256 takes an RSA public key of {_RSA_BITS.start} to {_RSA_BITS.stop - 1} bits"
            )
        return Key(
            algorithm,
            _signature_chars((loaded.key_size + 7) // 8),
            backends.RSAKey(_spki(loaded), algorithm),
        )
    if algorithm == "ES256":
        if not isinstance(loaded, ec.EllipticCurvePublicKey) or not isinstance(
            loaded.curve, ec.SECP256R1
        ):
            raise IssuersRefused("ES256 takes an EC public key on P-256")
        return Key(algorithm, _signature_chars(64), backends.ECKey(_spki(loaded), algorithm))
    raise IssuersRefused("an HS256 issuer has secrets, not keys")


def _spki(key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def secret_key(text: str) -> Key:
    """From a base64 setting. What looks like any form of a public key is refused: a secret that
    everybody knows is the classic way to forge HS256. (It cannot be recognised in every form; what
    protects is that an issuer has one algorithm.) Raises IssuersRefused."""
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
    return Key("HS256", _signature_chars(32), backends.HMACKey(secret, "HS256"))


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
        # an encrypted private key; a key of a kind that cryptography knows but does not use
        return True
    return True


def _signature_chars(length: int) -> int:
    return math.ceil(length * 4 / 3)


# ---- issuers
# ---------------------------------------------------------------------------------------


class _IssuerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    iss: str
    audience: str
    algorithm: Algorithm
    types: list[str]
    max_lifetime: int
    leeway: int = 0
    keys: dict[str, str] = {}
    secrets: dict[str, str] = {}
    jwks_url: str | None = None
    audience_lists: bool = False
    ignored_headers: list[str] = []


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    issuers: list[_IssuerSettings]


def load_issuers(path: Path | str) -> Issuers:
    """Raises IssuersRefused; the file's shape is in docs/operations.md."""
    _require_cryptography_backend()
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise IssuersRefused(f"cannot read {path}: {type(error).__name__}") from error
    try:
        settings = msgspec.convert(strict_object(text), _Settings)
    except (
        msgspec.ValidationError
    ) as error:  # names the place and the expected type, never the value
        raise IssuersRefused(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise IssuersRefused(f"{path}: not strict JSON") from error
    issuers: dict[str, Issuer] = {}
    for each in settings.issuers:
        if each.iss in issuers:
            raise IssuersRefused(f"issuer {each.iss!r} is there twice")
        issuers[each.iss] = _checked_issuer(each)
    if not issuers:
        raise IssuersRefused(f"{path}: no issuer")
    return Issuers(MappingProxyType(issuers))


def _checked_issuer(settings: _IssuerSettings) -> Issuer:
    try:
        _check_settings(settings)
        keys = _keys(settings)
    except IssuersRefused as error:
        raise IssuersRefused(f"issuer {settings.iss!r}: {error}") from error
    return Issuer(
        iss=settings.iss,
        audience=settings.audience,
        algorithm=settings.algorithm,
        types=frozenset(settings.types),
        keys=MappingProxyType(keys),
        leeway=settings.leeway,
        max_lifetime=settings.max_lifetime,
        audience_lists=settings.audience_lists,
        ignored_headers=frozenset(settings.ignored_headers),
        jwks_url=settings.jwks_url,
    )


def _check_settings(settings: _IssuerSettings) -> None:
    refusals = {
        "iss is empty, too long, or has a control character or '|'": not _is_name(settings.iss),
        "audience is empty, too long, or has a control character or '|'": not _is_name(
            settings.audience
        ),
        f"types must be some of {sorted(_TYPES)}": not settings.types
        or not _TYPES.issuperset(settings.types),
        f"leeway must be 0 to {MAX_LEEWAY_S} s": not 0 <= settings.leeway <= MAX_LEEWAY_S,
        f"max_lifetime must be 1 to {MAX_LIFETIME_S} s": not 1
        <= settings.max_lifetime
        <= MAX_LIFETIME_S,
        "ignored_headers names a header that is used or always refused": bool(
            (_DENIED_HEADERS | _USED_HEADERS).intersection(settings.ignored_headers)
        ),
    }
    for refusal, applies in refusals.items():
        if applies:
            raise IssuersRefused(refusal)


def _is_name(text: str) -> bool:
    return 1 <= len(text) <= 255 and _is_clean(text) and "|" not in text


def _keys(settings: _IssuerSettings) -> dict[str, Key]:
    given = [name for name in ("keys", "secrets", "jwks_url") if getattr(settings, name)]
    allowed = {"secrets"} if settings.algorithm == "HS256" else {"keys", "jwks_url"}
    if len(given) != 1 or given[0] not in allowed:
        raise IssuersRefused(
            f"a {settings.algorithm} issuer needs exactly one of {sorted(allowed)}"
        )
    if settings.jwks_url is not None:
        if not _is_https(settings.jwks_url):
            raise IssuersRefused(
                "jwks_url must be an https URL with a host and without user, password or fragment"
            )
        return {}  # tailrace.auth.jwks fetches them
    texts = settings.secrets or settings.keys
    if any(kid != "" and _KID.fullmatch(kid) is None for kid in texts) or (
        "" in texts and len(texts) > 1
    ):
        raise IssuersRefused(
            "a key id is 1 to 64 of A-Z a-z 0-9 . _ -, or empty for an issuer's only key"
        )
    if settings.algorithm == "HS256":
        return {kid: secret_key(text) for kid, text in texts.items()}
    return {kid: public_key(text, settings.algorithm) for kid, text in texts.items()}


def _is_https(url: str) -> bool:
    parts = urllib.parse.urlsplit(url)
    return (
        parts.scheme == "https"
        and bool(parts.hostname)
        and parts.username is None
        and not parts.fragment
        and url.isascii()
    )


def is_key_id(text: str) -> bool:
    return _KID.fullmatch(text) is not None


def _require_cryptography_backend() -> None:
    """jose falls back silently to pure Python (`ecdsa`: open to timing attacks) when its preferred
    backend does not import."""
    for name in ("RSAKey", "ECKey", "HMACKey"):
        found = getattr(backends, name)
        if found is None or found.__module__ != "jose.backends.cryptography_backend":
            raise IssuersRefused(f"python-jose does not use cryptography for {name}")


# ---- development credentials
# -----------------------------------------------------------------------


def generate_dev_key() -> tuple[str, str]:
    """Private and public PEM of a fresh P-256 key."""
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private.decode("ascii"), _spki(key.public_key()).decode("ascii")


def issue(
    private_pem: str,
    kid: str,
    iss: str,
    audience: str,
    subject: str,
    now: float,
    ttl: int,
    tenant: str | None = None,
    scopes: Sequence[str] = (),
) -> str:
    """An ES256 credential for development. `now` in seconds since the epoch, `ttl` in seconds."""
    key = serialization.load_pem_private_key(private_pem.encode(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("a development key is an EC key on P-256")
    if not 1 <= ttl <= MAX_LIFETIME_S:
        raise ValueError(f"ttl must be 1 to {MAX_LIFETIME_S} s")
    issued = int(now)
    claims: dict[str, Any] = {
        "iss": iss,
        "aud": audience,
        "sub": subject,
        "iat": issued,
        "exp": issued + ttl,
    }
    if tenant is not None:
        claims["tenant"] = tenant
    if scopes:
        claims["scope"] = " ".join(scopes)
    token: str = jwt.encode(
        claims, backends.ECKey(private_pem, "ES256"), algorithm="ES256", headers={"kid": kid}
    )
    return token
