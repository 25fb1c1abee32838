"""Which credentials are refused: the fold of `llm.revocations`, without I/O and without a clock."""

from collections.abc import Iterator
from typing import Final

from tailrace.auth.issuers import MAX_LEEWAY_S, MAX_LIFETIME_S
from tailrace.auth.principal import Principal
from tailrace.protocol import records

# No credential that was issued at T is accepted later than T + LONGEST_S.
LONGEST_S: Final = MAX_LIFETIME_S + MAX_LEEWAY_S
MAX_AHEAD_S: Final = 365 * 86_400

# (issuer, subject, tenant, credential); None matches every value.
Target = tuple[str, str | None, str | None, str | None]


def issued_until(now: float, ahead_s: float = 0.0) -> int:
    """The time of a revocation that is made now and reaches `ahead_s` seconds ahead.

    The issuer's clock may run ahead of ours by the leeway, so a revocation always reaches that far.
    """
    return int(now + max(ahead_s, MAX_LEEWAY_S))


def expires_at(record: records.Revoked) -> int:
    """When the last credential that the record names has expired (seconds since the epoch)."""
    return record.issued_until + LONGEST_S


class RevocationList:
    """The revocations that mean something.

    Its size is that of the revocations made within the last day, and of those that reach further.

    Attributes:
        _by_target: records by what they name, and then by id.
        _targets: what each record names, by id.
    """

    def __init__(self) -> None:
        self._by_target: dict[Target, dict[str, records.Revoked]] = {}
        self._targets: dict[str, Target] = {}

    def __len__(self) -> int:
        return len(self._targets)

    def __iter__(self) -> Iterator[records.Revoked]:
        return (self._by_target[target][id] for id, target in self._targets.items())

    def get(self, id: str) -> records.Revoked | None:
        """The record of this id, unless it was lifted or is over."""
        target = self._targets.get(id)
        return None if target is None else self._by_target[target][id]

    def apply(self, record: records.Revoked, now: float) -> bool:
        """Take one record, in the order of the log. Whether more is refused than before."""
        self._drop(record.id)
        if record.lifted or expires_at(record) <= now:
            return False
        target = (record.issuer, record.subject, record.tenant, record.credential)
        self._targets[record.id] = target
        self._by_target.setdefault(target, {})[record.id] = record
        return True

    def refuses(self, principal: Principal) -> bool:
        """Whether the principal's credential was revoked."""
        if not self._by_target:
            return False
        return any(
            principal.issued_at <= record.issued_until
            for target in _targets(principal)
            if target in self._by_target
            for record in self._by_target[target].values()
        )

    def forget(self, now: float) -> None:
        """Drop the records whose credentials have all expired."""
        for record in [each for each in self if expires_at(each) <= now]:
            self._drop(record.id)

    def _drop(self, id: str) -> None:
        target = self._targets.pop(id, None)
        if target is not None:
            entries = self._by_target[target]
            del entries[id]
            if not entries:
                del self._by_target[target]


def _targets(principal: Principal) -> Iterator[Target]:
    """Everything that a record which concerns this principal can name."""
    for subject in (principal.subject, None):
        for tenant in {principal.tenant, None}:
            for credential in {principal.credential, None}:
                yield principal.issuer, subject, tenant, credential
