"""The Secrets that no operator creates: Redis users with fresh passwords, the key of the browsers'
sessions, the issuers' public keys, the record keys, and the URL of the archive's database.

    tailrace keys record-keys.json      # once; keep it
    python -m k8s.make_secrets --issuers issuers.json --record-keys record-keys.json \
        --archive archive-url.txt | kubectl apply -n tailrace -f -

Prints manifests and keeps nothing. Where secrets live in a repository, pipe the output through
`kubeseal` or `sops` instead of applying it. Running it again makes new passwords: roll Redis and
the three services afterwards.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tailrace.protocol import record_tags
from tailrace.settings import kinds

# Rights of each service in Redis: key patterns and exactly the commands that
# tailrace/store/ sends for it (docs/operations.md, Who may do what). Redis checks the same user's
# rights inside a script, so the commands of the scripts stand here too.
REDIS_USERS: Final[dict[str, str]] = {
    "gateway": "~session:* ~sessions:* ~ticket:* ~rate:* ~idem:* ~prefix:* ~workers:* ~running:*"
    " ~answer:* ~queue:* ~hedges:* ~breakers ~canaries +get +getex +getdel +set +del"
    " +exists +mget +hgetall +hdel +hset +hmget +pexpire +pttl +time +rpush +lpop +lindex +llen",
    "push": "~ticket:* ~queue:* +getdel +hmget",
    "worker": (
        "~prefix:* ~answer:* ~workers:* ~queue:* ~offers:* ~handover:* ~hedges:* "
        "+get +set +del +zadd +zcard +zpopmin +zrem +zremrangebyscore +pexpire +pttl +hset +hdel "
        "+hgetall +hlen +time"
    ),
}
# Every version from 6.2 on knows all of these. A server does not start with an unknown command:
# CLIENT SETINFO, which was added in 7.2, kept 7.0 from starting.
_COMMON = "+ping +hello +client|setname +eval"
STATE_PORT: Final = 6379  # evicts nothing
CACHE_PORT: Final = 6380  # evicts what was used longest ago
KEYS: Final[dict[str, tuple[str, ...]]] = {
    "redis-acl": ("users.acl",),
    **{f"redis-{user}": ("url", "cache_url") for user in REDIS_USERS},
    "issuers": ("issuers.json",),
    "session-key": ("key",),
    "record-keys": ("keys.json",),
    "archive": ("url",),
}


def users_acl(passwords: dict[str, str]) -> str:
    """Redis' ACL file: `default` is off, each service has a user, and the probe's user may only
    PING."""
    lines = ["user default off", "user probe on nopass resetkeys resetchannels -@all +ping"]
    lines += [
        f"user {user} on >{passwords[user]} resetkeys resetchannels -@all {_COMMON} {rights}"
        for user, rights in REDIS_USERS.items()
    ]
    return "\n".join(lines) + "\n"


def contents(
    issuers: str, record_keys: str, archive: str, password: Callable[[], str]
) -> dict[str, dict[str, str]]:
    """Secret name → key → value. `password` returns a new one at each call, safe inside a URL."""
    passwords = {user: password() for user in REDIS_USERS}

    def url(user: str, port: int) -> str:
        at = f"redis:{port}/0?ssl_ca_certs=/run/secrets/redis-ca/ca.crt"
        return f"rediss://{user}:{passwords[user]}@{at}"

    return {
        "redis-acl": {"users.acl": users_acl(passwords)},
        **{
            f"redis-{user}": {"url": url(user, STATE_PORT), "cache_url": url(user, CACHE_PORT)}
            for user in REDIS_USERS
        },
        "issuers": {"issuers.json": issuers},
        "session-key": {"key": password()},
        "record-keys": {"keys.json": record_keys},
        "archive": {"url": archive},
    }


def main() -> int:
    arguments = argparse.ArgumentParser(
        description="Print the Secrets that Tailrace needs and no operator makes."
    )
    arguments.add_argument(
        "--issuers",
        type=Path,
        required=True,
        help="JSON file of the issuers and their public keys (docs/operations.md)",
    )
    arguments.add_argument(
        "--record-keys",
        type=Path,
        required=True,
        help="key file of `tailrace keys`. Keep it: a log needs the keys that signed it",
    )
    arguments.add_argument(
        "--archive",
        type=Path,
        required=True,
        help="file with the URL of the archive's database, postgresql://user:password@host/name",
    )
    options = arguments.parse_args()
    issuers, record_keys = options.issuers.read_text(), options.record_keys.read_text()
    json.loads(issuers)  # a broken file stops here, not in every gateway
    record_tags.parse(record_keys.encode())
    archive = kinds.ARCHIVE.parse(options.archive.read_text().strip())
    docs = [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}
        for name, data in contents(
            issuers, record_keys, archive, lambda: secrets.token_urlsafe(32)
        ).items()
    ]
    json.dump({"apiVersion": "v1", "kind": "List", "items": docs}, sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
