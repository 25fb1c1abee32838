import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tailrace.auth import jwks
from tailrace.auth.issuers import Issuers, load_issuers
from tailrace.auth.principal import InvalidCredential, Principal, Reason
from tests.support import attacks, cases

FORGE = attacks.Forge()
NOW = time.time()
ISS = attacks.iss("es")
URL = "https://issuer.test/jwks"


def _jwk(
    kid: str, key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey, **more: Any
) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPublicKey):
        numbers = key.public_numbers()
        length = (key.key_size + 7) // 8
        return {
            "kty": "RSA",
            "kid": kid,
            "n": attacks.number64(numbers.n, length),
            "e": attacks.number64(numbers.e, 3),
            **more,
        }
    point = key.public_numbers()
    return {
        "kty": "EC",
        "crv": "P-256",
        "kid": kid,
        "x": attacks.number64(point.x, 32),
        "y": attacks.number64(point.y, 32),
        **more,
    }


GOOD = _jwk("key-es", FORGE.ec.public_key(), use="sig", alg="ES256")


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> Iterator[None]:
    with attacks.library_clock(NOW):
        yield


class FakeIssuer:
    """Answers the one URL; counts and can be told to fail, to stall or to answer otherwise."""

    def __init__(self) -> None:
        self.fetches = 0
        self.keys: list[Any] = [GOOD]
        self.answer: Callable[[], httpx.Response] = lambda: httpx.Response(
            200, json={"keys": self.keys}
        )
        self.delay_s = 0.0
        self.alarms: list[str] = []
        self.now = 1000.0  # the clock of KeySets

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        assert str(request.url) == URL
        self.fetches += 1
        await asyncio.sleep(self.delay_s)
        answer = self.answer()
        # Unread, as from a network: MockTransport would otherwise hand over a body that cannot be
        # streamed.
        return httpx.Response(
            answer.status_code, headers=answer.headers, stream=httpx.ByteStream(answer.content)
        )


@pytest.fixture
def issuer() -> FakeIssuer:
    return FakeIssuer()


@pytest.fixture
async def sets(issuer: FakeIssuer, tmp_path: Path) -> AsyncIterator[jwks.KeySets]:
    settings = {"audience": attacks.AUDIENCE, "leeway": 30, "max_lifetime": 3600, "types": ["JWT"]}
    path = tmp_path / "issuers.json"
    remote = {**settings, "iss": ISS, "algorithm": "ES256", "jwks_url": URL}
    static = {
        **settings,
        "iss": attacks.iss("rs"),
        "algorithm": "RS256",
        "keys": {"key-rs": attacks.pem(FORGE.rsa.public_key())},
    }
    path.write_text(json.dumps({"issuers": [remote, static]}))
    async with httpx.AsyncClient(transport=httpx.MockTransport(issuer)) as client:
        yield jwks.KeySets(
            load_issuers(path),
            client,
            lambda: issuer.now,
            lambda iss, what: issuer.alarms.append(f"{iss} {what}"),
        )


async def _refused(sets: jwks.KeySets, token: str) -> Reason:
    with pytest.raises(InvalidCredential) as refused:
        await sets.verify(token, NOW)
    return refused.value.reason


async def test_the_first_token_fetches_the_keys_and_the_next_does_not(
    sets: jwks.KeySets, issuer: FakeIssuer
) -> None:
    for _ in range(3):
        assert (await sets.verify(FORGE.token("es", NOW), NOW)).subject == "alice"
    assert issuer.fetches == 1


async def test_a_thousand_unknown_key_ids_cause_one_fetch_per_cooldown(
    sets: jwks.KeySets, issuer: FakeIssuer
) -> None:
    for n in range(1000):
        assert (
            await _refused(sets, FORGE.with_header("es", NOW, "kid", f'"k{n}"'))
            is Reason.UNKNOWN_KEY
        )
        issuer.now += 0.02
    assert issuer.fetches == 1
    issuer.now += jwks.COOLDOWN_S
    await _refused(sets, FORGE.with_header("es", NOW, "kid", '"k"'))
    assert issuer.fetches == 2


async def test_many_at_once_share_one_fetch(sets: jwks.KeySets, issuer: FakeIssuer) -> None:
    issuer.delay_s = 0.02
    principals = await asyncio.gather(
        *(sets.verify(FORGE.token("es", NOW), NOW) for _ in range(20))
    )
    assert {principal.subject for principal in principals} == {"alice"}
    assert issuer.fetches == 1


async def test_only_an_unknown_key_of_a_publishing_issuer_causes_a_fetch(
    sets: jwks.KeySets, issuer: FakeIssuer
) -> None:
    await sets.verify(FORGE.token("rs", NOW), NOW)
    await _refused(sets, FORGE.with_header("rs", NOW, "kid", '"k"'))
    await _refused(sets, FORGE.with_header("es", NOW, "jku", '"https://evil.test"'))
    await _refused(sets, "x.y.z")
    assert issuer.fetches == 0


