"""Environments of the clients: made from their locks, below the git-ignored `.clients/`."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
MADE: Final = ROOT / ".clients"
INSTALL_S: Final = 580
_PIN: Final = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)

TITLES: Final = {
    "openai_python": "OpenAI SDK, Python",
    "openai_node": "OpenAI SDK, JavaScript",
    "agents_python": "OpenAI Agents SDK, Python",
    "agents_node": "OpenAI Agents SDK, JavaScript",
    "langchain": "LangChain",
    "ai_sdk": "Vercel AI SDK",
    "codex": "Codex CLI",
    "pydantic_ai": "Pydantic AI",
    "instructor": "Instructor",
    "litellm": "LiteLLM",
    "llama_index": "LlamaIndex",
    "langchain_node": "LangChain, JavaScript",
    "smolagents": "smolagents",
    "autogen": "AutoGen",
}


@dataclass(frozen=True)
class Client:
    """A folder beside this file."""

    name: str

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def folder(self) -> Path:
        return HERE / self.name

    @property
    def node(self) -> bool:
        return (self.folder / "package.json").exists()

    @property
    def lock(self) -> Path:
        return self.folder / ("package-lock.json" if self.node else "requirements.lock")

    @property
    def environment(self) -> Path:
        return MADE / self.name


def clients() -> list[Client]:
    return [Client(name) for name in TITLES]


def install(client: Client) -> bool:
    """Make the environment. False: it is there already, and of this lock."""
    stamp = client.environment / "tailrace-stamp"
    wanted = hashlib.sha256(client.lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return False
    shutil.rmtree(client.environment, ignore_errors=True)
    if client.node:
        client.environment.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(client.folder / name, client.environment)
        quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--silent")
        _call("npm", "ci", *quiet, cwd=client.environment)
    else:
        uv = str(ROOT / ".tools" / "bin" / "uv")
        _call(uv, "venv", "--quiet", "--python", sys.executable, str(client.environment))
        python = ("--python", str(client.environment / "bin" / "python"))
        _call(uv, "pip", "sync", "--quiet", "--require-hashes", *python, str(client.lock))
    stamp.write_text(wanted)
    return True


def lock(client: Client) -> None:
    """Resolve what the client asks for anew. No registry's address is in the lock."""
    if client.node:
        client.lock.unlink(missing_ok=True)
        quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--silent")
        bare = ("--package-lock-only", "--omit-lockfile-registry-resolved=true")
        _call("npm", "install", *bare, *quiet, cwd=client.folder)
        return
    uv = str(ROOT / ".tools" / "bin" / "uv")
    options = "--quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url"
    asked = f"{client.name}/requirements.in"
    target = ("--no-header", "--upgrade", asked, "-o", f"{client.name}/requirements.lock")
    _call(uv, "pip", "compile", *options.split(), *target, cwd=HERE)


def command(client: Client) -> list[str]:
    """What runs the client's script; with the Node of its lock, where it has one."""
    if not client.node:
        return [str(client.environment / "bin" / "python"), str(client.folder / "client.py")]
    # A module is looked for beside the file that imports it.
    for script in (client.folder / "client.mjs", HERE / "scenarios.mjs"):
        shutil.copy(script, client.environment)
    found = sorted(client.environment.glob("node_modules/node-linux-*/bin/node"))
    return [str(found[0]) if found else "node", "--no-warnings", "client.mjs"]


def versions(client: Client) -> str:
    """The packages that the client asks for, as locked."""
    if client.node:
        asked = json.loads((client.folder / "package.json").read_text())["dependencies"]
        return ", ".join(f"{name} {version}" for name, version in asked.items())
    pinned = dict(_PIN.findall(client.lock.read_text()))
    wanted = (client.folder / "requirements.in").read_text().split()
    names = [line.partition("[")[0] for line in wanted]
    return ", ".join(f"{name} {pinned[name]}" for name in names)


def _call(*command: str, cwd: Path = ROOT) -> None:
    subprocess.run(command, cwd=cwd, check=True, timeout=INSTALL_S, stdin=subprocess.DEVNULL)
