"""How gateway and push run as a process: settings, log lines, event loop, exit code."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol, TypeVar

import uvloop

from tailrace import log, settings, telemetry
from tailrace.auth.keys import IssuersRefused
from tailrace.protocol import record_tags

S = TypeVar("S", bound=settings.EdgeSettings)


# Push writes nothing.
_WRITES_AS: Final[Mapping[str, record_tags.Role]] = {"gateway": "gateway"}


class Part(Protocol):
    """A part of a process with work of its own."""

    async def run(self) -> None:
        """Work until cancelled."""


def run(role: str, read: Callable[[], S], serve: Callable[[S], Coroutine[Any, Any, None]]) -> int:
    """Run a service until it has drained.

    Returns the exit code: 0 after a drain, 2 for a wrong setting, which is one line on stderr.
    """
    try:
        config = read()
        telemetry.setup(role, config.name, config.otlp_endpoint)
        log.fold_complaints()
        log.use_public_api(bool(config.kafka_public_api))
        log.use_record_keys(config.record_keys, _WRITES_AS.get(role))
        uvloop.run(serve(config))
    except settings.Misconfigured as error:
        sys.stderr.write(f"{role}: {error}\n")
        return 2
    except IssuersRefused as error:
        sys.stderr.write(f"{role}: TAILRACE_ISSUERS: {error}\n")
        return 2
    return 0


async def layout(bootstrap: str) -> log.Layout:
    """Which log this is, and how many partitions it has. Logs each reason to wait for it."""

    def waiting(reason: str) -> None:
        telemetry.log(telemetry.Action.WAITING, reason=reason)

    return await log.wait_for_layout(lambda: log.layout(bootstrap), waiting)


def on_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Two events: SIGTERM or SIGINT sets the first, which starts the drain; a second signal sets
    the other one, which ends it."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop, hurry
