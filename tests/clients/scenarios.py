"""What every Python client's script shares: run scenarios, say what was seen (standard library).

Scripts run in environments that hold the client and nothing of Tailrace. A line of JSON on the
standard output is for the harness (`tests/clients/__main__.py`):

    {"scenario": NAME, "ok": BOOL, "saw": TEXT}
    {"kill": "worker"}      every worker is killed now; the supervisor starts them again
    {"restart": "gateway"}  it is killed; done when another one is ready
    {"empty": "redis"}      all that Redis holds is removed
    {"version": TEXT}       of a client that the machine has: it is in no lock

After a restart and an empty store the harness adds a line to the file TAILRACE_CLIENT_DONE.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pathlib
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

BASE = os.environ["TAILRACE_CLIENT_BASE"]  # ends in /v1
KEY = os.environ["TAILRACE_CLIENT_KEY"]
MODEL = os.environ["TAILRACE_CLIENT_MODEL"]
DONE = pathlib.Path(os.environ["TAILRACE_CLIENT_DONE"])

WEATHER = 'call get_weather {"city": "Paris"}'
LONG_CALL = "call get_weather 150"  # so many tokens, about two seconds

_all: list[Callable[[], Any]] = []


def scenario(function: Callable[[], Any]) -> Callable[[], Any]:
    """Its name, with spaces, is the scenario's; what it returns is shown."""
    _all.append(function)
    return function


def kill_worker() -> None:
    _say({"kill": "worker"})


def restart_gateway() -> None:
    _ask({"restart": "gateway"})


def empty_redis() -> None:
    _ask({"empty": "redis"})


def version(text: str) -> None:
    _say({"version": text})


def check(condition: object, *seen: object) -> None:
    """`assert` with everything that was seen."""
    if not condition:
        raise AssertionError(" | ".join(map(repr, seen)) or "not so")


def main() -> None:
    """Run the scenarios (those named as arguments); exit code 1 if one failed."""
    failed = 0
    for function in _all:
        name = function.__name__.replace("_", " ")
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        try:
            seen = function()
            if inspect.isawaitable(seen):
                seen = asyncio.run(_awaited(seen))
            _say({"scenario": name, "ok": True, "saw": str(seen)[:300]})
        except Exception as error:
            failed += 1
            traceback.print_exc()
            _say({"scenario": name, "ok": False, "saw": f"{type(error).__name__}: {error}"[:2000]})
    sys.exit(bool(failed))


async def _awaited(seen: Any) -> Any:
    return await seen


def _ask(line: dict[str, Any]) -> None:
    """Say it, and wait until the harness has done it."""
    before = _done()
    _say(line)
    until = time.monotonic() + 60
    while _done() == before:
        check(time.monotonic() < until, line, "was not done")
        time.sleep(0.05)


def _done() -> int:
    return len(DONE.read_text().splitlines()) if DONE.exists() else 0


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)
