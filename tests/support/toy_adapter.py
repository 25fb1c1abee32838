"""A LoRA adapter with random weights, for the test model. Needs torch: only the engine environment
has it."""

from __future__ import annotations

import json
from pathlib import Path

RANK = 8


def build(model: Path, folder: Path, seed: int) -> None:
    """Write the adapter of `model` to a new folder. Its answers differ from those of the model, and
    from those of another seed."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text())
    size, heads = config["hidden_size"], config["num_attention_heads"]
    outputs = {"q_proj": size, "v_proj": size // heads * config["num_key_value_heads"]}
    drawn = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module, output in outputs.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for side, shape in (("A", (RANK, size)), ("B", (output, RANK))):
                made = torch.randn(*shape, generator=drawn) * 0.05
                tensors[f"{name}.lora_{side}.weight"] = made
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    description = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": list(outputs),
        "bias": "none",
        "base_model_name_or_path": model.name,
    }
    (folder / "adapter_config.json").write_text(json.dumps(description))
