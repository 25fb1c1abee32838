"""The plugin that continues a grammar, on a stand-in for vLLM's manager.
tests/contract/test_vllm.py has the real one."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from worker.engines import vllm_grammar


class Grammar:
    """Accepts ids that are not negative."""

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def accept_tokens(self, _request_id: str, ids: list[int]) -> bool:
        self.accepted += ids
        return min(ids) >= 0


class AnotherManager:
    """Of a version without the method that the plugin wraps."""

    def grammar_init(self, request: Any) -> Grammar:
        return Grammar()


def plug_into(manager: type, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm.v1.structured_output")
    module.StructuredOutputManager = manager  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vllm_grammar.register()


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Manager:
        def grammar_init(self, request: Any) -> Grammar:
            return self._create_grammar(request)

        def _create_grammar(self, request: Any) -> Grammar:
            return Grammar()

    plug_into(Manager, monkeypatch)
    return Manager


def request(prompt: list[int], count: int) -> SimpleNamespace:
    sampling = SimpleNamespace(extra_args=vllm_grammar.arguments(count))
    return SimpleNamespace(request_id="r", prompt_token_ids=prompt, sampling_params=sampling)


def test_a_grammar_accepts_the_ids_that_were_made_under_it_and_no_others(manager: Any) -> None:
    assert manager().grammar_init(request([1, 2, 3, 4], 3)).accepted == [2, 3, 4]
    assert manager().grammar_init(request([1, 2, 3, 4], 0)).accepted == []


def test_ids_that_do_not_fit_fail_their_request(manager: Any) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        manager().grammar_init(request([1, -1], 1))


def test_it_may_be_loaded_more_than_once(manager: Any) -> None:
    vllm_grammar.register()
    assert manager().grammar_init(request([1, 2], 2)).accepted == [1, 2]


def test_a_version_without_the_method_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(vars(AnotherManager))
    plug_into(AnotherManager, monkeypatch)
    assert dict(vars(AnotherManager)) == before