async def test_a_rotated_key_works_at_once_and_a_removed_one_stops(
    sets: jwks.KeySets, issuer: FakeIssuer
) -> None:
    old = FORGE.token("es", NOW)
    await sets.verify(old, NOW)
    issuer.now += jwks.COOLDOWN_S
    issuer.keys = [_jwk("key-2", FORGE.other_ec.public_key())]
    header = attacks.replaced(FORGE.header("es"), "kid", '"key-2"')
    new = attacks.signed(header, FORGE.claims("es", NOW), attacks.es256(FORGE.other_ec))
    assert await sets.verify(new, NOW)
    assert await _refused(sets, old) is Reason.UNKNOWN_KEY


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times at which a credential was checked in full."""
    made: list[float] = []
    original = jwks.verify

    def counted(token: str, issuers: Issuers, now: float) -> Principal:
        made.append(now)
        return original(token, issuers, now)

    monkeypatch.setattr(jwks, "verify", counted)
    return made


async def test_a_credential_that_was_good_is_checked_once_until_it_expires(
    sets: jwks.KeySets, checks: list[float]
) -> None:
    token = FORGE.token("rs", NOW)
    first = await sets.verify(token, NOW)
    assert await sets.verify(token, NOW + 1) == first
    assert await sets.verify(token, first.expires_at - 1) == first
    assert checks == [NOW]
    await sets.verify(token, NOW - 1)
    assert checks == [NOW, NOW - 1], "a clock that went back proves nothing"
    with pytest.raises(InvalidCredential) as refused:
        await sets.verify(token, first.expires_at + 31)
    assert refused.value.reason is Reason.EXPIRED


async def test_only_the_very_same_text_is_remembered(
    sets: jwks.KeySets, checks: list[float]
) -> None:
    token = FORGE.token("rs", NOW)
    await sets.verify(token, NOW)
    head, body, signature = token.split(".")
    for other in (
        f"{head}.{body}.{signature[:-4]}AAAA",
        f"{head}.{body}.",
        f"{token}.",
        f" {token}",
    ):
        await _refused(sets, other)
    assert len(checks) == 5


async def test_what_is_refused_is_not_remembered_and_what_is_remembered_is_bounded(
    sets: jwks.KeySets, checks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "MAX_CACHED", 2)
    for _ in range(2):
        await _refused(sets, "x.y.z")
    assert len(checks) == 2
    tokens = [FORGE.token("rs", NOW - n) for n in range(3)]
    for token in tokens:
        await sets.verify(token, NOW)
    await sets.verify(tokens[2], NOW)
    assert len(checks) == 5
    await sets.verify(tokens[0], NOW)
    assert len(checks) == 6


_BAD_ANSWERS: dict[str, Callable[[], httpx.Response]] = {
    "500": lambda: httpx.Response(500, json={"keys": [GOOD]}),
    "redirect": lambda: httpx.Response(302, headers={"location": "https://evil.test/jwks"}),
    "not JSON": lambda: httpx.Response(200, content=b"<html>"),
    "not UTF-8": lambda: httpx.Response(200, content=b"\xff\xfe"),
    "deep": lambda: httpx.Response(200, content=b'{"keys":' + b"[" * 30_000),
    "no keys": lambda: httpx.Response(200, json={}),
    "empty set": lambda: httpx.Response(200, json={"keys": []}),
    "keys that are no list": lambda: httpx.Response(200, json={"keys": {"0": GOOD}}),
    "no entry that is an object": lambda: httpx.Response(200, json={"keys": [1, None]}),
    "33 keys": lambda: httpx.Response(
        200, json={"keys": [{**GOOD, "kid": f"k{n}"} for n in range(33)]}
    ),
    "a member twice": lambda: httpx.Response(
        200, content=json.dumps({"keys": [GOOD]}).replace('"kid"', '"kid": "x", "kid"').encode()
    ),
    "too big": lambda: httpx.Response(200, json={"keys": [GOOD], "pad": "x" * jwks.MAX_BODY_BYTES}),
    "compressed": lambda: httpx.Response(
        200, headers={"content-encoding": "identity"}, json={"keys": [GOOD]}
    ),
}


@pytest.mark.parametrize("answer", _BAD_ANSWERS.values(), ids=_BAD_ANSWERS.keys())
async def test_a_bad_answer_keeps_the_old_set_raises_an_alarm_and_cools_down(
    sets: jwks.KeySets, issuer: FakeIssuer, answer: Callable[[], httpx.Response]
) -> None:
    await sets.verify(FORGE.token("es", NOW), NOW)
    issuer.now += jwks.COOLDOWN_S
    issuer.answer = answer
    for _ in range(3):
        await _refused(sets, FORGE.with_header("es", NOW, "kid", '"k"'))
    assert issuer.fetches == 2
    assert len(issuer.alarms) == 1
    assert await sets.verify(FORGE.token("es", NOW), NOW)


async def test_an_issuer_that_does_not_answer_costs_its_bound(
    sets: jwks.KeySets, issuer: FakeIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "FETCH_TIMEOUT_S", 0.05)
    issuer.delay_s = 30
    async with asyncio.timeout(issuer.delay_s / 2):
        assert await _refused(sets, FORGE.token("es", NOW)) is Reason.UNKNOWN_KEY
    assert issuer.alarms == [f"{ISS} TimeoutError"]


async def test_an_old_set_serves_for_a_day_and_then_fails_closed(
    sets: jwks.KeySets, issuer: FakeIssuer
) -> None:
    await sets.verify(FORGE.token("es", NOW), NOW)
    issuer.answer = _BAD_ANSWERS["500"]
    issuer.now += jwks.MAX_STALE_S
    assert await sets.verify(FORGE.token("es", NOW), NOW)
    issuer.now += 1
    assert await _refused(sets, FORGE.token("es", NOW)) is Reason.UNKNOWN_KEY
    issuer.answer = lambda: httpx.Response(200, json={"keys": [GOOD]})
    issuer.now += jwks.COOLDOWN_S
    assert await sets.verify(FORGE.token("es", NOW), NOW)


async def test_a_caller_that_goes_away_does_not_take_the_fetch_of_the_others_along(
    sets: jwks.KeySets, issuer: FakeIssuer
) -> None:
    issuer.delay_s = 0.02
    first, second = (
        asyncio.create_task(sets.verify(FORGE.token("es", NOW), NOW)) for _ in range(2)
    )
    await asyncio.sleep(0.005)
    first.cancel()
    issuer.now += jwks.COOLDOWN_S
    assert (await second).subject == "alice"


async def test_a_failed_regular_fetch_cools_down_too(
    sets: jwks.KeySets, issuer: FakeIssuer
) -> None:
    issuer.answer = _BAD_ANSWERS["500"]
    task = asyncio.create_task(sets.run())
    async with asyncio.timeout(5):
        while not issuer.alarms:  # noqa: ASYNC110 - counted by the other side
            await asyncio.sleep(0.005)
    await _refused(sets, FORGE.token("es", NOW))
    assert issuer.fetches == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_run_keeps_the_sets_fresh(
    sets: jwks.KeySets, issuer: FakeIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "REFRESH_S", 0.01)
    task = asyncio.create_task(sets.run())
    async with asyncio.timeout(5):
        while issuer.fetches < 3:  # noqa: ASYNC110 - counted by the other side
            await asyncio.sleep(0.005)
    issuer.answer = _BAD_ANSWERS["500"]  # a failure does not end it
    fetches = issuer.fetches
    async with asyncio.timeout(5):
        while issuer.fetches < fetches + 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await sets.verify(FORGE.token("es", NOW), NOW)


# ---- which keys are taken

_PASSED_OVER = {
    "for encryption": _jwk("k", FORGE.ec.public_key(), use="enc"),
    "for another algorithm": _jwk("k", FORGE.ec.public_key(), alg="ES384"),
    "of another type": _jwk("k", FORGE.rsa.public_key()),
    "a secret": {"kty": "oct", "kid": "k", "k": base64.b64encode(attacks.SECRET).decode()},
    "private": _jwk("k", FORGE.other_ec.public_key(), d="AAAA"),
    "with a bad id": _jwk("k\n", FORGE.ec.public_key()),
    "with a numeric id": {**GOOD, "kid": 1},
    "of another curve": {**GOOD, "kid": "k", "crv": "P-384"},
    "not on the curve": {**GOOD, "kid": "k", "x": attacks.b64(b"\x01" * 32)},
    "with junk in a number": {**GOOD, "kid": "k", "x": "é"},
    "with a number for a text": {**GOOD, "kid": "k", "x": 1},
    "with bad base64": {**GOOD, "kid": "k", "x": "A"},
    "without y": {name: value for name, value in {**GOOD, "kid": "k"}.items() if name != "y"},
}


@cases.each("entry", _PASSED_OVER.values(), ids=_PASSED_OVER.keys())
def test_a_key_not_for_us_is_passed_over(entry: dict[str, Any]) -> None:
    assert list(jwks.parse(json.dumps({"keys": [entry, GOOD]}).encode(), "ES256")) == ["key-es"]
    with pytest.raises(jwks.BadKeySet, match="no usable key"):
        jwks.parse(json.dumps({"keys": [entry]}).encode(), "ES256")


def test_rsa_keys_are_taken_by_the_same_rule_as_static_ones() -> None:
    small = rsa.generate_private_key(65537, 1024).public_key()  # noqa: S505 - that is the point
    entries = [
        _jwk("good", FORGE.rsa.public_key()),
        _jwk("small", small),
        _jwk("ec", FORGE.ec.public_key()),
    ]
    keys = jwks.parse(json.dumps({"keys": entries}).encode(), "RS256")
    assert {kid: [key.signature_chars for key in each] for kid, each in keys.items()} == {
        "good": [342]
    }
