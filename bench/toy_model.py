"""Write a toy model: the small model's architecture and tokenizer with few random weights. Runs in
the engine environment.

    .venv-engine/bin/python -m bench.toy_model SOURCE TARGET

Its answers have no meaning and never end by themselves, so every answer has exactly the requested
number of tokens.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

SIZES: Final = {
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,  # the smallest that vLLM's CPU attention supports
}


def build(source: Path, target: Path) -> None:
    """Write the model folder `target` atomically, with the same weights every time."""
    import torch
    import transformers

    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        config = transformers.AutoConfig.from_pretrained(source)
        config.update(SIZES)
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        fresh.mkdir(parents=True)
        model.save_pretrained(fresh)
        transformers.AutoTokenizer.from_pretrained(source).save_pretrained(fresh)
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))
