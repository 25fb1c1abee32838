"""Forged credentials at the endpoints of a deployment (security: attacks 1 to 8)."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.attacks import raw, room
from tests.faults.stage import ROOT
from tests.support import attacks

PATH = "/v1/responses/resp_unknown"
# What a header cannot carry is refused by the server before any check of a credential in it;
# space around a value is no part of it.
UNSENDABLE = "\r\n\0"


def asked(port: int, credential: str, source: str) -> tuple[int, str]:
    """Status and error of a question with this credential."""
    with raw.connect(port, source=source) as tcp:
        headers = {"Authorization": f"Bearer {credential}", "Connection": "close"}
        tcp.sendall(raw.request("GET", PATH, headers))
        answer = raw.read(tcp)
    body = answer.partition(b"\r\n\r\n")[2]
    return raw.status(answer), json.dumps(json.loads(body)["error"]) if body else ""


def address(number: int) -> str:
    """An address of its own for each, so that no cap per address answers instead."""
    return f"127.0.{1 + number // 250}.{1 + number % 250}"


def sendable(credential: str) -> bool:
    carried = credential.isascii() and not any(c in credential for c in UNSENDABLE)
    return carried and credential == credential.strip()


def test_every_forged_credential_is_refused_and_told_the_same(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    forged = [
        each for each in attacks.corpus(deployment.forge, time.time()) if sendable(each.token)
    ]
    assert len(forged) > 200
    told: set[str] = set()
    with attack("forged credentials", "401 for each, one message for all of them"):
        for port in (deployment.gateway(1).port, deployment.push(1).port):
            for number, each in enumerate(forged):
                if each.reason == "not_yet_valid":
                    continue  # it becomes valid meanwhile; the next test has these
                status, error = asked(port, each.token, address(number))
                assert status == 401, (each.name, status, error)
                told.add(error)
    assert len(told) == 1, told


def test_a_good_credential_is_good_within_the_leeway_only(deployment: room.Deployment) -> None:
    forge, now = deployment.forge, time.time()

    def minted(iat: float, exp: float) -> str:
        claims = forge.claims("es", now)
        for name, value in (("iat", iat), ("exp", exp)):
            claims = attacks.replaced(claims, name, str(int(value)))
        return forge.token("es", now, claims=claims)

    shifts = {
        (0, 600): 404,  # of the response, so the credential was taken
        (20, 600): 404,
        (90, 600): 401,
        (3600, 4200): 401,
        (-600, -10): 404,
        (-600, -90): 401,
        (-4000, -3600): 401,
    }
    for port in (deployment.gateway(1).port, deployment.push(1).port):
        for number, ((iat, exp), status) in enumerate(shifts.items()):
            credential = minted(now + iat, now + exp)
            assert asked(port, credential, address(number))[0] == status, (iat, exp)


@contextmanager
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


def test_no_header_makes_a_service_call_anybody(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    forge, now = deployment.forge, time.time()
    with listener() as heard, attack("jku, x5u and jwk", "401, and no connection is made"):
        url = json.dumps(f"http://127.0.0.1:{heard.getsockname()[1]}/keys")
        for port in (deployment.gateway(1).port, deployment.push(1).port):
            for number, (name, value) in enumerate(
                [("jku", url), ("x5u", url), ("kid", url), ("jwk", "{}"), ("iss", url)]
            ):
                assert asked(port, forge.with_header("es", now, name, value), address(number)) == (
                    asked(port, "x.y.z", address(number))
                )
        with pytest.raises(BlockingIOError):
            heard.accept()


def test_huge_credentials_cost_nothing(deployment: room.Deployment, attack: room.Attacks) -> None:
    huge = [
        "a" * 8193,
        ".".join(["e" * 4000] * 3),
        attacks.b64(b'{"alg":"ES256","x":' + b"[" * 5000 + b"]" * 5000 + b"}") + ".e30.AA",
        ".".join(
            ["eyJhbGciOiJkaXIiLCJlbmMiOiJBMTI4R0NNIiwiemlwIjoiREVGIn0", "", "A", "A" * 8000, "A"]
        ),
    ]
    with attack("huge credentials", "401 or 431; memory flat"):
        for number in range(room.amount(2000, 60)):
            port = (deployment.gateway(1), deployment.push(1))[number % 2].port
            status, _ = asked_any(port, huge[number % len(huge)], address(number % 1000))
            assert status in (401, 431)


def asked_any(port: int, credential: str, source: str) -> tuple[int, bytes]:
    """Like `asked`, also where the server itself answers."""
    with raw.connect(port, source=source) as tcp:
        headers = {"Authorization": f"Bearer {credential}", "Connection": "close"}
        tcp.sendall(raw.request("GET", PATH, headers))
        answer = raw.read(tcp)
    return raw.status(answer), answer


@pytest.mark.parametrize(
    "secret",
    [b"x" * 31, b"x" * 40, b"", b"-----BEGIN PUBLIC KEY-----" * 2, b'{"kty":"oct","k":"AAAA"}' * 2],
    ids=["31 bytes", "equal bytes", "empty", "PEM", "JWK"],
)
@pytest.mark.parametrize("role", ["gateway", "push"])
def test_a_weak_secret_stops_the_start(
    deployment: room.Deployment, tmp_path: Path, role: str, secret: bytes
) -> None:
    issuer = {
        "iss": "https://weak.test",
        "audience": attacks.AUDIENCE,
        "algorithm": "HS256",
        "types": ["JWT"],
        "max_lifetime": 3600,
        "leeway": 0,
        "secrets": {"k": base64.b64encode(secret).decode()},
    }
    path = tmp_path / "issuers.json"
    path.write_text(json.dumps({"issuers": [issuer]}))
    done = subprocess.run(
        [sys.executable, "-m", role],
        env={**os.environ, **deployment.gateway(1).environ, "TAILRACE_ISSUERS": str(path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr[-2000:]
    assert len(done.stderr.strip().splitlines()) == 1
