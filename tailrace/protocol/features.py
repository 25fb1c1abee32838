"""What a request needs of the worker that generates it (pure).

A worker tells its features in its heartbeats, so that a gateway refuses what no worker of the pool
can do. A worker refuses what it cannot do itself.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal, NamedTuple, get_args

from tailrace.protocol import images, records

Feature = Literal[
    "tools",
    "custom_tools",
    "reasoning",
    "effort",  # of the reasoning
    "formats",
    "formats_resumable",
    "logprobs",
    "images",
    "tool_images",  # in the output of a tool
    "raw_prompts",
    "forks",
    "truncation",
    "continuation",  # of the text of the last message
    "embeddings",
    "dimensions",  # fewer than the model has, of embeddings
    "text",  # generates it, although it makes embeddings (`generates_text`)
]
ALL: Final[frozenset[Feature]] = frozenset(get_args(Feature))


def generates_text(features: Collection[str]) -> bool:
    """Whether a worker with these features generates text. A model for embeddings does not, and
    workers that know no embeddings do not say that they generate."""
    return "embeddings" not in features or "text" in features


class Need(NamedTuple):
    """A feature, and the member of the request (a dotted path) that asks for it."""

    feature: Feature
    field: str


def needed(request: records.Request) -> list[Need]:
    """Without these features the request cannot be served."""
    found = []
    if request.embed is not None:
        found.append(Need("embeddings", "model"))
        if request.embed.dimensions is not None:
            found.append(Need("dimensions", "dimensions"))
        return found
    if request.tools:
        found.append(Need("tools", "tools"))
    if any(tool.get("type") == "custom" for tool in request.tools):
        found.append(Need("custom_tools", "tools"))
    if request.format is not None:
        found.append(Need("formats", "format"))
    if (request.reasoning or {}).get("effort") not in (None, "none"):
        found.append(Need("effort", "reasoning.effort"))
    if request.sampling.logprobs is not None:
        found.append(Need("logprobs", "logprobs"))
    if request.raw:
        found.append(Need("raw_prompts", "prompt"))
    if request.fork is not None:
        found.append(Need("forks", "fork"))
    if request.truncate:
        found.append(Need("truncation", "truncation"))
    if request.continue_final:
        found.append(Need("continuation", "previous_response_id"))
    if images.any_in(request.messages):
        found.append(Need("images", "input"))
    if images.any_in(m for m in request.messages if m.get("role") == "tool"):
        found.append(Need("tool_images", "output"))
    return found
