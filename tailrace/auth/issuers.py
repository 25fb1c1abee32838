"""The issuers file: who may sign credentials, for which audience, with which keys.

`load_issuers` runs once, at start. Anything doubtful in the file ends the process there.
"""

import dataclasses
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

import msgspec

from tailrace.auth import jwt_library
from tailrace.auth.keys import (
    MAX_KEY_ID_CHARS,
    Algorithm,
    IssuersRefused,
    Key,
    is_key_id,
    public_key,
    secret_key,
)
from tailrace.auth.principal import DEFAULT_SCOPES
from tailrace.auth.strict_json import is_clean, strict_object

MAX_LIFETIME_S: Final = 24 * 3600
MAX_LEEWAY_S: Final = 60

DENIED_HEADERS: Final = frozenset({"crit", "jku", "x5u", "x5c", "jwk", "zip", "b64", "enc", "cty"})
USED_HEADERS: Final = frozenset({"alg", "typ", "kid"})
_TYPES: Final = frozenset({"JWT", "at+jwt", ""})


@dataclass(frozen=True, slots=True)
class Issuer:
    """One issuer. `keys` is by key id; the id "" has the keys without one. In `types`, "" stands
    for a credential without the header `typ`. `leeway` and `max_lifetime` are in seconds.
    `default_scopes` is what a credential may do that names none of the scopes `create`, `read` and
    `admin`."""

    iss: str
    audience: str
    algorithm: Algorithm
    types: frozenset[str]
    keys: Mapping[str, Sequence[Key]]
    leeway: int
    max_lifetime: int
    audience_lists: bool = False
    ignored_headers: frozenset[str] = frozenset()
    jwks_url: str | None = None
    default_scopes: frozenset[str] = DEFAULT_SCOPES


@dataclass(frozen=True, slots=True)
class Issuers:
    """All issuers, by name."""

    by_name: Mapping[str, Issuer]

    def with_keys(self, iss: str, keys: Mapping[str, Sequence[Key]]) -> Self:
        """A copy in which issuer `iss` has the key set `keys` (tailrace.auth.jwks)."""
        issuer = dataclasses.replace(self.by_name[iss], keys=MappingProxyType(dict(keys)))
        return dataclasses.replace(self, by_name=MappingProxyType({**self.by_name, iss: issuer}))


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
    default_scopes: tuple[str, ...] = tuple(sorted(DEFAULT_SCOPES))


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    issuers: list[_IssuerSettings]


def load_issuers(path: Path | str) -> Issuers:
    """Raises IssuersRefused; the file's shape is in docs/operations.md."""
    unsafe = jwt_library.unsafe_backend()
    if unsafe is not None:
        raise IssuersRefused(f"python-jose does not use cryptography for {unsafe}")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise IssuersRefused(f"cannot read {path}: {type(error).__name__}") from error
    try:
        settings = msgspec.convert(strict_object(text), _Settings)
    except msgspec.ValidationError as error:
        # The message names the place and the expected type, never the value.
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
        default_scopes=frozenset(settings.default_scopes),
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
        f"default_scopes must be some of {sorted(DEFAULT_SCOPES)}": not DEFAULT_SCOPES.issuperset(
            settings.default_scopes
        ),
        "ignored_headers names a header that is used or always refused": bool(
            (DENIED_HEADERS | USED_HEADERS).intersection(settings.ignored_headers)
        ),
    }
    for refusal, applies in refusals.items():
        if applies:
            raise IssuersRefused(refusal)


def _is_name(text: str) -> bool:
    return 1 <= len(text) <= 255 and is_clean(text) and "|" not in text


def _keys(settings: _IssuerSettings) -> dict[str, Sequence[Key]]:
    sources = [name for name in ("keys", "secrets", "jwks_url") if getattr(settings, name)]
    allowed_sources = {"secrets"} if settings.algorithm == "HS256" else {"keys", "jwks_url"}
    if len(sources) != 1 or sources[0] not in allowed_sources:
        raise IssuersRefused(
            f"a {settings.algorithm} issuer needs exactly one of {sorted(allowed_sources)}"
        )
    if settings.jwks_url is not None:
        if not _is_https(settings.jwks_url):
            raise IssuersRefused(
                "jwks_url must be an https URL with a host and without user, password or fragment"
            )
        return {}  # tailrace.auth.jwks fetches them
    texts = settings.secrets or settings.keys
    if any(kid != "" and not is_key_id(kid) for kid in texts) or ("" in texts and len(texts) > 1):
        raise IssuersRefused(
            f"a key id has 1 to {MAX_KEY_ID_CHARS} characters and no control character, or is empty"
            " for an issuer's only key"
        )
    if settings.algorithm == "HS256":
        return {kid: (secret_key(text),) for kid, text in texts.items()}
    return {kid: (public_key(text, settings.algorithm),) for kid, text in texts.items()}


def _is_https(url: str) -> bool:
    parts = urllib.parse.urlsplit(url)
    return (
        parts.scheme == "https"
        and bool(parts.hostname)
        and parts.username is None
        and not parts.fragment
        and url.isascii()
    )
