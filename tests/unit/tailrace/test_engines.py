"""The engine table."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tailrace import engines
from tests.support import cases


@cases.each(
    ("value", "kind"),
    [
        ("vllm", engines.VLLM),
        ("scripted", engines.SCRIPTED),
        ("http://127.0.0.1:11434/v1", engines.OPENAI),
        ("https://[::1]:8000", engines.OPENAI),
    ],
)
def test_a_value_means_a_row(value: str, kind: engines.Kind) -> None:
    assert engines.find(value) is kind


@cases.each("value", ["", "gpt", "VLLM", "ftp://x", "http://", "http://[::1", "url"])
def test_another_value_is_refused_with_the_choices(value: str) -> None:
    with pytest.raises(engines.UnknownEngine, match=re.escape(engines.CHOICES)):
        engines.find(value)


def test_names_are_distinct_and_the_default_is_one_of_them() -> None:
    names = [kind.name for kind in engines.TABLE]
    assert len(set(names)) == len(names)
    assert engines.find(engines.DEFAULT) in engines.TABLE


@cases.each("kind", engines.TABLE, ids=lambda kind: kind.name or "url")
def test_every_row_names_a_module_that_exists(kind: engines.Kind) -> None:
    assert importlib.util.find_spec(kind.module) is not None
