"""uvicorn, as gateway and push run it."""

from __future__ import annotations

from typing import Any

import uvicorn

from tailrace import admin
from tailrace.web import uvicorn_protocol


def make(app: Any, host: str, port: int, *, ws_max_bytes: int, drain_s: float) -> admin.Server:
    """A server of `app`, to be run by `serve(sockets=[…])` and ended by `should_exit`.

    Messages are bounded and not compressed, and the shutdown takes at most `drain_s` seconds.
    """
    return admin.Server(
        uvicorn.Config(
            app,
            interface="asgi3",
            host=host,
            port=port,
            loop="uvloop",
            http="httptools",
            ws=uvicorn_protocol.chosen(),
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
