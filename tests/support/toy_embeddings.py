"""A toy model that makes embeddings: a Llama of random weights. Runs in the engine environment.

    .venv-engine/bin/python -m tests.support.toy_embeddings SOURCE TARGET

It is the toy of `bench.toy_model` with the files of a sentence-transformers model: its vector is
the last token's, made of length one. Its vectors may be cut to fewer dimensions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from bench import toy_model

DIMENSIONS: Final = toy_model.SIZES["hidden_size"]

_MODULES: Final = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {
        "idx": 2,
        "name": "2",
        "path": "2_Normalize",
        "type": "sentence_transformers.models.Normalize",
    },
]
_POOLING: Final = {"word_embedding_dimension": DIMENSIONS, "pooling_mode_lasttoken": True}


def build(source: Path, target: Path, *, matryoshka: bool = True) -> None:
    """Write the model folder `target`. `source`: the small model. `matryoshka`: its vectors may be
    cut."""
    toy_model.build(source, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "is_matryoshka": matryoshka}))
    (target / "modules.json").write_text(json.dumps(_MODULES))
    (target / "1_Pooling").mkdir()
    (target / "1_Pooling" / "config.json").write_text(json.dumps(_POOLING))


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))
