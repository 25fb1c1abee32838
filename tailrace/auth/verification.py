"""From a credential to a principal: synchronous, without I/O and without state.

Order of the checks: text, strict JSON, issuer by name, header, keys by key id, claims, signature,
and last that both JSON readers saw the same claims. The expensive step is near the end, and before
it nothing in the token is used for more than a dictionary lookup.

Which keys are tried. A key id that the issuer's set has names its key, and no other is tried. A
credential with another id may be signed by a key that has none, and one without id by any key of
the issuer: then up to MAX_TRIES keys are tried. The algorithm is always the issuer's.
"""

import base64
import binascii
import itertools
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tailrace.auth import jwt_library
from tailrace.auth.issuers import DENIED_HEADERS, USED_HEADERS, Issuer, Issuers
from tailrace.auth.keys import Key, is_key_id
from tailrace.auth.principal import SCOPES, InvalidCredential, Principal, Reason
from tailrace.auth.strict_json import is_clean, strict_object

MAX_TOKEN_CHARS: Final = 8192
MAX_HEADER_CHARS: Final = 1800  # of the encoded header part; the longest key id in ASCII fits
MAX_NAME_CHARS: Final = 255  # of a subject and of a credential's id
MAX_SCOPES: Final = 64
MAX_AUDIENCES: Final = 8
MAX_TRIES: Final = 8  # keys that one credential is checked against

_TOKEN: Final = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_TENANT: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,128}")  # RFC 6749, 3.3
_MAX_TIME: Final = 2**53  # the largest count every JSON reader holds exactly


class _Candidates(NamedTuple):
    """The keys that may have signed. `missing` is the refusal when none of them has: it names the
    issuer where a newer key set may have the key."""

    keys: Sequence[Key]
    missing: InvalidCredential


def verify(token: str, issuers: Issuers, now: float) -> Principal:
    """The principal of a valid credential. `now` in seconds since the epoch.

    Raises:
        InvalidCredential: and nothing else, whatever `token` is.
    """
    try:
        return _verify(token, issuers, now)
    except InvalidCredential:
        raise
    except Exception as error:
        # A defect here or in the library. It is refused like any other credential, and counted
        # under a reason of its own so that it is noticed.
        raise InvalidCredential(Reason.INTERNAL) from error


def _verify(token: str, issuers: Issuers, now: float) -> Principal:
    header_part, payload_part, signature_part = _parts(token)
    header, claims = _object(header_part), _object(payload_part)
    _decode(signature_part)
    issuer = _issuer(claims, issuers)
    _check_header(header, issuer)
    candidates = _candidates(header.get("kid", ""), issuer)
    _check_claims(claims, issuer)
    _check_times(claims, issuer, now)
    principal = _principal(claims, issuer)
    # Only a signature of the one length that a key makes reaches the library.
    keys = [key for key in candidates.keys if key.signature_chars == len(signature_part)]
    signed_claims = _signed_claims(token, keys[:MAX_TRIES], issuer)
    if signed_claims is None:
        raise candidates.missing
    if signed_claims != claims:
        raise InvalidCredential(Reason.INTERNAL)  # two JSON readers disagree: trust neither
    return principal


def _parts(token: object) -> tuple[str, str, str]:
    # Exactly str: a subclass could answer these questions in another way than the library reads it.
    if type(token) is not str or len(token) > MAX_TOKEN_CHARS or not token.isascii():
        raise InvalidCredential(Reason.MALFORMED)
    match = _TOKEN.fullmatch(token)
    if match is None or len(match[1]) > MAX_HEADER_CHARS:
        raise InvalidCredential(Reason.MALFORMED)
    return match[1], match[2], match[3]


def _decode(part: str) -> bytes:
    """The bytes of canonical base64url.

    The spare bits of the last character allow several texts for the same bytes; all but one are
    refused.
    """
    try:
        content = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except binascii.Error as error:
        raise InvalidCredential(Reason.MALFORMED) from error
    if _encode(content) != part:
        raise InvalidCredential(Reason.MALFORMED)
    return content


def _encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode("ascii")


