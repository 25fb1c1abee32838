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
from tests.journey.test_sdk_tools import expected
from tests.journey.test_takeover import Watcher, kill_owner
from tests.support import read_log

HERE = Path(__file__).parent / "node"

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def node() -> str:
    """The command, with the SDK installed."""
    npm, found = shutil.which("npm"), shutil.which("node")
    if npm is None or found is None:
        pytest.skip("Node.js is not installed")
    if not (HERE / "node_modules" / "openai").exists():
        subprocess.run(
            [npm, "ci", "--silent"], cwd=HERE, check=True, timeout=200, env=dict(os.environ)
        )
    return found


@pytest.fixture(scope="module")
def seen(stack: Stack, node: str) -> Any:
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


@pytest.fixture(scope="module")
def tools(scripted_stack: Stack, node: str) -> Any:
    """What it saw with tools; a worker is killed in the middle of its last call's arguments."""
    stack = scripted_stack
    workers = {p["name"]: p["pid"] for p in stack.processes("worker")}
    command = [node, "--no-warnings", "tools.mjs", stack.api, stack.credential, MODEL]
    with subprocess.Popen(
        command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        rid = running.stderr.readline().strip()
        if rid.startswith("resp_"):
            kill_owner(stack, rid, workers)
        said, failed = running.communicate(timeout=120)
    assert running.returncode == 0, rid + failed[-3000:]
    return {**json.loads(said), "rid": rid}


def test_a_loop_of_tools(tools: Any) -> None:
    call = tools["loop"]["call"]
    assert (call["type"], call["name"]) == ("function_call", "weather")
    assert json.loads(call["arguments"]) == {"city": "Zürich", "days": 3}
    assert tools["loop"]["text"] == "The tools said: “sunny”."


def test_the_stream_helper_and_parsed_formats(tools: Any) -> None:
    stream = tools["stream"]
    assert stream["types"] == ["reasoning", "function_call"]
    assert json.loads(stream["deltas"]) == json.loads(stream["arguments"])
    for parsed in (tools["parsed"], tools["chatParsed"]):
        assert set(parsed) == {"city", "days"}
        assert len(parsed["city"]) > 40


def test_a_worker_dies_in_the_middle_of_the_arguments(tools: Any, scripted_stack: Stack) -> None:
    taken = tools["taken"]
    assert taken["deltas"] == taken["arguments"] == expected("call weather 800")
    claims = read_log.claims(scripted_stack, tools["rid"])
    assert len({c.worker for c in claims}) > 1, "another worker took over"
    again = Watcher(scripted_stack.push_url, scripted_stack.headers, tools["rid"])
    again.start()
    again.join(60)
    assert again.error is None, again.error
    assert taken["events"] == again.events
