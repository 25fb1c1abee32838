"""Bytes of its clients' requests that a process holds in memory, by principal (pure).

Data that outlives its call is counted, in the form in which it is held: requests that are being
received, that wait on a socket or that run, and the state of sockets.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Self

from tailrace.protocol import errors

MOST: Final = 64 << 20  # bytes of one principal, by default
RETRY_AFTER_S: Final = 1.0


class KeptBytes:
    """Counts bytes, and refuses more than the bound.

    Attributes:
        _by_principal: bytes by principal key; one without any has no entry.
    """

    def __init__(self, most: int = MOST) -> None:
        """`most`: bytes of one principal; 0: no bound."""
        self._most = most
        self._by_principal: Counter[str] = Counter()

    @property
    def most(self) -> int:
        """The bound for one principal; 0: none."""
        return self._most

    def of(self, principal: str) -> int:
        """The bytes that are held for a principal."""
        return self._by_principal[principal]

    def fits(self, principal: str, size: int) -> bool:
        """Whether `size` more bytes are within the bound."""
        return not self._most or self._by_principal[principal] + size <= self._most

    def reserve(self, principal: str, size: int) -> None:
        """Count `size` more bytes.

        Raises:
            errors.ApiError: 429, over the bound. Nothing is counted.
        """
        if not self.fits(principal, size):
            raise errors.too_much_memory(RETRY_AFTER_S)
        self._by_principal[principal] += size

    def release(self, principal: str, size: int) -> None:
        """These bytes are free again."""
        self._by_principal[principal] -= size
        if not self._by_principal[principal]:
            del self._by_principal[principal]

    def account(self, principal: str) -> Account:
        """The account of one connection or request of the principal."""
        return Account(self, principal)


class Account:
    """A context manager whose end releases all its bytes. What a task adds afterwards, such as a
    submission that its connection did not wait for, is not counted."""

    __slots__ = ("_kept", "_principal", "size")

    def __init__(self, kept: KeptBytes, principal: str) -> None:
        self._kept = kept
        self._principal = principal
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release(self.size)
        self._kept = KeptBytes(0)

    def fits(self, size: int) -> bool:
        """Whether `reserve` would succeed."""
        return self._kept.fits(self._principal, size)

    def reserve(self, size: int) -> None:
        """Count `size` more bytes. Raises like `KeptBytes.reserve`."""
        self._kept.reserve(self._principal, size)
        self.size += size

    def release(self, size: int) -> None:
        """These bytes are free again."""
        self._kept.release(self._principal, size)
        self.size -= size
