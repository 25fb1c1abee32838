"""Development credentials: what is minted is what a service accepts."""

import json
from pathlib import Path

import pytest

from tailrace.auth.issuers import load_issuers
from tailrace.auth.principal import Principal
from tailrace.auth.verification import verify
from tailrace.local import dev_credentials
from tests.support import cases

NOW = 1_900_000_000.0


def test_an_issued_development_credential_verifies(tmp_path: Path) -> None:
    private, public = dev_credentials.generate_key()
    issuer = {
        "iss": "https://tailrace.local/dev",
        "audience": "tailrace",
        "algorithm": "ES256",
        "types": ["JWT"],
    }
    path = tmp_path / "issuers.json"
    listed = {**issuer, "max_lifetime": 86400, "leeway": 30, "keys": {"dev-1": public}}
    path.write_text(json.dumps({"issuers": [listed]}))
    issuers = load_issuers(path)
    token = dev_credentials.mint(
        private,
        "dev-1",
        "https://tailrace.local/dev",
        "tailrace",
        "me",
        NOW,
        3600,
        "acme",
        ["read", "write"],
        "c1",
    )
    assert verify(token, issuers, NOW) == Principal(
        "https://tailrace.local/dev",
        "me",
        "acme",
        frozenset({"read"}),
        int(NOW) + 3600,
        int(NOW),
        "c1",
    )
    plain = dev_credentials.mint(
        private, "dev-1", "https://tailrace.local/dev", "tailrace", "me", NOW, 1
    )
    assert verify(plain, issuers, NOW).tenant is None


@cases.each("ttl", [0, -1, 86401])
def test_a_lifetime_that_no_verifier_takes_is_not_issued(ttl: int) -> None:
    private, _ = dev_credentials.generate_key()
    with pytest.raises(ValueError, match="ttl"):
        dev_credentials.mint(private, "dev-1", "https://i", "tailrace", "me", NOW, ttl)
