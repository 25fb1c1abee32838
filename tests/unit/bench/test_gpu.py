"""The model of the suite on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import gpu, stacks
from tailrace.local import paths


def test_the_large_model_has_its_own_sizes_and_the_small_ones_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "models" / "small"
    small.mkdir(parents=True)
    (small / "config.json").write_text('{"hidden_size": 64, "vocab_size": 100}')
    for file in (
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "model.safetensors",
    ):
        (small / file).write_text("{}")
    monkeypatch.setattr(stacks, "model_folder", lambda: small)
    monkeypatch.setattr(paths, "cache", lambda: tmp_path)
    folder = gpu.large_model()
    assert {file.name for file in folder.iterdir()} == {
        "config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
    }  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    assert (config["hidden_size"], config["vocab_size"]) == (4096, 100)
