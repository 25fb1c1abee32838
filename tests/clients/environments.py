"""Environments of the clients: made from their locks, below the git-ignored `.clients/`."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.clients import toolchains

HERE: Final = toolchains.HERE
ROOT: Final = toolchains.ROOT
MADE: Final = ROOT / ".clients"

TITLES: Final = {
    "openai_python": "OpenAI SDK, Python",
    "openai_node": "OpenAI SDK, JavaScript",
    "openai_go": "OpenAI SDK, Go",
    "openai_java": "OpenAI SDK, Java",
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
    "java_http": "java.net.http.HttpClient",
    "curl": "curl",
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
    def toolchain(self) -> toolchains.Toolchain:
        """The one whose requirements are in the folder."""
        (one,) = (t for t in toolchains.ALL if (self.folder / t.requirements).exists())
        return one

    @property
    def environment(self) -> Path:
        return MADE / self.name


def clients() -> list[Client]:
    return [Client(name) for name in TITLES]


def install(client: Client) -> bool:
    """Make the environment. False: it is there already, and of this lock."""
    stamp = client.environment / "tailrace-stamp"
    lock = client.folder / client.toolchain.lock
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return False
    shutil.rmtree(client.environment, ignore_errors=True)
    client.environment.mkdir(parents=True)
    client.toolchain.install(client.folder, client.environment)
    stamp.write_text(wanted)
    return True


def lock(client: Client) -> None:
    """Resolve what the client asks for anew. No registry's address is in the lock."""
    client.toolchain.resolve(client.folder)


def build(client: Client) -> list[str]:
    """What runs the client's script, compiled where it must be."""
    return client.toolchain.build(client.folder, client.environment)


def versions(client: Client) -> str:
    """The packages that the client asks for, as locked."""
    versions = client.toolchain.versions(client.folder)
    return ", ".join(f"{name} {version}" for name, version in versions.items())
