"""Features that a request needs of its worker (pure).

A worker publishes its features in its heartbeats, so that a gateway refuses a request that no
worker of the pool can serve. A worker refuses a request that it cannot serve itself.
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
    """Whether a worker with these features generates text. A model for embeddings does not. Old
    workers, which have no embeddings, do not publish `text`."""
    return "embeddings" not in features or "text" in features


class Need(NamedTuple):
    """A feature, and the member of the request (a dotted path) that asks for it."""

    feature: Feature
    field: str


def needs_of(request: records.Request) -> list[Need]:
    """Without these features the request cannot be served."""
    needs = []
    if request.embed is not None:
        needs.append(Need("embeddings", "model"))
        if request.embed.dimensions is not None:
            needs.append(Need("dimensions", "dimensions"))
        return needs
    if request.tools:
        needs.append(Need("tools", "tools"))
    if any(tool.get("type") == "custom" for tool in request.tools):
        needs.append(Need("custom_tools", "tools"))
    if request.format is not None:
        needs.append(Need("formats", "format"))
    if (request.reasoning or {}).get("effort") not in (None, "none"):
        needs.append(Need("effort", "reasoning.effort"))
    if request.sampling.logprobs is not None:
        needs.append(Need("logprobs", "logprobs"))
    if request.raw:
        needs.append(Need("raw_prompts", "prompt"))
    if request.fork is not None:
        needs.append(Need("forks", "fork"))
    if request.truncate:
        needs.append(Need("truncation", "truncation"))
    if request.continue_final:
        needs.append(Need("continuation", "previous_response_id"))
    if images.any_in(request.messages):
        needs.append(Need("images", "input"))
    if images.any_in(m for m in request.messages if m.get("role") == "tool"):
        needs.append(Need("tool_images", "output"))
    return needs
