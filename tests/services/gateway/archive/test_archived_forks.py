"""Forks of responses that only the archive has are those of live ones."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from tests.services.gateway.test_forks import WORD
from tests.services.gateway.test_tools import (
    SHELL,
    WEATHER,
    over_http,
    text_of,
)
from tests.support import archive_parts
from tests.support import gateway_process as gp

PLAIN: dict[str, Any] = {"tools": None}
PLACES = (0, 1, 17, 39, 40)


def nameless(response: dict[str, Any]) -> str:
    """A response without its ids and times."""
    text = json.dumps(response, ensure_ascii=False)
    for name in dict.fromkeys(re.findall(r"(?:resp|msg|rs|fc|call|ctc)_[A-Za-z0-9_-]{20,}", text)):
        text = text.replace(name, "id")
    return re.sub(r'"(created_at|completed_at)": [0-9.]+', "", text)


async def forks(client: httpx.AsyncClient, plain: str, tools: str) -> list[str]:
    """Forks of two responses at several places, with and without another word."""
    found = []
    for rid, words in ((plain, ("", WORD)), (tools, ("",))):
        for at in PLACES:
            for word in words:
                of = {"response_id": rid, "at": at, "replace": word}
                made = await over_http(client, fork=of, metadata=gp.cues(60, 0), **PLAIN)
                found.append(nameless(made.whole))
    return found


@pytest.mark.timeout(300)
async def test_a_fork_of_what_only_the_archive_has_is_that_of_a_live_one(
    parts: archive_parts.Parts, client: httpx.AsyncClient, second: gp.Gateway, later: gp.Gateway
) -> None:
    told: dict[str, Any] = {"instructions": "Be brief.", "metadata": gp.cues(40, 0)}
    plain = (await over_http(client, input="fork me", **told, **PLAIN)).whole["id"]
    asked = {"input": "call weather 30\ncall shell 10", "tools": [WEATHER, SHELL]}
    tools = (await over_http(client, **asked)).whole["id"]
    live = await forks(client, plain, tools)
    await archive_parts.archived(client, plain, tools)
    await parts.retention()
    async with later.client() as there, later.client("bob") as bob:
        assert await forks(there, plain, tools) == live
        of = {"response_id": plain, "at": 41}
        assert (await over_http(there, fork=of, **PLAIN)).refused[0] == "fork.at"
        of = {"response_id": plain, "at": 4}
        assert (await over_http(bob, fork=of, **PLAIN)).refused[0] == "fork.response_id"
        # A fork of the fork, after retention too, and a turn behind it.
        first = (await over_http(there, fork=of, metadata=gp.cues(30, 0), **PLAIN)).whole
        await archive_parts.archived(there, first["id"])
    await parts.retention()
    async with second.client() as elsewhere:
        of = {"response_id": first["id"], "at": 20}
        again = await over_http(elsewhere, fork=of, metadata=gp.cues(30, 0), **PLAIN)
        assert text_of(again.whole) == text_of(first)
        turn = {"previous_response_id": again.whole["id"], "input": "go on"}
        assert "go on" in text_of((await over_http(elsewhere, **turn, **PLAIN)).whole)
