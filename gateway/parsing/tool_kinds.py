"""The kinds of tools, and one parsed tool (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from gateway.parsing import file_search

MAX_TOOLS: Final = 128  # functions and custom tools, also those of namespaces
OWN: Final = ("function", "custom")
# Known to OpenAI's API and run by its server.
HOSTED: Final = frozenset(
    {
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "programmatic_tool_calling",
        "shell",
        "tool_search",
        "web_search",
        "web_search_preview",
    }
)
_DATED: Final = re.compile(r"(web_search|web_search_preview)_\d{4}_\d{2}_\d{2}\Z")


@dataclass(frozen=True, slots=True)
class ReadTool:
    """One member of `tools`.

    Attributes:
        echo, prompt: like in `tools.Tools`.
        names: the names in `prompt`.
        paths: the path of each name in the body.
        hosted: its type, if it is left out of the prompt.
        namespace: its name, if it is a namespace.
        search: the search, if it is `file_search` and this server runs it.
    """

    echo: dict[str, Any]
    prompt: tuple[dict[str, Any], ...] = ()
    names: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    hosted: str | None = None
    namespace: str | None = None
    search: file_search.FileSearch | None = None


def flat_name(namespace: str | None, name: str) -> str:
    """A tool's name in the prompt."""
    return f"{namespace}__{name}" if namespace else name


def is_hosted(kind: str) -> bool:
    """Whether OpenAI's server runs a tool of this type."""
    return kind in HOSTED or _DATED.match(kind) is not None
