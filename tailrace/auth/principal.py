"""Who a caller is, and why a credential is refused."""

import enum
from dataclasses import dataclass
from typing import Final


class Reason(enum.StrEnum):
    """Why a credential was refused. For metrics only: a client gets one message for all causes."""

    MISSING = "missing"  # no credential was presented; said by tailrace.web.access
    MALFORMED = "malformed"
    HEADER = "header"
    ISSUER = "issuer"
    ALGORITHM = "algorithm"
    TYPE = "type"
    KEY_ID = "key_id"
    UNKNOWN_KEY = "unknown_key"
    AUDIENCE = "audience"
    CLAIMS = "claims"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    LIFETIME = "lifetime"
    SIGNATURE = "signature"
    INTERNAL = "internal"
    TICKET = "ticket"  # unknown, used or expired one-time ticket (tailrace.store.tickets)
    SESSION = "session"  # a cookie not made here (tailrace.web.session_cookie)
    TICKET_ORIGIN = "ticket_origin"  # the ticket was minted for another origin
    REVOKED = "revoked"
    OTHER_PRINCIPAL = "other_principal"  # shown on a socket that is open for another principal


class CredentialScope(enum.StrEnum):
    """What a credential may allow (docs/operations.md, Credentials)."""

    CREATE = "create"  # create, cancel and delete responses
    READ = "read"  # retrieve and follow responses
    ADMIN = "admin"  # revoke credentials


SCOPES: Final = frozenset(CredentialScope)
# Of an issuer whose credentials name none. `admin` is given only where it is named.
DEFAULT_SCOPES: Final = frozenset({CredentialScope.CREATE, CredentialScope.READ})


class InvalidCredential(Exception):
    """The credential is refused. With UNKNOWN_KEY, and with SIGNATURE where no key id chose the
    key, `issuer` names the configured issuer whose keys may be fetched again before one more try;
    otherwise it is None."""

    def __init__(self, reason: Reason, issuer: str | None = None) -> None:
        super().__init__(reason.value)
        self.reason: Final = reason
        self.issuer: Final = issuer


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller, as one credential names it.

    Attributes:
        scopes: what the caller may do, as values of `CredentialScope`.
        expires_at, issued_at: of the credential, in seconds since the epoch. One of unknown age
            counts as old, so that a revocation holds for it.
        credential: id of the credential (the claim `jti`), if it has one.
    """

    issuer: str
    subject: str
    tenant: str | None
    scopes: frozenset[str]
    expires_at: int
    issued_at: int = 0
    credential: str | None = None

    @property
    def key(self) -> str:
        """Stable text for maps and keys: `issuer|tenant|subject`. It is unambiguous, because issuer
        and tenant cannot contain `|`."""
        return f"{self.issuer}|{self.tenant or ''}|{self.subject}"
