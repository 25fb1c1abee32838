"""Key sets that issuers publish (JWKS): fetched, checked, kept fresh.

    token -> verify -> key not found? -> at most one fetch -> verify once more

A key is not found when its id is unknown, or when no id named it and none of the keys made the
signature.

A verified credential is remembered until it expires, while the key sets stay the same: a client
sends the same one with every request, and the check costs more than the rest of a request's head.

Rules. The address comes from the settings, never from a token. https, no redirects, no compression.
One fetch at a time per issuer. After a look-up that failed, or a caller that went away during one,
credentials cause no fetch for COOLDOWN_S; after one that found the key, for SPACING_S. A bad answer
leaves the old set in place, for MAX_STALE_S at most. A key that cannot be used is passed over, and
the others are taken.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tailrace.auth.issuers import Issuers
from tailrace.auth.keys import Algorithm, IssuersRefused, Key, checked_key, is_key_id
from tailrace.auth.principal import InvalidCredential, Principal
from tailrace.auth.strict_json import strict_object
from tailrace.auth.verification import verify

if TYPE_CHECKING:
    import httpx

FETCH_TIMEOUT_S: Final = 3.0
MAX_BODY_BYTES: Final = 64 * 1024
MAX_KEYS: Final = 32
COOLDOWN_S: Final = 30.0
SPACING_S: Final = 1.0
REFRESH_S: Final = 300.0
MAX_STALE_S: Final = 24 * 3600.0
MAX_CACHED: Final = 1_024

_KTY: Final = {"RS256": "RSA", "ES256": "EC"}
# RFC 7518, 6.2.2 and 6.3.2.
_PRIVATE_MEMBERS: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth"})


class BadKeySet(Exception):
    """The fetched document cannot replace the old key set."""


def new_client() -> httpx.AsyncClient:
    """A client for KeySets. It trusts the authorities of the package `certifi`."""
    import httpx  # half a second of CPU, with what it imports: only where keys are fetched

    return httpx.AsyncClient(timeout=FETCH_TIMEOUT_S, follow_redirects=False, trust_env=False)


class CachedPrincipal(NamedTuple):
    """A credential that was checked in full at `at` (seconds since the epoch) with `issuers`."""

    principal: Principal
    issuers: Issuers
    at: float


class KeySets:
    """The issuers with their current keys.

    `client` may be None where no issuer has an address for its keys. `clock` counts seconds and
    never goes back. `alarm(iss, what)` is called for every failed fetch.

    Attributes:
        _issuers: replaced as a whole by a good fetch, and when a set has become too old.
        _good_at: clock of the last good fetch, by issuer; no entry before the first one, and after
            the set was dropped.
        _not_before: clock until which a credential causes no fetch.
        _cache: by the whole text of the credential; the last used is last.
    """

    def __init__(
        self,
        issuers: Issuers,
        client: httpx.AsyncClient | None,
        clock: Callable[[], float],
        alarm: Callable[[str, str], None],
    ) -> None:
        self._issuers = issuers
        self._client = client
        self._clock = clock
        self._alarm = alarm
        self._urls = {
            iss: issuer.jwks_url
            for iss, issuer in issuers.by_name.items()
            if issuer.jwks_url is not None
        }
        self._locks = {iss: asyncio.Lock() for iss in self._urls}
        self._good_at: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._cache: collections.OrderedDict[str, CachedPrincipal] = collections.OrderedDict()

    async def verify(self, token: str, now: float) -> Principal:
        """Like `verification.verify`, with one refresh when the key is not found."""
        cached = self.cached_principal(token, now)
        if cached is not None:
            return cached
        principal = await self._verify(token, now)
        self._cache[token] = CachedPrincipal(principal, self._issuers, now)
        if len(self._cache) > MAX_CACHED:
            self._cache.popitem(last=False)
        return principal

    def cached_principal(self, token: str, now: float) -> Principal | None:
        """The principal of a credential that was checked before and holds; None for any other."""
        self._drop_stale()
        entry = self._cache.get(token)
        # Between its check and its expiry only the keys decide. A clock that went back, or an
        # expiry within the leeway, is checked in full.
        if (
            entry is not None
            and entry.issuers is self._issuers
            and entry.at <= now < entry.principal.expires_at
        ):
            self._cache.move_to_end(token)
            return entry.principal
        return None

    def knows(self, iss: str) -> bool:
        """Whether credentials of this issuer are accepted at all."""
        return iss in self._issuers.by_name

    async def _verify(self, token: str, now: float) -> Principal:
        try:
            return verify(token, self._issuers, now)
        except InvalidCredential as refused:
            iss = refused.issuer
            if iss not in self._urls or not await self._refresh_for_unknown(iss):
                raise
        principal = verify(token, self._issuers, now)
        # The set had changed. Some time still passes before the next fetch: an issuer may serve two
        # sets in turn.
        self._not_before[iss] = min(self._not_before.get(iss, 0.0), self._good_at[iss] + SPACING_S)
        return principal

    async def run(self) -> None:
        """Fetch all sets every REFRESH_S. A removed key stops working at the next good fetch."""
        while self._urls:
            for iss in self._urls:
                async with self._locks[iss]:
                    await self._fetch(iss)
            await asyncio.sleep(REFRESH_S)

    async def _refresh_for_unknown(self, iss: str) -> bool:
        """Whether there may be new keys now."""
        now = self._clock()
        async with self._locks[iss]:
            if self._good_at.get(iss, -1.0) >= now:
                return True  # fetched while this call waited for the lock
            if self._clock() < self._not_before.get(iss, 0.0):
                return False
            # Before the fetch, so that it holds too when the caller goes away.
            self._not_before[iss] = self._clock() + COOLDOWN_S
            if not await self._fetch(iss):
                return False
            self._not_before[iss] = self._clock() + COOLDOWN_S
            return True

    async def _fetch(self, iss: str) -> bool:
        import httpx

        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                body = await self._get(self._urls[iss])
            keys = parse(body, self._issuers.by_name[iss].algorithm)
        except (httpx.HTTPError, TimeoutError, OSError, BadKeySet) as error:
            self._not_before[iss] = self._clock() + COOLDOWN_S
            self._alarm(iss, str(error) if isinstance(error, BadKeySet) else type(error).__name__)
            return False
        self._issuers = self._issuers.with_keys(iss, keys)
        self._good_at[iss] = self._clock()
        return True

    async def _get(self, url: str) -> bytes:
        body = bytearray()
        # Without compression the bytes read are the body's size, so the bound is exact.
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        assert self._client is not None
        async with self._client.stream(
            "GET", url, headers=headers, follow_redirects=False
        ) as answer:
            if answer.status_code != 200 or "content-encoding" in answer.headers:
                raise BadKeySet(f"status {answer.status_code}, or a compressed body")
            async for piece in answer.aiter_raw():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise BadKeySet("body too big")
        return bytes(body)

    def _drop_stale(self) -> None:
        oldest = self._clock() - MAX_STALE_S
        for iss in [iss for iss, good_at in self._good_at.items() if good_at < oldest]:
            self._issuers = self._issuers.with_keys(iss, {})
            del self._good_at[iss]
            self._alarm(iss, "key set too old")


def parse(body: bytes, algorithm: Algorithm) -> dict[str, list[Key]]:
    """The usable keys by key id, and by "" those without one. Other entries are passed over.

    Several keys may have one id: RFC 7517 (4.5) only recommends that they differ.

    Raises:
        BadKeySet: not strict JSON, no list of entries, too many of them, or no usable key.
    """
    try:
        entries = strict_object(body.decode("utf-8")).get("keys")
    except (ValueError, RecursionError) as error:
        raise BadKeySet("not strict JSON") from error
    if type(entries) is not list or len(entries) > MAX_KEYS:
        raise BadKeySet(f"not a list of up to {MAX_KEYS} keys")
    objects = [entry for entry in entries if type(entry) is dict]
    exposed = {_identity(entry) for entry in objects if _PRIVATE_MEMBERS & entry.keys()}
    keys: dict[str, list[Key]] = {}
    for entry in objects:
        key = _usable(entry, algorithm)
        # With a published private key anyone can sign, whichever entry shows it.
        if key is not None and _identity(entry) not in exposed:
            keys.setdefault(entry.get("kid", ""), []).append(key)
    if not keys:
        raise BadKeySet("no usable key")
    return keys


def _usable(entry: dict[str, Any], algorithm: Algorithm) -> Key | None:
    kid = entry.get("kid", "")
    fits = (
        entry.get("kty") == _KTY[algorithm]
        and entry.get("use", "sig") == "sig"
        and _may_verify(entry.get("key_ops", ["verify"]))
        and entry.get("alg", algorithm) == algorithm
    )
    if not fits or type(kid) is not str or not (kid == "" or is_key_id(kid)):
        return None
    try:
        return checked_key(_load(entry), algorithm)
    except (IssuersRefused, ValueError):
        return None


def _may_verify(operations: object) -> bool:
    return type(operations) is list and "verify" in operations


def _identity(entry: dict[str, Any]) -> tuple[str, int] | None:
    """The same for every entry of one key pair; None for an entry without such a number."""
    name = "n" if entry.get("kty") == "RSA" else "x"
    try:
        return name, _number(entry, name)
    except ValueError:
        return None


def _load(entry: dict[str, Any]) -> object:
    """Raises ValueError."""
    if entry["kty"] == "RSA":
        return rsa.RSAPublicNumbers(_number(entry, "e"), _number(entry, "n")).public_key()
    if entry.get("crv") != "P-256":
        raise ValueError("another curve")
    return ec.EllipticCurvePublicNumbers(
        _number(entry, "x"), _number(entry, "y"), ec.SECP256R1()
    ).public_key()


def _number(entry: dict[str, Any], name: str) -> int:
    text = entry.get(name)
    if type(text) is not str or not text.isascii():
        raise ValueError(name)
    try:
        return int.from_bytes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), "big")
    except binascii.Error as error:
        raise ValueError(name) from error
