"""Two revisions behind one gateway: weights by a file that changes, and a new revision that is slow
or fails, which gets nothing any more."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace import log
from tests.support import gateway_process as gp
from tests.support.waiting import eventually

OLD, NEW = "scripted-1", "scripted-2"
BOUNDS = "canary_bounds: {least: 4, retry_s: 0}"
BAD = {
    "first_token": {"TAILRACE_SCRIPT_FIRST_TOKEN_MS": "700"},
    "errors": {"TAILRACE_SCRIPT_FAIL_EVERY": "2"},
}


class Room:
    """The gateway, a worker of each revision, and the file of pools."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        folder: Path,
        place: tuple[str, str, str],
        keys: gp.Keys,
        bad: dict[str, str],
    ) -> None:
        kafka, redis_url, self.pool = place
        self.file = folder / "pools.yaml"
        self.set("0")
        pools = {"TAILRACE_POOLS": str(self.file)}
        new = {"TAILRACE_SCRIPT_REVISION": NEW, **bad, **pools}
        stack.enter_context(gp.worker(folder, kafka, redis_url, self.pool, "old", **pools))
        self.gateway = stack.enter_context(
            gp.gateway(folder, kafka, redis_url, self.pool, keys, "revisions-gateway", **pools)
        )
        self.start_new = lambda: stack.enter_context(
            gp.worker(folder, kafka, redis_url, self.pool, "new", **new)
        )
        self.asked = 0

    def set(self, canary: str) -> None:
        self.file.write_text(
            f"pools: {{{self.pool}: {{models: [{gp.MODEL}], canary: {canary}, {BOUNDS}}}}}"
        )

    async def shares(self, client: httpx.AsyncClient) -> dict[str, Any]:
        found = (await client.get("/ready")).json().get("revisions", {})
        return dict(found.get(self.pool, {}))

    async def ask(self, client: httpx.AsyncClient, count: int) -> Counter[str]:
        """Answers to different questions, by their revision."""
        seen: Counter[str] = Counter()
        for _ in range(count):
            self.asked += 1
            body = {"input": f"number {self.asked}", "metadata": gp.cues(2, 1)}
            answer = await client.post("/v1/responses", json=body)
            assert answer.status_code == 200, answer.text
            revision = answer.json()["model_revision"]
            assert answer.headers["x-tailrace-revision"] == revision
            seen[revision] += 1
        return seen


@pytest.mark.nightly
@pytest.mark.timeout(240)
@pytest.mark.parametrize("reason", list(BAD))
async def test_a_bad_new_revision_gets_its_share_and_then_nothing(
    reason: str, tmp_path: Path, kafka: str, redis_url: str, keys: gp.Keys
) -> None:
    pool = f"revisions-{reason.replace('_', '-')}"
    await log.apply_topics(kafka, [pool])
    with contextlib.ExitStack() as stack:
        room = Room(stack, tmp_path, (kafka, redis_url, pool), keys, BAD[reason])
        async with room.gateway.client() as client:

            async def share(revision: str, part: float) -> bool:
                found = await room.shares(client)
                return bool(found.get(revision, {}).get("share") == part)

            await eventually(lambda: share(OLD, 1), "the old one is known", within_s=60)
            room.start_new()
            await eventually(lambda: share(NEW, 0), "the new one is known", within_s=60)

            # While the group assigns partitions anew, a request may lie in one that has just moved.
            async def settled() -> bool:
                return await room.ask(client, 2) == {OLD: 2}

            await eventually(settled, "all partitions are assigned", within_s=30)
            assert await room.ask(client, 6) == {OLD: 6}

            room.set("50")
            await eventually(lambda: share(NEW, 0.5), "it is to get half", within_s=20)
            seen: Counter[str] = Counter()
            while (await room.shares(client))[NEW]["share"]:
                seen += await room.ask(client, 2)
                assert sum(seen.values()) < 60
            assert min(seen[OLD], seen[NEW]) >= 2
            found = await room.shares(client)
            assert found[NEW] == {"share": 0.0, "returned": reason, "retry_s": None}
            assert await room.ask(client, 6) == {OLD: 6}

            room.set("51")  # the operator's way to try it again
            await eventually(lambda: share(NEW, 0.51), "it is tried again", within_s=20)
