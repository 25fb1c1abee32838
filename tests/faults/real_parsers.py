"""The real engine's parsers without its engine: what stands in the log is read a second time. Runs
in the engine environment; `Parsers` is its caller's side.

One line of JSON in, one out: a request record (hexadecimal) and the ids of its response, against
[[ids before, [[kind, text, name], ...]], ...]: what each id adds, and at last what the end adds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tailrace.protocol import records
from worker.text.item_parser import Piece

Pieces = list[tuple[int, list[Piece]]]


class Parsers:
    """A process that has the model's tokenizer and vLLM's parsers, and nothing else."""

    def __init__(self, python: Path, model: Path, reasoning: str) -> None:
        """`reasoning`: the name of vLLM's parser, as the workers have it."""
        self._child = subprocess.Popen(
            [python, "-m", __name__, model, reasoning],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self, request: records.Request, ids: Sequence[int]) -> Pieces:
        """What the answer of these ids is made of, read from its beginning."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        asked = {"request": records.encode(request).hex(), "ids": list(ids)}
        print(json.dumps(asked), file=self._child.stdin, flush=True)
        found = json.loads(self._child.stdout.readline())
        return [(count, [Piece(*each) for each in pieces]) for count, pieces in found]

    def close(self) -> None:
        self._child.kill()
        self._child.wait()


def _without_engine(model: str, reasoning: str) -> Any:
    """A `VLLM` that can parse and cannot generate."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.tokenizers import cached_tokenizer_from_config

    from worker.engines import vllm, vllm_cpu, vllm_formats

    made = vllm.VLLM(model=model, capacity=1, max_model_len=2048, reasoning_parser=reasoning)
    made._set_environment()
    config = AsyncEngineArgs(
        model=model,
        structured_outputs_config=dict(vllm_formats.BACKEND),
        **vllm_cpu.arguments(internals=False, dtype="float32"),
    ).create_engine_config()
    made._names = made._find_parsers(config.model_config)
    tokenizer = cached_tokenizer_from_config(config.model_config)
    renderer = types.SimpleNamespace(tokenizer=tokenizer)
    made._llm = types.SimpleNamespace(model_config=config.model_config, renderer=renderer)
    made._describe()
    return made


def _pieces(engine: Any, request: records.Request, ids: Sequence[int]) -> Iterator[Any]:
    if not engine.parser_name(request):
        # At once, as no stream made it.
        yield 0, [Piece("m", engine._fast.decode(ids, skip_special_tokens=True))]
        return
    parser = engine._new_parser(request, engine.template.render(request))
    for count, each in enumerate(ids):
        yield count, parser.push(each)
    yield len(ids), parser.finish()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever vLLM prints is no answer
    engine = _without_engine(*sys.argv[1:])
    for line in sys.stdin:
        asked = json.loads(line)
        request = records.decode_request(bytes.fromhex(asked["request"]))
        assert request is not None
        print(json.dumps(list(_pieces(engine, request, asked["ids"]))), file=answers, flush=True)


if __name__ == "__main__":
    main()
