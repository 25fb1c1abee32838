"""The whole path compared with vLLM's own server on a GPU, measured as in `whole_path`.

The model has the sizes of Llama 3 8B and random weights, which both engines make alike. They share
the GPU: each has room for its weights and the same number of tokens, and the idle side is frozen.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from bench import measure, stacks, whole_path
from tailrace.local import install_engine, paths

NAME: Final = "gpu"
OVER, UNDER = whole_path.OVER, whole_path.UNDER
PLOTS: Final = whole_path.PLOTS
WORK: Final = whole_path.Work(
    "8B",
    (
        whole_path.Level(1, 2, 256),
        whole_path.Level(8, 2, 256),
        whole_path.Level(32, 2, 256),
        whole_path.Level(128, 2, 256),
    ),
    40,
    3,
)
# Sizes of Llama 3 8B, but for the vocabulary.
SIZES: Final = {
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": False,
}
POOL: Final = "default"
CONTEXT: Final = 8192
ENGINE_ARGS: Final[dict[str, Any]] = {
    "load_format": "dummy",
    "gpu_memory_utilization": 0.35,
    # Measuring the free memory would fail where another engine starts at the same time.
    "kv_cache_memory_bytes": 10 << 30,
}


def run(plan: measure.Plan, _shared: Callable[[], stacks.Side]) -> Iterator[measure.Row]:
    """Rows of both sides, in the order A B, B A.

    Raises:
        stacks.NotHere: There is no GPU.
    """
    if not install_engine.has_gpu():
        raise stacks.NotHere("a GPU")
    return whole_path.measure_cases(plan, WORK, _sides(plan), NAME)


@contextlib.contextmanager
def _sides(plan: measure.Plan) -> Iterator[tuple[stacks.Side, stacks.Side]]:
    folder = large_model()
    pool = {
        "models": [folder.name],
        "max_model_len": CONTEXT,
        "source": str(folder),
        "tokenizer": str(folder),
        "engine_args": ENGINE_ARGS,
    }
    settings = {**whole_path.SETTINGS, "TAILRACE_POOLS": json.dumps({POOL: pool})}
    with stacks.together(
        stacks.tailrace(plan.scratch, engine="vllm", settings=settings),
        stacks.vllm_server(plan.scratch, folder, folder.name, engine_args=ENGINE_ARGS),
    ) as both:
        yield both


def large_model() -> Path:
    """The folder of a model of eight billion parameters, with the tokenizer of the small model. It
    has no weights: vLLM makes random ones (the engine argument `load_format: dummy`)."""
    source, folder = stacks.model_folder(), paths.cache() / "models" / "large-llama"
    folder.mkdir(exist_ok=True)
    for file in source.iterdir():
        if file.name.startswith("tokenizer") or file.suffix == ".jinja":
            shutil.copy(file, folder)
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **SIZES}))
    return folder
