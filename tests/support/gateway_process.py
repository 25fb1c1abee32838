"""A real gateway process and a real worker process (scripted engine) on a given Kafka and Redis."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tailrace import log
from tailrace.local import dev_credentials, ports
from tailrace.protocol import ids, records, topics
from tests.support import waiting

ISS, AUDIENCE, KID = "https://test.invalid/gateway", "tailrace", "k1"
MODEL = "scripted"
START_DEADLINE_S = 300.0  # two seconds on an idle machine
ORIGIN = "http://page.test"
AWAY = "The log cannot be written right now."
# Services that this process has started, for the report of a failed test.
STARTED: weakref.WeakSet[Process] = weakref.WeakSet()


class Patient(httpx.AsyncHTTPTransport):
    """Repeats a request that was refused because the log cannot be written, as the SDKs do. Nothing
    was appended then. A broker on a busy machine may take longer than a gateway waits. Each time is
    a warning, which the summary of the run shows."""

    TRIES = 5

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        for tried in range(self.TRIES):
            answer = await super().handle_async_request(request)
            if answer.status_code != 503:
                break
            if AWAY.encode() not in await answer.aread():
                break
            warnings.warn(f"{AWAY} {request.method} {request.url.path}, try {tried}", stacklevel=1)
            await asyncio.sleep(1.0)
        return answer


@dataclass
class Keys:
    """An issuer of the test's own."""

    folder: Path
    private: str = field(repr=False)

    @classmethod
    def make(cls, folder: Path, leeway_s: int = 0) -> Keys:
        private, public = dev_credentials.generate_key()
        issuer = {
            "iss": ISS,
            "audience": AUDIENCE,
            "algorithm": "ES256",
            "types": ["JWT"],
            "max_lifetime": 86400,
            "leeway": leeway_s,
            "keys": {KID: public},
        }
        (folder / "issuers.json").write_text(json.dumps({"issuers": [issuer]}))
        return cls(folder, private)

    @property
    def issuers(self) -> Path:
        return self.folder / "issuers.json"

    def token(
        self,
        subject: str = "alice",
        ttl: int = 3600,
        age_s: float = 0.0,
        scopes: Sequence[str] = (),
        tenant: str | None = None,
        credential: str | None = None,
    ) -> str:
        """A credential for `ttl` seconds, minted `age_s` seconds ago."""
        minted = time.time() - age_s
        return dev_credentials.mint(
            self.private,
            KID,
            ISS,
            AUDIENCE,
            subject,
            minted,
            ttl,
            tenant=tenant,
            scopes=scopes,
            credential=credential,
        )


@dataclass(eq=False)
class Process:
    """One service. `kill` and `stop` are idempotent."""

    name: str
    child: subprocess.Popen[bytes]
    log: Path

    def __post_init__(self) -> None:
        STARTED.add(self)

    def stop(self, deadline_s: float = 20.0) -> int:
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        try:
            return self.child.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            raise AssertionError(f"{self.name} did not stop:\n{self.tail()}") from None

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def tail(self, lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


@dataclass(eq=False)
class Listening(Process):
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self, deadline_s: float = START_DEADLINE_S) -> None:
        def ready() -> bool:
            assert self.child.poll() is None, f"{self.name} ended:\n{self.tail()}"
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"{self.url}/ready", timeout=2.0).status_code == 200
            return False

        waiting.eventually_blocking(
            ready, lambda: f"{self.name} is ready:\n{self.tail()}", within_s=deadline_s
        )


@dataclass(eq=False)
class Gateway(Listening):
    keys: Keys

    @property
    def api(self) -> str:
        return f"{self.url}/v1"

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/responses"

    def headers(
        self, subject: str = "alice", ttl: int = 3600, age_s: float = 0.0
    ) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys.token(subject, ttl, age_s)}"}

    def client(
        self, subject: str = "alice", scopes: Sequence[str] = (), *, patient: bool = True
    ) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.keys.token(subject, scopes=scopes)}"}
        transport = Patient() if patient else None
        return httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=30.0, transport=transport
        )


