"""The official `openai` Node SDK, unmodified, against the real stack."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.journey.conftest import MODEL, Stack

HERE = Path(__file__).parent / "node"

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def seen(stack: Stack) -> Any:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("Node.js is not installed")
    if not (HERE / "node_modules" / "openai").exists():
        subprocess.run(
            [npm, "ci", "--silent"], cwd=HERE, check=True, timeout=200, env=dict(os.environ)
        )
    done = subprocess.run(
        [node, "--no-warnings", "journey.mjs", stack.api, stack.credential, MODEL],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("way", ["websocket", "sse"])
def test_events_are_dense_and_the_final_text_is_what_was_streamed(seen: Any, way: str) -> None:
    got = seen[way]
    assert got["numbers"] == list(range(len(got["numbers"])))
    assert got["types"][:2] == ["response.created", "response.in_progress"]
    assert got["final"]["output"][0]["content"][0]["text"] == got["text"]
    assert len(got["text"]) > 5
    assert got["lanes"] == (["main"] if way == "websocket" else [None])


def test_a_stream_is_resumed_after_a_position(seen: Any) -> None:
    assert seen["resumed"]["numbers"] == seen["resumed"]["expected"]
    assert seen["retrieved"] == seen["sse"]["text"]


def test_cancel_chat_and_errors(seen: Any) -> None:
    assert seen["cancelled"] == "cancelled"
    assert len(seen["chat"]["text"]) > 5
    assert seen["chat"]["usage"]["completion_tokens"] <= 30
    assert seen["unknown"] == {"name": "NotFoundError", "status": 404}
