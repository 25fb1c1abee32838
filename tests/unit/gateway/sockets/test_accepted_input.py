"""What `/config.json` says that models take."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.sockets import accepted_input
from tailrace.settings import catalog
from tests.support import cases

OFFERED = catalog.from_file(
    {
        "pools": {
            "small": {
                "models": ["s"],
                "aliases": ["fast"],
                "max_model_len": 1000,
                "output_limit": 50,
            },
            "seeing": {"models": ["v"], "max_model_len": 2000},
            "vectors": {"models": ["e"], "max_model_len": 500},
        },
        "auto": [
            {"model": "v", "features": ["images"], "max_prompt_tokens": 10_000},
            {"model": "fast", "max_prompt_tokens": 100_000},
        ],
    }
)
BEATS: dict[str, list[dict[str, Any]]] = {
    "small": [{"state": "ready", "features": ["tools"]}],
    "seeing": [
        {"state": "ready", "features": []},
        {"state": "ready", "features": ["images"]},
    ],
    "vectors": [{"state": "ready", "features": ["embeddings"]}],
}


def limits(
    models: catalog.Catalog = OFFERED,
    beats: dict[str, list[dict[str, Any]]] = BEATS,
    newest: int = 2,
) -> dict[str, tuple[Any, ...]]:
    actual = accepted_input.by_model(models, lambda pool: beats.get(pool, []), newest)
    names = ("images", "files", "max_output_tokens")
    return {model: tuple(each[name] for name in names) for model, each in actual.items()}


def test_models_take_what_a_worker_of_their_pool_tells() -> None:
    assert limits() == {
        "s": (False, True, 50),
        "fast": (False, True, 50),
        "v": (True, True, 2000),
        "e": (False, False, 500),
        "auto": (True, True, 2000),
    }
    assert set(limits()) == set(OFFERED.listed)


@pytest.mark.parametrize("beats", [{}, {"seeing": [{"state": "loading", "features": []}]}])
def test_while_no_worker_tells_nobody_knows(beats: dict[str, list[dict[str, Any]]]) -> None:
    assert limits(beats=beats)["v"] == (None, True, 2000)
    assert limits(beats=beats)["auto"][0] is None


def test_records_of_version_1_have_no_images() -> None:
    assert limits(newest=1)["v"] == (False, True, 2000)
    assert limits(beats={}, newest=1)["v"][0] is False


@cases.each(
    ("rules", "images"),
    [
        ([{"model": "s"}, {"model": "v", "features": ["images"]}], False),  # the first one fits
        ([{"model": "s", "max_prompt_tokens": 100}], False),  # an image is longer
        ([{"model": "v", "features": ["tools"]}, {"model": "s"}], False),
        ([{"model": "s", "max_prompt_tokens": 100}, {"model": "v"}], True),
    ],
)
def test_auto_takes_what_the_rule_for_an_image_leads_to(
    rules: list[dict[str, Any]], images: bool
) -> None:
    models = catalog.Catalog(OFFERED.pools, tuple(catalog.Rule(**rule) for rule in rules))
    assert limits(models)["auto"][0] is images


def test_without_rules_there_is_no_auto() -> None:
    assert "auto" not in limits(catalog.Catalog(OFFERED.pools))
