"""What a file of pools may say, and how it is told what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tailrace import settings
from tailrace.settings import catalog, pools_file
from tests.support import cases

DOCS = Path(__file__).resolve().parents[4] / "docs"
WHOLE = """
pools:
  small:
    models: [s, t]
    aliases: [fast]
    engine: vllm
    source: /models/s
    max_num_seqs: 7
    engine_args: {tensor_parallel_size: 2, speculative_config: {method: ngram}}
    price: {input: 1, output: 2.5}
    output_limit: 100
    max_model_len: 1000
    classes: [batch]
    cache: none
    hedge: {share: 0.05}
    truncation: auto
  large: {models: [l]}
auto:
  - {model: fast, max_prompt_tokens: 10, features: [tools]}
  - {model: l}
"""


def read(text: str) -> catalog.Catalog:
    return pools_file.decode(text.encode(), Path("pools.yaml"))


def test_a_file_with_everything() -> None:
    found = read(WHOLE)
    small, large = found.pools
    assert (small.engine, small.source, small.max_num_seqs) == ("vllm", "/models/s", 7)
    assert small.engine_args == {
        "tensor_parallel_size": 2,
        "speculative_config": {"method": "ngram"},
    }
    assert small.price is not None
    assert small.price.input_nano(2_000_000) == 2_000_000_000
    assert small.price.output_nano(3) == 7_500
    assert large.price is None
    assert (small.longest_answer, small.default_output_tokens) == (100, 100)
    assert (small.classes, small.cache, small.truncation) == (("batch",), "none", "auto")
    assert (small.hedge.share, large.hedge.share) == (0.05, 0.0)
    assert (large.longest_answer, large.classes) == (8192, ("interactive", "batch"))
    assert found.listed == ("s", "t", "fast", "l", "auto")
    assert found.find("fast") == (small, "s")
    assert found.find("t") == (small, "t")
    assert found.find("auto") is None
    assert found.default_model == "s"


def test_the_example_and_its_schema_agree_with_the_code() -> None:
    text = (DOCS / "pools.example.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=pools.schema.json\n")
    schema = json.loads((DOCS / "pools.schema.json").read_text())
    jsonschema.validate(yaml.safe_load(text), schema)
    found = read(text)
    assert found.rules
    assert found.find("fast") is not None
    wrong = {"pools": {"p": {"models": ["m"], "modles": []}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)


@cases.each(
    ("text", "said"),
    [
        (
            "pools: {a: {models: [m], engin: vllm}}",
            "pool a: there is no member 'engin', perhaps 'engine'",
        ),
        ("pools: {a: {models: [m], zzz: 1}}", "pool a: there is no member 'zzz'"),
        ("pool: {}", "the file: there is no member 'pool', perhaps 'pools'"),
        (
            "pools: {a: {models: [m], max_model_len: 8k}}",
            "pool a: Expected `int`, got `str` - at `$.max_model_len`",
        ),
        (
            "pools: {a: {models: [m], price: {inptu: 1}}}",
            "pool a: Object contains unknown field `inptu` - at `$.price`",
        ),
        ("pools: {a: {models: [m], engine: vlm}}", "pool a: engine: 'vlm' is not an engine"),
        (
            "pools: {a: {models: [m]}, b: {models: [x], aliases: [m]}}",
            "pool b: the name 'm' is that of pool a too",
        ),
        (
            "pools: {a: {models: [m], output_limit: 9000}}",
            "pool a: output_limit is above its max_model_len",
        ),
        (
            "pools: {a: {models: [m], output_limit: 5, max_output_tokens: 6}}",
            "pool a: max_output_tokens is above its output_limit",
        ),
        (
            "pools: {a: {models: [auto]}}\nauto: [{model: auto}]",
            "pool a: the name 'auto' is that of the rules of 'auto'",
        ),
        (
            "pools: {a: {models: [mine]}}\nauto: [{model: mne}]",
            "auto[0]: no pool has the model 'mne', perhaps 'mine'",
        ),
        (
            "pools: {a: {models: [m]}}\nauto: [{model: m, feature: []}]",
            "auto[0]: there is no member 'feature', perhaps 'features'",
        ),
        (
            "pools: {a: {models: [m]}}\nauto: [{model: m, features: [sound]}]",
            "auto[0]: Invalid enum value 'sound'",
        ),
        ("pools: {a: {models: [m]}}\nauto: {model: m}", "auto: not a list"),
        ("pools:\n  a: {models: [m]}\n  a: {models: [n]}", "line 3: 'a' is given twice"),
        ("pools: {a: [", "line 1: "),
        ("pools: {}", "it has no pool"),
        (
            "pools: {a: {models: [m], cache: none, engine_args: {enable_prefix_caching: true}}}",
            "pool a: engine_args.enable_prefix_caching",
        ),
        (
            "pools: {a: {models: [m], canary: {r1: 0}}}",
            "pool a: canary: no revision has a weight above 0",
        ),
        ("pools: {a: {models: [m], canary: 101}}", "pool a: Expected `float` <= 100"),
        ("pools: {a: {models: [m], canary: {r1: -1}}}", "pool a: Expected `float` >= 0"),
        (
            "pools: {a: {models: [m], canary_bounds: {lest: 1}}}",
            "pool a: Object contains unknown field `lest` - at `$.canary_bounds`",
        ),
        (
            "pools: {a: {models: [m], cached_answers: {ttl_s: 0}}}",
            "pool a: Expected `float` > 0.0 - at `$.cached_answers.ttl_s`",
        ),
        (
            "pools: {a: {models: [m], cached_answers: {ttl: 1}}}",
            "pool a: Object contains unknown field `ttl` - at `$.cached_answers`",
        ),
        ("pools: {a: {models: [m], cached_answers: true}}", "pool a: Expected `object | null`"),
        ("pools: {a: {models: [m], hedge: {share: 1.5}}}", "pool a: Expected `float` <= 1"),
        (
            "pools: {a: {models: [m], engine: 'http://h/v1', hedge: {share: 0.1}}}",
            "pool a: hedge: an engine at a URL",
        ),
        ("- a", "the file: not a mapping"),
        ("", "the file: not a mapping"),
        ("pools: {1: {models: [m]}}", "the name of a pool is not a text"),
    ],
)
def test_what_is_wrong_names_the_pool_and_the_member(text: str, said: str) -> None:
    with pytest.raises(ValueError) as error:
        read(text)
    assert str(error.value).startswith(said)


def test_a_variable_names_a_file_or_holds_json(tmp_path: Path) -> None:
    file = tmp_path / "pools.yaml"
    file.write_text(WHOLE)
    kind = pools_file.POOLS
    assert kind.parse(str(file)).file == file
    inline = kind.parse(' {"p": {"models": ["m"], "aliases": ["n"]}}')
    assert (inline.file, inline.listed) == (None, ("m", "n"))
    with pytest.raises(ValueError, match="pool p: there is no member 'x'"):
        kind.parse('{"p": {"models": ["m"], "x": 1}}')
    with pytest.raises(ValueError, match="No such file"):
        kind.parse(str(tmp_path / "missing"))


WORKER: dict[str, Any] = {"TAILRACE_POOL": "small"}


def test_a_worker_takes_from_the_file_what_its_variables_do_not_say(tmp_path: Path) -> None:
    file, folder = tmp_path / "pools.yaml", tmp_path / "model"
    folder.mkdir()
    file.write_text(WHOLE.replace("/models/s", str(folder)))
    environ = {**WORKER, "TAILRACE_POOLS": str(file)}
    own = settings.worker(environ)
    assert (own.engine, own.model, own.max_num_seqs) == ("vllm", str(folder), 7)
    assert own.engine_args["tensor_parallel_size"] == 2
    assert own.cache == "none"
    other = settings.worker(
        {**environ, "TAILRACE_MODEL": str(tmp_path), "TAILRACE_MAX_NUM_SEQS": "3"}
    )
    assert (other.model, other.max_num_seqs) == (str(tmp_path), 3)
    with pytest.raises(settings.Misconfigured, match="pool small: engine_args are for the engine"):
        settings.worker({**environ, "TAILRACE_ENGINE": "scripted"})


def test_adapters_are_models_of_their_pool(tmp_path: Path) -> None:
    text = """
        small: {models: [s], engine: vllm, source: %s, adapters: {red: /a/red}, aliases: [quick]}
        large: {models: [l], fallback: [small], adapters: {blue: b}}
    """
    file = tmp_path / "pools.yaml"
    file.write_text(f"pools:{text % tmp_path}")
    found = pools_file.decode(file.read_bytes(), file)
    small, _ = found.pools
    assert found.find("red") == (small, "red")
    assert found.find("quick") == (small, "s")
    assert found.listed == ("s", "red", "quick", "l", "blue")
    assert found.stands_in_for("small") == ("l", "blue")
    environ = {**WORKER, "TAILRACE_POOLS": str(file)}
    own = settings.worker(environ)
    assert (own.models, own.adapters) == (("s", "red"), {"red": "/a/red"})
    assert own.stands_in_for == ("l", "blue")
    with pytest.raises(settings.Misconfigured, match="pool small: adapters are for the engine"):
        settings.worker({**environ, "TAILRACE_ENGINE": "scripted"})
    with pytest.raises(ValueError, match="pool b: the name 'red' is that of pool a too"):
        read("pools: {a: {models: [m], adapters: {red: r}}, b: {models: [red]}}")
