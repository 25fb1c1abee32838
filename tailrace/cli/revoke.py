"""`tailrace revoke`: writes, lifts and lists revocations in the log itself, without a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tailrace import log
from tailrace.auth import revocation_list
from tailrace.auth.issuers import load_issuers
from tailrace.auth.keys import IssuersRefused
from tailrace.protocol import records, topics


def resolve_issuer(name: str, issuers_: Sequence[str]) -> str:
    """The issuer that is meant.

    Raises:
        ValueError: there are several, and none is named. The text is for the user.
    """
    if name:
        return name
    if len(issuers_) == 1:
        return issuers_[0]
    raise ValueError(
        f"name the issuer with --issuer: there are {', '.join(issuers_)}"
        if issuers_
        else "name the issuer with --issuer: no issuers file says which there are"
    )


def issuers(file: Path) -> list[str]:
    """The issuers that services with this issuers file accept; none without a good file."""
    try:
        return list(load_issuers(file).by_name)
    except IssuersRefused:
        return []


def seconds(text: str) -> float:
    """A span ("90s", "15m", "12h", "30d") in seconds; nothing is 0.

    Raises:
        ValueError: it is not a duration, or longer than a year. The text is for the user.
    """
    if not text:
        return 0.0
    match = re.fullmatch(r"(\d{1,9})([smhd])", text)
    value = int(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[match[2]] if match else 0
    if not 1 <= value <= revocation_list.MAX_AHEAD_S:
        raise ValueError(f"{text!r} is no span: give 90s, 15m, 12h or up to 365d")
    return float(value)


async def read(bootstrap: str) -> revocation_list.RevocationList:
    """What is revoked now. Raises log.LogUnavailable."""
    revocations, now = revocation_list.RevocationList(), time.time()
    asking, replays = log.Offsets(bootstrap), log.Replays(bootstrap, size=1)
    try:
        start = (await asking.beginnings(topics.REVOCATIONS, [0]))[0]
        end = (await asking.ends(topics.REVOCATIONS, [0]))[0]
        async for batch in replays.read(topics.REVOCATIONS, 0, start, end):
            for record in batch:
                revocation = records.revocation_of(record.key, record.value)
                if revocation is not None:
                    revocations.apply(revocation, now)
    finally:
        await asking.stop()
        await replays.stop()
    return revocations


async def append(bootstrap: str, revocations: Sequence[records.Revoked]) -> None:
    """Append records. Raises log.LogUnavailable."""
    writer = log.Writer(bootstrap, client_id="tailrace-revoke")
    running = asyncio.ensure_future(writer.run())
    try:
        for record in revocations:
            await writer.append(topics.REVOCATIONS, 0, record.id, records.encode(record))
    finally:
        await writer.stop()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def revoke(
    bootstrap: str,
    issuer: str,
    subject: str | None,
    tenant: str | None,
    credential: str | None,
    ahead_s: float,
    say: Callable[[str], None],
) -> None:
    """Append these revocations. Raises log.LogUnavailable."""
    until = revocation_list.issued_until(time.time(), ahead_s)
    record = records.Revoked(
        secrets.token_hex(8), issuer, until, subject=subject, tenant=tenant, credential=credential
    )
    asyncio.run(append(bootstrap, [record]))
    say(line(record))


def lift(
    bootstrap: str,
    issuer: str,
    subject: str | None,
    tenant: str | None,
    credential: str | None,
    say: Callable[[str], None],
) -> int:
    """Lift every revocation of exactly these targets; returns their number. Raises
    log.LogUnavailable."""

    async def lift_matches() -> list[records.Revoked]:
        targets = (issuer, subject, tenant, credential)
        matches = [
            each
            for each in await read(bootstrap)
            if (each.issuer, each.subject, each.tenant, each.credential) == targets
        ]
        await append(bootstrap, [msgspec.structs.replace(each, lifted=True) for each in matches])
        return matches

    revocations = asyncio.run(lift_matches())
    for record in revocations:
        say(f"lifted: {line(record)}")
    return len(revocations)


def line(record: records.Revoked) -> str:
    """One revocation, for a person."""
    targets = {
        "subject": record.subject,
        "tenant": record.tenant,
        "credential": record.credential,
    }
    target_text = ", ".join(
        f"{name} {value}" for name, value in targets.items() if value is not None
    )
    until = datetime.datetime.fromtimestamp(record.issued_until, datetime.UTC)
    return (
        f"{record.id}  {target_text} of {record.issuer}: credentials issued until "
        f"{until:%Y-%m-%d %H:%M:%S} UTC are refused"
    )
