"""A toy model that sees: a Qwen2.5-VL of random weights. Runs in the engine environment.

Made like `toy_vision`. Here an image becomes more tokens the larger it is, tokens have places in
three directions, and parts of the image attend to their window only; so vLLM's code for it needs
torchvision.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Final

from bench import toy_model
from tests.support import toy_vision

RENAMED: Final = {
    "<repo_name>": "<|image_pad|>",
    "<reponame>": "<|vision_start|>",
    "<file_sep>": "<|vision_end|>",
    "<filename>": "<|video_pad|>",
}
IMAGE: Final = 3
MARKER: Final = "<|image_pad|>"
BEFORE: Final = 1  # tokens around an image that stand before it
PLACES: Final = 6  # tokens of an image of 40 × 30 pixels
IMAGE_TOKENS: Final = PLACES + 2  # with those around it
VISION: Final[dict[str, Any]] = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 2,
    "out_hidden_size": 64,
    "fullatt_block_indexes": [1],
}
SIZE: Final = {"shortest_edge": 56 * 56, "longest_edge": 56 * 84}  # pixels, together

# That of the model itself, without tools and videos: also what a tool shows becomes an image.
TEMPLATE: Final = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{- message.content }}
{%- else %}
{%- for part in message.content %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' if part.type == 'image' else part.text }}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def build(source: Path, target: Path) -> None:
    """Write the model folder `target` atomically, with the same weights every time. `source`: the
    small model."""
    import torch
    import transformers
    from transformers.models.qwen2_vl import image_processing_qwen2_vl

    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        spread = {"initializer_range": toy_vision.SPREAD}
        of_source = transformers.AutoConfig.from_pretrained(source)
        ids = {
            name: getattr(of_source, name)
            for name in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")
        }
        sizes = {k: v for k, v in toy_model.SIZES.items() if k != "head_dim"}
        directions = [4, 6, 6]  # halves of the 32 numbers of a head: time, height, width
        rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": directions}
        config = transformers.Qwen2_5_VLConfig(
            vision_config={**VISION, **spread},
            text_config={**ids, **sizes, **spread, "rope_parameters": rope},
            image_token_id=IMAGE,
            vision_start_token_id=4,
            vision_end_token_id=5,
            video_token_id=6,
            **spread,
        )
        torch.manual_seed(0)
        model = transformers.Qwen2_5_VLForConditionalGeneration(config).to(torch.bfloat16)
        model.save_pretrained(fresh)
        toy_vision.write_tokenizer(source, fresh, RENAMED, TEMPLATE)
        transformers.Qwen2_5_VLProcessor(
            image_processor=image_processing_qwen2_vl.Qwen2VLImageProcessor(size=dict(SIZE)),
            tokenizer=transformers.AutoTokenizer.from_pretrained(fresh),
            video_processor=transformers.Qwen2VLVideoProcessor(),
            chat_template=TEMPLATE,
        ).save_pretrained(fresh)
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
