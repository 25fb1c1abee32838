"""How many connections one client address, and all of them together, may hold open, how much of
its incomplete data holds in memory, and how fast its frames are read.

Behind a proxy every connection has the proxy's address. A proxy whose network is configured is
believed about its clients: the charged address is the last one of `X-Forwarded-For` that is not
such a proxy. No other address is believed.
"""

from __future__ import annotations

import functools
import ipaddress
from collections import Counter
from collections.abc import Iterable
from typing import Final

from tailrace.connections import token_buckets

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

UNKNOWN: Final = "unknown"
# Of heads, bodies and messages that are not complete, and of what waits to be parsed. A room full
# of people who send their longest prompts at once stays below it.
KEPT_BYTES_PER_ADDRESS: Final = 12 * 1024 * 1024
# What one customer of a provider gets at least: a cap for each address would be none.
IPV6_PREFIX: Final = 64


class Proxies:
    """The networks of trusted proxies."""

    def __init__(self, networks: Iterable[Network] = ()) -> None:
        self._networks = tuple(networks)

    def trusts(self, address: str) -> bool:
        """Whether this is the address of a trusted proxy."""
        if not self._networks or (ip := _parse(address)) is None:
            return False
        return any(ip in network for network in self._networks)

    def client_of(self, peer: str, header_values: Iterable[bytes]) -> str:
        """The address that a request came from.

        Args:
            peer: of the connection; a trusted proxy.
            header_values: values of the `X-Forwarded-For` headers, in order.
        """
        hops = b",".join(header_values).decode("latin-1").split(",")
        for hop in reversed(hops):
            address = hop.strip()
            if _parse(address) is None:
                return peer  # nothing that a proxy writes: what stands before it is not believed
            if not self.trusts(address):
                return address
        return peer


@functools.lru_cache(maxsize=1024)  # an address is parsed once, not for each connection of it
def address_key(address: str) -> str:
    """What an address is counted as: itself, or its network for IPv6."""
    ip = _parse(address)
    if ip is None:
        return UNKNOWN
    if ip.version == 4:
        return str(ip)
    ipv4 = ip.ipv4_mapped
    if ipv4 is not None:
        return str(ipv4)
    return str(ipaddress.ip_network((ip, IPV6_PREFIX), strict=False))


def _parse(address: str) -> Address | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


class Caps:
    """Counts open connections.

    Attributes:
        open: how many there are.
        by_address: how many of them are charged to a key; no zeros.
        kept: bytes that are held for a key; no zeros.
    """

    def __init__(
        self,
        total: int,
        per_address: int,
        proxies: Proxies | None = None,
        frames: token_buckets.TokenBuckets | None = None,
    ) -> None:
        """`frames`: of the WebSockets of each key; None: no bound."""
        self._total = total
        self._per_address = per_address
        self.proxies = proxies or Proxies()
        self.frames = frames
        self.open = 0
        self.by_address: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()

    def full(self) -> bool:
        """Whether no connection may be added."""
        return self.open >= self._total

    def charge(self, key: str) -> bool:
        """Count one connection of this key. Returns whether there was room."""
        if self.by_address.get(key, 0) >= self._per_address:
            return False
        self.by_address[key] += 1
        return True

    def release(self, key: str) -> None:
        """One connection of this key less."""
        self.by_address[key] -= 1
        if self.by_address[key] <= 0:
            del self.by_address[key]

    def keep(self, key: str, more: int) -> bool:
        """Count `more` bytes that are kept for this key; fewer when negative. Returns whether there
        was room; if not, nothing is counted."""
        total = self.kept.get(key, 0) + more
        if more > 0 and total > KEPT_BYTES_PER_ADDRESS:
            return False
        if total > 0:
            self.kept[key] = total
        else:
            self.kept.pop(key, None)
        return True


class Place:
    """The place of one connection: what is counted for it, so that all of it can be given back.

    Attributes:
        key: the address that the connection is charged to; None while it is charged to none.
        kept: bytes that are counted for this connection.
    """

    __slots__ = ("_caps", "kept", "key")

    def __init__(self, bounds: Caps) -> None:
        self._caps = bounds
        self.key: str | None = None
        self.kept = 0
        bounds.open += 1

    def charge(self, address: str) -> bool:
        """Charge this address instead of any other. Returns whether there was room."""
        key = address_key(address)
        if key == self.key:
            return True
        self.discharge()
        if not self._caps.charge(key):
            return False
        self.key = key
        return True

    def keep(self, size: int) -> bool:
        """Count this many bytes, instead of those before. Returns whether there was room."""
        if size == self.kept:
            return True
        if self.key is not None and not self._caps.keep(self.key, size - self.kept):
            return False
        self.kept = size
        return True

    def spend(self, frames: int, now: float) -> None:
        """Charge frames that were read."""
        if self._caps.frames is not None and self.key is not None:
            self._caps.frames.spend(self.key, now, frames)

    def wait_s(self, now: float) -> float:
        """The seconds until a frame may be read: 0, or with a place in the order of those of this
        address that wait, which is charged as a frame."""
        frames, key = self._caps.frames, self.key
        if frames is None or key is None or not frames.wait_s(key, now, 0.0):
            return 0.0
        return frames.spend(key, now)

    def discharge(self) -> None:
        """End the charge."""
        self.keep(0)
        if self.key is not None:
            self._caps.release(self.key)
            self.key = None

    def leave(self) -> None:
        """The connection is over. Call it once."""
        self.discharge()
        self._caps.open -= 1