def _object(part: str) -> dict[str, Any]:
    try:
        return strict_object(_decode(part).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidCredential(Reason.MALFORMED) from error


def _issuer(claims: dict[str, Any], issuers: Issuers) -> Issuer:
    iss = claims.get("iss")
    issuer = issuers.by_name.get(iss) if type(iss) is str else None
    if issuer is None:
        raise InvalidCredential(Reason.ISSUER)
    return issuer


def _check_header(header: dict[str, Any], issuer: Issuer) -> None:
    names = header.keys()
    if names & DENIED_HEADERS or names - USED_HEADERS - issuer.ignored_headers:
        raise InvalidCredential(Reason.HEADER)
    if any(type(value) is not str for value in header.values()):
        raise InvalidCredential(Reason.HEADER)
    if header.get("alg") != issuer.algorithm:
        raise InvalidCredential(Reason.ALGORITHM)
    if not _has_type(header.get("typ"), issuer.types):
        raise InvalidCredential(Reason.TYPE)


def _has_type(typ: str | None, types: frozenset[str]) -> bool:
    if typ is None:
        return "" in types
    # Media types have no case, and "application/" may be left out (RFC 7515, 4.1.9).
    name = typ.lower().removeprefix("application/")
    return name != "" and name in {each.lower() for each in types}


def _candidates(kid: str, issuer: Issuer) -> _Candidates:
    """An empty key id is none."""
    if kid != "" and not is_key_id(kid):
        raise InvalidCredential(Reason.KEY_ID)
    nameless = issuer.keys.get("", ())
    if kid == "":
        named = (keys for name, keys in issuer.keys.items() if name != "")
        keys = [*nameless, *itertools.chain.from_iterable(named)]
        reason = Reason.SIGNATURE if keys else Reason.UNKNOWN_KEY
        return _Candidates(keys, InvalidCredential(reason, issuer.iss))
    if kid in issuer.keys:
        return _Candidates(issuer.keys[kid], InvalidCredential(Reason.SIGNATURE))
    return _Candidates(nameless, InvalidCredential(Reason.UNKNOWN_KEY, issuer.iss))


def _check_claims(claims: dict[str, Any], issuer: Issuer) -> None:
    if "at_hash" in claims:
        # An ID token says who a user is, not what they may do here.
        raise InvalidCredential(Reason.TYPE)
    if not _is_for_us(claims.get("aud"), issuer):
        raise InvalidCredential(Reason.AUDIENCE)
    if not _is_name(claims.get("sub")):
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


def _check_times(claims: dict[str, Any], issuer: Issuer, now: float) -> None:
    issued_at, expires = _time(claims, "iat"), _time(claims, "exp")
    not_before = _time(claims, "nbf") if "nbf" in claims else issued_at
    # Life and expiry count in the whole seconds that the principal carries: a revocation is kept
    # for as long as such a life lasts.
    if not int(issued_at) < int(expires) <= int(issued_at) + issuer.max_lifetime:
        raise InvalidCredential(Reason.LIFETIME)
    if not int(expires) > now - issuer.leeway:
        raise InvalidCredential(Reason.EXPIRED)
    if not (issued_at <= now + issuer.leeway and not_before <= now + issuer.leeway):
        raise InvalidCredential(Reason.NOT_YET_VALID)


def _time(claims: dict[str, Any], name: str) -> int | float:
    """A NumericDate, which may have a fraction (RFC 7519, 2)."""
    value = claims.get(name)
    # bool is an int, and is none here.
    if (type(value) is int or type(value) is float) and 0 < value < _MAX_TIME:
        return value
    raise InvalidCredential(Reason.CLAIMS)


def _principal(claims: dict[str, Any], issuer: Issuer) -> Principal:
    tenant = claims.get("tenant")
    if "tenant" in claims and (type(tenant) is not str or _TENANT.fullmatch(tenant) is None):
        raise InvalidCredential(Reason.CLAIMS)
    credential = claims.get("jti")
    if "jti" in claims and not _is_name(credential):
        raise InvalidCredential(Reason.CLAIMS)
    return Principal(
        issuer.iss,
        claims["sub"],
        tenant,
        _granted(_scopes(claims), issuer),
        int(claims["exp"]),
        int(claims["iat"]),
        credential,
    )


def _granted(named: list[str] | None, issuer: Issuer) -> frozenset[str]:
    """An empty list grants nothing. Scopes of others (`openid`, `profile`) say nothing about what
    may be done here."""
    if named == []:
        return frozenset()
    return SCOPES.intersection(named or ()) or issuer.default_scopes


def _scopes(claims: dict[str, Any]) -> list[str] | None:
    """The scopes that a credential names: in `scope` (RFC 9068, 2.2.3), or without that claim in
    `scp`; as a text with spaces, or as a list. None without either claim."""
    named = claims.get("scope", claims.get("scp"))
    if "scope" not in claims and "scp" not in claims:
        return None
    if type(named) is str:
        named = named.split(" ") if named else []
    if type(named) is not list or len(named) > MAX_SCOPES or not all(map(_is_scope, named)):
        raise InvalidCredential(Reason.CLAIMS)
    return named


def _is_scope(value: object) -> bool:
    return isinstance(value, str) and _SCOPE.fullmatch(value) is not None


def _is_name(value: object) -> bool:
    return type(value) is str and 1 <= len(value) <= MAX_NAME_CHARS and is_clean(value)


def _signed_claims(token: str, keys: Sequence[Key], issuer: Issuer) -> dict[str, Any] | None:
    """The claims that one of the keys has signed; None when none of them has."""
    for key in keys:
        try:
            return jwt_library.signed_claims(
                token,
                key.handle,
                algorithm=issuer.algorithm,
                audience=issuer.audience,
                issuer=issuer.iss,
                leeway_s=issuer.leeway,
            )
        except jwt_library.CredentialExpired as error:
            # By the library's own clock: a second check after `_check_times`.
            raise InvalidCredential(Reason.EXPIRED) from error
        except jwt_library.SignatureRefused:
            continue
    return None
