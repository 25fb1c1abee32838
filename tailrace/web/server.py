"""uvicorn, as gateway and push run it."""

from __future__ import annotations

import resource
from typing import Any, Final

import uvicorn

from tailrace import admin, settings
from tailrace.connections import caps, http_protocol, token_buckets, websocket_protocol

# Descriptors that do not belong to a client: the log, Redis, listeners, files.
OWN_DESCRIPTORS: Final = 256
FRAMES_BURST_S: Final = 1.0


def make(
    app: Any, config: settings.EdgeSettings, *, ws_max_bytes: int, drain_s: float
) -> admin.Server:
    """A server of `app`, to be run by `serve(sockets=[…])` and ended by `should_exit`.

    Connections, heads, frames and messages are bounded; messages are not compressed; and the
    shutdown takes at most `drain_s` seconds.
    """
    bounds = caps.Caps(
        min(config.limits.connections, max(1, _descriptors() - OWN_DESCRIPTORS)),
        config.limits.connections_per_address,
        caps.Proxies(config.trusted_proxies),
        _frames(config.limits.frames_rate),
    )
    return admin.Server(
        uvicorn.Config(
            app,
            interface="asgi3",
            host=config.host,
            port=config.port,
            loop="uvloop",
            http=http_protocol.over(bounds),
            ws=websocket_protocol.protocol_class(),
            ws_max_size=ws_max_bytes,
            ws_per_message_deflate=False,
            ws_ping_interval=20.0,
            ws_ping_timeout=20.0,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,  # the connection knows its client, by the setting
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, int(drain_s)),
        )
    )


def _descriptors() -> int:
    """The limit of open files of the process, after raising it to its maximum."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def _frames(rate: float) -> token_buckets.TokenBuckets | None:
    return token_buckets.TokenBuckets(rate, FRAMES_BURST_S * rate) if rate else None
