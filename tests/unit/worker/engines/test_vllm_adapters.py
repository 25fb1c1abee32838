"""Revisions of models with adapters."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.engines import base, vllm_adapters


def test_a_revision_names_the_adapters_their_sources_and_their_weights(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_model.safetensors").write_text("one")

    def revision(**adapters: str) -> str:
        sources = {name: str(tmp_path / folder) for name, folder in adapters.items()}
        return vllm_adapters.revision("model@1", sources, lambda source: source)

    assert revision() == "model@1"
    one = revision(red="a")
    assert one.startswith("model@1+")
    assert len({one, revision(blue="a"), revision(red="b"), revision(red="a", blue="b")}) == 4
    (tmp_path / "a" / "adapter_model.safetensors").write_text("two")
    assert revision(red="a") != one


def test_requests_for_different_adapters_run_together() -> None:
    assert vllm_adapters.arguments({}, {}, on_cpu=False) == {}
    two, many = {"a": "x", "b": "y"}, {str(n): "x" for n in range(20)}
    assert vllm_adapters.arguments(two, {}, on_cpu=False) == {"enable_lora": True, "max_loras": 2}
    most = vllm_adapters.arguments(many, {}, on_cpu=False)["max_loras"]
    assert most == vllm_adapters.MOST_AT_ONCE


def test_on_a_cpu_one_slot_stays_empty() -> None:
    many = {str(n): "x" for n in range(20)}
    assert vllm_adapters.arguments({}, {}, on_cpu=True) == {}
    assert vllm_adapters.arguments(many, {}, on_cpu=True)["max_loras"] == 21
    assert vllm_adapters.arguments(many, {"max_loras": 21}, on_cpu=True)
    with pytest.raises(base.ArgumentRefused, match="max_loras is below 21"):
        vllm_adapters.arguments(many, {"max_loras": 20}, on_cpu=True)
