"""The socket on which a service listens for clients."""

from __future__ import annotations

import socket
from typing import Final

from tailrace import settings

FLUSH_DEADLINE_MS: Final = 30_000
SEND_BUFFER_BYTES: Final = 256 * 1024


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, which does not listen yet.

    The service binds it before it starts anything else, so that a port that is taken is one line.

    Raises:
        settings.Misconfigured: nothing can listen there.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Every connection inherits it: one that was closed as slow still has bytes to flush,
            # and its peer may never take them.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, FLUSH_DEADLINE_MS)
        # Inherited too: else a loopback or local network buffers megabytes for a slow client before
        # the write deadline notices it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise settings.Misconfigured(
            f"TAILRACE_HOST, TAILRACE_PORT: cannot listen on {host}:{port}: {error.strerror}"
        ) from error
    return listener
