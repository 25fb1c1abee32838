"""A toy model that sees: an Idefics3 of random weights. Runs in the engine environment.

Its language model and tokenizer are those of `bench.toy_model`, and special tokens that nothing
uses have the names of Idefics3's. An image becomes `IMAGE_TOKENS` tokens, whatever its size. What
the model says has no meaning, but another image makes it say something else.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Final

from bench import toy_model

RENAMED: Final = {
    "<repo_name>": "<image>",
    "<reponame>": "<fake_token_around_image>",
    "<file_sep>": "<end_of_utterance>",
    "<filename>": "<global-img>",
}
IMAGE: Final = 3
MARKER: Final = "<image>"
BEFORE: Final = 2  # tokens around an image that stand before it
SIDE: Final = 56  # pixels
PATCH: Final = 14
SCALE: Final = 2  # so many patches in each direction are one token
PLACES: Final = (SIDE // PATCH // SCALE) ** 2
IMAGE_TOKENS: Final = PLACES + 3  # with those around it
VISION: Final = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": PATCH,
}
# Of the weights. With the usual 0.02 an answer repeats the last word, whatever came before it.
SPREAD: Final = 0.2

TEMPLATE: Final = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{- message.content }}
{%- else %}
{%- for part in message.content %}
{{- '<image>' if part.type == 'image' else part.text }}
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
    from transformers.models.idefics3 import image_processing_pil_idefics3

    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        text = transformers.AutoConfig.from_pretrained(source)
        text.update({**toy_model.SIZES, "initializer_range": SPREAD, "tie_word_embeddings": False})
        config = transformers.Idefics3Config(
            vision_config={**VISION, "initializer_range": SPREAD},
            text_config=text,
            image_token_id=IMAGE,
            scale_factor=SCALE,
            pad_token_id=text.pad_token_id,
            initializer_range=SPREAD,
        )
        torch.manual_seed(0)
        model = transformers.Idefics3ForConditionalGeneration(config).to(torch.bfloat16)
        model.save_pretrained(fresh)
        write_tokenizer(source, fresh, RENAMED, TEMPLATE)
        transformers.Idefics3Processor(
            image_processor=image_processing_pil_idefics3.Idefics3ImageProcessorPil(
                do_image_splitting=False,
                size={"longest_edge": SIDE},
                max_image_size={"longest_edge": SIDE},
            ),
            tokenizer=transformers.AutoTokenizer.from_pretrained(fresh),
            image_seq_len=PLACES,
            chat_template=TEMPLATE,
        ).save_pretrained(fresh)
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def write_tokenizer(source: Path, folder: Path, renamed: dict[str, str], template: str) -> None:
    """The tokenizer of `source` with other names for special tokens, and a chat template."""
    import transformers

    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    for token in tokenizer["added_tokens"]:
        token["content"] = renamed.get(token["content"], token["content"])
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {renamed.get(t, t): i for t, i in vocabulary.items()}
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))
    (folder / "chat_template.jinja").write_text(template)
