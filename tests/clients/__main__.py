"""`python -m tests.clients [NAME …]` (`make clients`): unmodified clients on a deployment.

Each folder beside this file is a client: a lock, and a script with scenarios. Each is installed
into an environment of its own and run on one deployment with the scripted engine, through a proxy
that writes down what it sends. If all clients were run, docs/clients.md holds the table afterwards,
and the unit tests of the gateway's parsing have a sample of what was sent.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import redis

from tailrace.local import paths, state
from tests.clients import environments, recorder
from tests.support import deployment

OUT: Final = environments.ROOT / "docs" / "clients.md"
SAMPLE: Final = environments.ROOT / "tests/unit/gateway/parsing/client_bodies.jsonl"
LIMIT_S: Final = 480  # a client's script
WORKERS: Final = 2


@dataclass
class Result:
    """What became of one client. `scenarios`: name, whether it went well, what was seen."""

    client: environments.Client
    versions: str
    scenarios: list[tuple[str, bool, str]] = field(default_factory=list)
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem and bool(self.scenarios) and all(ok for _, ok, _ in self.scenarios)


def run(
    client: environments.Client, command: list[str], on: deployment.Deployment, records: Path
) -> Result:
    """Its script, to the end. Workers are killed when it says so."""
    result = Result(client, environments.versions(client))
    with recorder.Recorder(on.port, records / client.name) as proxy:
        environment = {
            **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
            "HOME": str(records),
            "TAILRACE_CLIENT_BASE": f"http://127.0.0.1:{proxy.port}/v1",
            "TAILRACE_CLIENT_KEY": on.call("token").strip(),
            "TAILRACE_CLIENT_MODEL": recorder.MODEL,
            "TAILRACE_CLIENT_DONE": str(records / f"{client.name}.done"),
            "PYTHONPATH": str(environments.HERE),
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "LANGSMITH_TRACING": "false",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        errors = records / f"{client.name}.stderr"
        with errors.open("w") as said:
            process = subprocess.Popen(
                command,
                cwd=client.environment,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
            timer = threading.Timer(LIMIT_S, process.kill)
            timer.start()
            assert process.stdout
            for line in process.stdout:
                _heard(line, result, on, Path(environment["TAILRACE_CLIENT_DONE"]))
            code = process.wait()
            timer.cancel()
    if code not in (0, 1) or (code == 1 and result.ok) or not result.scenarios:
        result.problem = f"exit code {code}: {errors.read_text()[-1500:]}"
    return result


def _heard(line: str, result: Result, on: deployment.Deployment, done: Path) -> None:
    """Do what a script says. `done`: has a line for each thing that a script waits for."""
    try:
        said: dict[str, Any] = json.loads(line)
    except ValueError:
        return  # a client's own output
    if not isinstance(said, dict):
        return
    if said.get("kill") == "worker":
        _kill(on, "worker")
    elif "restart" in said or "empty" in said:
        _empty_redis(on) if "empty" in said else _restart_gateway(on)
        with done.open("a") as lines:
            print("done", file=lines)
    elif "version" in said:
        result.versions = ", ".join(filter(None, (said["version"], result.versions)))
    elif "scenario" in said:
        result.scenarios.append((said["scenario"], said["ok"], said["saw"]))
        print(f"  {'ok    ' if said['ok'] else 'FAILED'} {said['scenario']}: {said['saw']}")


def _kill(on: deployment.Deployment, role: str) -> list[int]:
    """SIGKILL to every process of a role. Returns their pids."""
    pids = [row["pid"] for row in on.rows() if row["role"] == role]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return pids


def _restart_gateway(on: deployment.Deployment) -> None:
    """Kill it, and wait for the one that the supervisor starts."""
    former = _kill(on, "gateway")

    def back() -> bool:
        rows = [row for row in on.rows() if row["role"] == "gateway"]
        return all(row["pid"] not in former and row["ready"] for row in rows)

    deployment.until(back, "another gateway")


def _empty_redis(on: deployment.Deployment) -> None:
    running = state.load(paths.Data(on.data).state)
    assert running
    with redis.Redis.from_url(running.redis) as store:
        store.flushall()


def table(results: list[Result]) -> str:
    """docs/clients.md."""
    rows = [
        "# Clients",
        "",
        "Made by `make clients`: unmodified clients from their registries, pinned in",
        "`tests/clients/` with checksums, each in an environment of its own, on a deployment with",
        "the scripted engine. “Killed” scenarios end every worker with SIGKILL in the middle of a",
        "tool call or a JSON object; the client must see what it sees without. “A conversation”",
        "is one of the Conversations API; gateways are killed and Redis is emptied between turns.",
        "curl and the JDK are those of the machine.",
        "",
        "| client | version | result |",
        "|---|---|---|",
    ]
    for result in results:
        good = sum(ok for _, ok, _ in result.scenarios)
        said = f"{good} of {len(result.scenarios)}" + (", did not end" if result.problem else "")
        rows.append(f"| {result.client.title} | {result.versions} | {said} |")
    for result in results:
        rows += ["", f"## {result.client.title}", ""]
        rows += [f"- {name}: {'ok' if ok else 'FAILED'}" for name, ok, _ in result.scenarios]
    return "\n".join(rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients")
    parser.add_argument("names", nargs="*", help="clients, by folder; all without")
    parser.add_argument("--records", type=Path, help="where what they send is kept")
    parser.add_argument("--install", action="store_true", help="make the environments, run nothing")
    parser.add_argument("--lock", action="store_true", help="resolve versions anew, run nothing")
    parser.add_argument("--write", action="store_true", help="write the table in any case")
    arguments = parser.parse_args()
    clients = [
        c for c in environments.clients() if c.name in arguments.names or not arguments.names
    ]
    if arguments.lock:
        for client in clients:
            environments.lock(client)
        return 0
    commands = {}
    for client in clients:
        began = time.monotonic()
        if environments.install(client):
            print(f"installed {client.name} in {time.monotonic() - began:.0f} s", flush=True)
        commands[client] = environments.build(client)
    if arguments.install:
        return 0
    results = []
    with tempfile.TemporaryDirectory(prefix="tailrace-clients-") as scratch:
        records = arguments.records or Path(scratch) / "records"
        shutil.rmtree(records, ignore_errors=True)
        records.mkdir(parents=True)
        on = deployment.Deployment(Path(scratch) / "data")
        try:
            on.call(*on.up, "--detach", "--workers", str(WORKERS), seconds=deployment.UP_S)
            for client in clients:
                print(f"{client.title} {environments.versions(client)}", flush=True)
                results.append(run(client, commands[client], on, records))
                if results[-1].problem:
                    print(f"  {results[-1].problem}")
                found = recorder.refused(records / client.name)
                for refusal in found:
                    print(f"  not read by the gateway: {refusal}", flush=True)
            bodies = recorder.sample(records)
        finally:
            on.close()
    if arguments.write or not arguments.names:
        OUT.write_text(table(results))
        with SAMPLE.open("w") as lines:
            for body in bodies:
                print(json.dumps(body, ensure_ascii=False), file=lines)
    good = sum(result.ok for result in results)
    print(f"{good} passed, {len(results) - good} failed")
    return int(good < len(results))


if __name__ == "__main__":
    sys.exit(main())
