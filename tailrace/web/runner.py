"""How a delivering service runs as a process: settings, lines, loop, and an exit code."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvicorn
import uvloop

from tailrace import log, settings, telemetry
from tailrace.auth.keys import IssuersRefused
from tailrace.web import uvicorn_protocol

FLUSH_DEADLINE_MS = 30_000
SEND_BUFFER_BYTES = 256 * 1024

S = TypeVar("S", bound=settings.EdgeSettings)


def run(role: str, read: Callable[[], S], serve: Callable[[S], Coroutine[Any, Any, None]]) -> int:
    """Exit code: 0 after a drain, 2 for a misconfiguration."""
    try:
        config = read()
        telemetry.setup(role, config.name)
        log.fold_complaints()
        log.use_public_api(bool(config.kafka_public_api))
        uvloop.run(serve(config))
    except settings.Misconfigured as error:
        sys.stderr.write(f"{role}: {error}\n")
        return 2
    except IssuersRefused as error:
        sys.stderr.write(f"{role}: TAILRACE_ISSUERS: {error}\n")
        return 2
    return 0


class Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the composition root owns the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """No handlers."""
        yield


def server(app: Any, host: str, port: int, ws_max_bytes: int, drain_s: float) -> Server:
    """uvicorn as this project runs it: no deflate, small messages, bounded shutdown."""
    return Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            loop="uvloop",
            http="httptools",
            ws=uvicorn_protocol.Protocol,
            ws_max_size=ws_max_bytes,
            ws_per_message_deflate=False,
            ws_ping_interval=20.0,
            ws_ping_timeout=20.0,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, int(drain_s)),
        )
    )


def bind(host: str, port: int) -> socket.socket:
    """Here and not in the server, so that a port that is taken is said at once and by name; nobody
    is let in before the server listens."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Inherited by every connection: one that was given up as slow still has bytes to flush,
            # and its peer may never take them.
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, FLUSH_DEADLINE_MS)
        # Inherited too: else a loopback or local network buffers megabytes per slow client before
        # anyone notices it.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise settings.Misconfigured(
            f"TAILRACE_HOST, TAILRACE_PORT: cannot listen on {host}:{port}: {error.strerror}"
        ) from error
    return bound


async def layout(bootstrap: str) -> log.Layout:
    """Which log this is. Logs each reason to wait for it."""

    def waiting(reason: str) -> None:
        telemetry.log(telemetry.Action.WAITING, reason=reason)

    return await log.wait_for_layout(lambda: log.layout(bootstrap), waiting)
