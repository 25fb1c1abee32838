"""What a request for each model may contain, for the page's `GET /config.json` (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gateway.parsing import model_choice
from gateway.requests import requirements
from tailrace.protocol import errors, images, records
from tailrace.settings.catalog import AUTO, Catalog
from tailrace.settings.shapes import Pool

Beats = Sequence[Mapping[str, Any]]
_IMAGES: Final = frozenset({"images"})


def by_model(
    catalog: Catalog, workers: Callable[[str], Beats], newest: int
) -> dict[str, dict[str, Any]]:
    """The limits by each name that requests may give as `model`.

    Args:
        workers: the heartbeats of a pool, by its name.
        newest: the newest record version that may be written.

    Returns: `images` (None while no worker of the pool reports it), `files` (texts), and the
    largest
        `max_output_tokens`.
    """

    def limits(pool: Pool) -> dict[str, Any]:
        beats = workers(pool.name)
        return {
            "images": newest >= records.VERSION_2 and requirements.takes_images(beats),
            "files": not requirements.embed_only(beats),
            "max_output_tokens": pool.longest_answer,
        }

    by_name = {
        name: limits(pool) for pool in catalog.pools for name in (*pool.answers, *pool.aliases)
    }
    return {**by_name, AUTO: _auto(catalog, by_name)} if catalog.rules else by_name


def _auto(catalog: Catalog, by_name: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The limits of `auto`: `images` of the model for a request with an image; others over all
    models that may answer."""
    models = [by_name[rule.model] for rule in catalog.rules]
    try:
        _, model = model_choice.by_rules(catalog, images.MAX_TOKENS_GUESS, _IMAGES)
        takes_images = by_name[model]["images"]
    except errors.ApiError:
        takes_images = False
    return {
        "images": takes_images,
        "files": any(each["files"] for each in models),
        "max_output_tokens": max(each["max_output_tokens"] for each in models),
    }
