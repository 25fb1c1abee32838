"""What the vLLM engine gives vLLM to read, without vLLM."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tailrace.protocol import events, records
from worker.engines import base, vllm, vllm_cpu, vllm_request


def job(prompt: list[int], accepted: list[int], tenant: str = "") -> base.GenerationInput:
    rid = "resp_" + "0" * 32
    request = records.Request(
        rid,
        records.Owner("i", "s", tenant),
        "m",
        [{"role": "user", "content": "?"}],
        records.Sampling(9),
        events.echo(rid, 0, "m", metadata={}),
    )
    return base.GenerationInput(request, "f" * 32, prompt, accepted, 9 - len(accepted))


def test_the_model_reads_the_prompt_and_then_every_accepted_id_in_order() -> None:
    assert vllm_request.prompt(job([1, 2, 3], [7, 7, 8]))["prompt_token_ids"] == [1, 2, 3, 7, 7, 8]
    assert vllm_request.prompt(job([1, 2, 3], []))["prompt_token_ids"] == [1, 2, 3]


def test_every_prompt_is_salted_with_who_may_share_its_cache() -> None:
    for tenant in ("acme", ""):
        asked = job([1], [], tenant)
        assert vllm_request.prompt(asked)["cache_salt"] == asked.request.owner.cache_scope


def test_attempts_at_one_response_have_names_of_their_own() -> None:
    one = job([1], [])
    other = base.GenerationInput(one.request, "e" * 32, [1], [], 9)
    assert one.key != other.key


async def test_a_parser_is_made_beside_the_event_loop() -> None:
    """Symptom: 300 KiB of tools stopped all answers of a worker for 40 ms."""
    threads: list[threading.Thread] = []

    def make(*_: Any) -> str:
        threads.append(threading.current_thread())
        return "parser"

    engine = vllm.VLLM(model="none", capacity=1, max_model_len=9)
    engine.template = SimpleNamespace(variables=lambda _: {})
    engine.item_parsers = SimpleNamespace(item_parser=make)
    one = job([1], [])
    made: Any = await engine.item_parser(one.request, one.prompt_ids)
    assert made == "parser"
    assert threads != [threading.current_thread()]
    await engine.shutdown()


def test_without_instructions_for_bfloat16_a_cpu_computes_in_float32(tmp_path: Path) -> None:
    """Symptom: emulated, a prompt took three times as long, and CI did not end in time."""
    for flags, dtype in (
        ("flags : avx avx2 fma", "float32"),
        ("flags : avx2 avx512f avx512_bf16 amx_bf16", "bfloat16"),
        ("Features : asimd i8mm bf16", "bfloat16"),
    ):
        (tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
        assert vllm_cpu.native_dtype(tmp_path / "cpuinfo") == dtype


def test_answers_are_repeated_only_where_it_is_known_what_makes_the_prompt() -> None:
    """A template that asks for the time has no counting digest."""

    def said(digest: str, **options: Any) -> str | None:
        engine = vllm.VLLM(model="m", capacity=1, max_model_len=16, **options)
        engine.counting_digest = digest
        return engine.repeatable(job([1], []).request)

    assert said("") is None
    found = [
        said("a"),
        said("b"),
        said("a", cpu_dtype="another"),
        said("a", engine_args={"quantization": "fp8"}),
    ]
    assert None not in found
    assert len(set(found)) == 4
    assert said("a") == found[0]
