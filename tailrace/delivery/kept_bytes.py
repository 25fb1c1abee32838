"""How many bytes of its clients' requests a process keeps, by principal (pure).

Counted is what outlives the call that brought it, in the form in which it is kept: requests that
are being received, that wait on a socket or that run, and what sockets remember.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Self

from tailrace.protocol import errors

MOST: Final = 64 << 20  # bytes of one principal, where nothing else is said
RETRY_AFTER_S: Final = 1.0


class KeptBytes:
    """Counts, and refuses what is too much.

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
        """The bytes that are kept for a principal."""
        return self._by_principal[principal]

    def fits(self, principal: str, size: int) -> bool:
        """Whether `size` more bytes are within the bound."""
        return not self._most or self._by_principal[principal] + size <= self._most

    def take(self, principal: str, size: int) -> None:
        """Count `size` more bytes.

        Raises:
            errors.ApiError: 429, it is too much. Nothing is counted.
        """
        if not self.fits(principal, size):
            raise errors.too_much_memory(RETRY_AFTER_S)
        self._by_principal[principal] += size

    def give_back(self, principal: str, size: int) -> None:
        """These bytes are kept no more."""
        self._by_principal[principal] -= size
        if not self._by_principal[principal]:
            del self._by_principal[principal]

    def account(self, principal: str) -> Account:
        """What one connection or request of the principal keeps."""
        return Account(self, principal)


class Account:
    """A context manager whose end gives back everything that it took. What a task does with it
    afterwards, such as a submission that its connection did not wait for, counts nowhere."""

    __slots__ = ("_kept", "_principal", "size")

    def __init__(self, kept: KeptBytes, principal: str) -> None:
        self._kept = kept
        self._principal = principal
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back(self.size)
        self._kept = KeptBytes(0)

    def fits(self, size: int) -> bool:
        """Whether `take` would succeed."""
        return self._kept.fits(self._principal, size)

    def take(self, size: int) -> None:
        """Count `size` more bytes. Raises like `KeptBytes.take`."""
        self._kept.take(self._principal, size)
        self.size += size

    def give_back(self, size: int) -> None:
        """These bytes are kept no more."""
        self._kept.give_back(self._principal, size)
        self.size -= size
