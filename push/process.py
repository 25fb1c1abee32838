"""How a delivering service runs as a process: settings, lines, loop, and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from push import settings
from tailrace import telemetry
from tailrace.auth import credentials

S = TypeVar("S", bound=settings.Settings)


def run(role: str, read: Callable[[], S], serve: Callable[[S], Coroutine[Any, Any, None]]) -> int:
    """Exit code: 0 after a drain, 2 for a misconfiguration."""
    try:
        config = read()
        telemetry.setup(role, config.name)
        uvloop.run(serve(config))
    except (settings.Misconfigured, credentials.IssuersRefused) as e:
        sys.stderr.write(f"{role}: {e}\n")
        return 2
    return 0
