"""Whole stacks as a user has them: `tailrace up`, then only public addresses.

`stack` runs the real engine (vLLM) where the engine environment exists, which is what `make
install` sets up; `scripted_stack` runs the scripted engine for faults and load, once per run. Each
is stopped by `tailrace down`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright import sync_api

from bench.browser import ARGUMENTS
from tailrace.local import ports
from tests.journey.chat_page import DESKTOP, RECORD, Chat, Opener
from tests.support import scheduling, waiting

ROOT = Path(__file__).resolve().parents[2]
TAILRACE = Path(sys.executable).with_name("tailrace")
UP_DEADLINE_S = 480.0
FOLLOWING = 4  # further instances take the next numbers
TEST_DEADLINE_S = 600  # the first test of a stack also waits for its start
MODEL = "smollm2-135m-instruct"
sync_api.expect.set_options(timeout=60_000)  # for what hangs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Journeys share slow stacks: their default deadline includes one start."""
    for item in items:
        if "journey" not in item.path.parts:
            continue
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_DEADLINE_S))
        if "stack" in getattr(item, "fixturenames", ()) and not _is_of_stack(item):
            raise pytest.UsageError(f"{item.nodeid} uses the stack: add it to scheduling.GROUPS")


def _is_of_stack(item: pytest.Item) -> bool:
    return "journey" in item.path.parts and scheduling.group(item.nodeid) == "real model"


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """On two cores, the other journeys miss what an idle model takes."""
    if _is_of_stack(item) and (nextitem is None or not _is_of_stack(nextitem)):
        REAL_MODEL.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With a failed journey go its stacks' processes and the last words of their workers:
    afterwards they are gone."""
    report = yield
    if report.when == "call" and report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Stack):
                report.sections.append((f"stack {value.data}", value.state()))
    return report


@dataclass(frozen=True)
class Stack:
    """A running deployment."""

    url: str
    push_url: str
    credential: str
    data: Path
    engine: str

    @property
    def api(self) -> str:
        """Base URL for the SDKs."""
        return f"{self.url}/v1"

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the default user."""
        return {"Authorization": f"Bearer {self.credential}"}

    def command(self, *args: str, timeout: float = 60.0) -> str:
        """Output of a `tailrace` command on this deployment."""
        done = subprocess.run(
            [TAILRACE, *args, "--data", self.data],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, (
            f"tailrace {' '.join(args)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
        return done.stdout

    def state(self) -> str:
        """Processes, and what workers wrote last."""
        listed = subprocess.run(
            [TAILRACE, "ps", "--data", self.data],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        ).stdout
        last = [
            f"{log.name}: {line[:300]}"
            for log in sorted(self.data.glob("logs/worker-*.log"))
            for line in log.read_text().splitlines()[-8:]
        ]
        return "\n".join([listed, *last])

    def token(self, subject: str) -> str:
        """A credential of another user."""
        return self.command("token", "--sub", subject).strip()

    def processes(self, role: str | None = None) -> list[dict[str, Any]]:
        """What `tailrace ps` knows."""
        rows = json.loads(self.command("ps", "--json"))
        found: list[dict[str, Any]] = rows["processes"] if isinstance(rows, dict) else rows
        return [row for row in found if role in (None, row["role"])]

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to one process by its name; returns its pid."""
        pid = next(row["pid"] for row in self.processes() if row["name"] == name)
        os.kill(pid, number)
        return int(pid)


def start(data: Path, *args: str, engine: str) -> Stack:
    """`tailrace up --detach`, ready."""
    port = ports.free_port(following=FOLLOWING)
    push_port = ports.free_port(
        set(range(port - FOLLOWING, port + FOLLOWING + 1)), following=FOLLOWING
    )
    command = [
        str(TAILRACE),
        "up",
        "--detach",
        "--engine",
        engine,
        "--data",
        str(data),
        "--port",
        str(port),
        "--push-port",
        str(push_port),
        *args,
    ]
    log = data.parent / f"{data.name}.up.log"
    try:
        with log.open("w") as out:
            done = subprocess.run(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=UP_DEADLINE_S,
                check=False,
                stdin=subprocess.DEVNULL,
                env=environment(engine),
            )
        assert done.returncode == 0, log.read_text()[-4000:]
    except BaseException:
        subprocess.run(
            [TAILRACE, "down", "--data", data], capture_output=True, timeout=90, check=False
        )
        raise
    credential = subprocess.run(
        [TAILRACE, "token", "--data", data], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()
    return Stack(
        f"http://127.0.0.1:{port}", f"http://127.0.0.1:{push_port}", credential, data, engine
    )


def environment(engine: str) -> dict[str, str]:
    """What `tailrace up` is given. The scripted engine makes no titles. Tests kill its workers, so
    the group notices a dead one after 5 s in place of 10."""
    if engine != "scripted":
        return {**os.environ, "TAILRACE_PAGE_TITLES": "1"}
    return {**os.environ, "TAILRACE_PAGE_TITLES": "0", "TAILRACE_SESSION_TIMEOUT_MS": "5000"}


def stop(stack: Stack) -> None:
    """`tailrace down`."""
    subprocess.run(
        [TAILRACE, "down", "--data", stack.data],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )


@contextlib.contextmanager
def running(folder: Path, *options: str, engine: str) -> Iterator[Stack]:
    """What `make up` starts with these options.

    A fixture ends it with the last test that uses it: on two cores, the others miss what an idle
    deployment takes.
    """
    if engine == "vllm" and not (ROOT / ".venv-engine" / "bin" / "python").exists():
        pytest.skip("the engine environment is not installed (make install)")
    started = start(folder / "data", *options, engine=engine)
    try:
        yield started
    finally:
        stop(started)


# What ends the stack of the fixture `stack`.
REAL_MODEL = contextlib.ExitStack()


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """The product as `make up` starts it, with the real model. It ends with the last test that uses
    it."""
    return REAL_MODEL.enter_context(running(tmp_path_factory.mktemp("stack"), engine="vllm"))


@pytest.fixture(scope="package")
def scripted_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two workers, two gateways and two pushes on the scripted engine, whose tokens describe
    themselves."""
    two = ("--workers", "2", "--gateways", "2", "--pushes", "2")
    with running(tmp_path_factory.mktemp("scripted"), *two, engine="scripted") as started:
        yield started


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[sync_api.Browser]:
    if not (ROOT / "frontend" / "dist" / "index.html").exists():
        pytest.skip("the page is not built (make install)")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def tabs(browser: sync_api.Browser) -> Iterator[Callable[..., Opener]]:
    """A browser profile on a stack: each call of what it returns opens one more tab of the same
    profile."""
    contexts: list[sync_api.BrowserContext] = []
    known: set[Path] = set()

    def profile(stack: Stack, **options: Any) -> Opener:
        if stack.data not in known:
            forget_chats(stack)
            known.add(stack.data)
        context = browser.new_context(**(options or DESKTOP))
        context.add_init_script(RECORD)
        context.set_default_timeout(30_000)
        contexts.append(context)
        return lambda: Chat(context.new_page(), stack)

    yield profile
    for context in contexts:
        context.close()


def forget_chats(stack: Stack) -> None:
    """Delete the chats that tests before this one left with the default user."""
    with httpx.Client(base_url=stack.api, headers=stack.headers, timeout=30.0) as client:
        # An archive that has just begun has nothing, and may say so with an error.
        for each in client.get("conversations", params={"limit": 100}).json().get("data", []):
            client.delete(f"conversations/{each['id']}")


@pytest.fixture
def chat(tabs: Callable[..., Opener], scripted_stack: Stack) -> Chat:
    return tabs(scripted_stack)().open()


def wait_for(condition: Any, what: str, deadline_s: float = 60.0) -> Any:
    """The first true value of `condition()`."""
    return waiting.eventually_blocking(condition, what, within_s=deadline_s, every_s=0.1)


@pytest.fixture
def api(stack: Stack) -> Iterator[httpx.Client]:
    """Plain HTTP on the real stack."""
    with httpx.Client(base_url=stack.url, headers=stack.headers, timeout=60.0) as client:
        yield client