def _environment(kafka: str, redis: str, pool: str, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TAILRACE_", "OTEL_"))}
    pools = json.dumps({pool: {"models": [MODEL], "max_model_len": 4096}})
    return {
        **kept,
        "TAILRACE_KAFKA": kafka,
        "TAILRACE_REDIS": redis,
        "TAILRACE_POOLS": pools,
        **more,
    }


def _start(module: str, log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", module],
            env=dict(env),
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
        )


@contextlib.contextmanager
def gateway(
    folder: Path,
    kafka: str,
    redis: str,
    pool: str,
    keys: Keys,
    name: str = "gateway-1",
    **more: str,
) -> Iterator[Gateway]:
    """A ready gateway; stopped at the end."""
    port = int(more.pop("TAILRACE_PORT", 0)) or ports.free_port()
    settings = {
        "TAILRACE_PORT": str(port),
        "TAILRACE_NAME": name,
        "TAILRACE_ISSUERS": str(keys.issuers),
        "TAILRACE_ORIGINS": ORIGIN,
        "TAILRACE_ACCEPT_MS": "0",
        "TAILRACE_DRAIN_S": "1",
        "TAILRACE_RECORDS_VERSION": "2",
        **more,
    }
    log = folder / f"{name}.log"
    started = Gateway(
        name, _start("gateway", log, _environment(kafka, redis, pool, **settings)), log, port, keys
    )
    try:
        started.wait_ready()
        yield started
    finally:
        if started.child.poll() is None:
            started.stop()


@contextlib.contextmanager
def push(
    folder: Path, kafka: str, redis: str, pool: str, keys: Keys, name: str = "push-1", **more: str
) -> Iterator[Listening]:
    """A ready push service; stopped at the end."""
    port = ports.free_port()
    settings = {
        "TAILRACE_PORT": str(port),
        "TAILRACE_ISSUERS": str(keys.issuers),
        "TAILRACE_ORIGINS": ORIGIN,
        **more,
    }
    log = folder / f"{name}.log"
    started = Listening(
        name, _start("push", log, _environment(kafka, redis, pool, **settings)), log, port
    )
    try:
        started.wait_ready()
        yield started
    finally:
        if started.child.poll() is None:
            started.stop()


@contextlib.contextmanager
def worker(
    folder: Path, kafka: str, redis: str, pool: str, name: str = "worker-1", **more: str
) -> Iterator[Process]:
    """A worker on the scripted engine; it need not be ready, a question waits in the log."""
    settings = {
        "TAILRACE_NAME": name,
        "TAILRACE_POOL": pool,
        "TAILRACE_ENGINE": "scripted",
        "TAILRACE_MODEL_NAME": MODEL,
        "TAILRACE_SESSION_TIMEOUT_MS": "6000",
        **more,
    }
    log = folder / f"{name}.log"
    started = Process(
        name, _start("worker", log, _environment(kafka, redis, pool, **settings)), log
    )
    try:
        yield started
    finally:
        if started.child.poll() is None:
            started.stop()


@contextlib.contextmanager
def archive(folder: Path, kafka: str, url: str) -> Iterator[Process]:
    """The archive's process; it need not be ready."""
    environ = _environment(kafka, "", "", TAILRACE_ARCHIVE=url)
    started = Process(
        "archive",
        _start("tailrace.archiver", folder / "archive.log", environ),
        folder / "archive.log",
    )
    try:
        yield started
    finally:
        if started.child.poll() is None:
            started.stop()


def cues(tokens: int = 20, pace_ms: int = 5, **more: Any) -> dict[str, str]:
    """Metadata the scripted engine obeys."""
    return {
        "script_tokens": str(tokens),
        "script_pace_ms": str(pace_ms),
        **{f"script_{k}": str(v) for k, v in more.items()},
    }


async def cancelled(kafka: str, rid: str) -> None:
    """Wait until a CANCEL of the response is in the log."""
    address = ids.parse(rid)
    offsets, replays = log.Offsets(kafka), log.Replays(kafka, size=1)

    async def found() -> bool:
        end = (await offsets.ends(topics.TOKENS, [address.partition]))[address.partition]
        async for batch in replays.read(topics.TOKENS, address.partition, address.offset, end):
            for record in batch:
                if record.key == rid.encode() and isinstance(
                    records.decode_token(record.value), records.Cancel
                ):
                    return True
        return False

    try:
        await waiting.eventually(found, f"a CANCEL of {rid} in the log")
    finally:
        await offsets.stop()
        await replays.stop()
