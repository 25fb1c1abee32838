"""The real engines that modules of tests/contract share, in the engine environment.

An engine takes 80 seconds of processor time to start. So `Engines` starts each variant once, one
after the other, and `in_order` sorts the tests by their variant. A test that kills an engine asks
for the fixture `engine_to_kill` and comes as the last one of its variant.

A module says which variants its tests need: `parametrize("model", cases(TOY), indirect=True)`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
import pytest_asyncio

from tailrace import telemetry
from tests.support import engine_environment, toy_tools

if TYPE_CHECKING:
    from worker.engines import vllm

LENGTH: Final = 2_048  # tokens
CAPACITY: Final = 16
ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "SmolLM2": {},
    # Its template knows tools and reasoning.
    "toy": {"reasoning_parser": "deepseek_r1", "engine_args": {"max_num_batched_tokens": 3_072}},
}
STARTS: Final = "engine starts"  # name of the property of pytest's JUnit report, as JSON


@dataclass(frozen=True)
class Variant:
    """A model and a way to run it.

    Attributes:
        model: a key of ARGUMENTS.
        public_api: the engine uses only vLLM's public API. A worker does so where the installed
            version of vLLM does not have the private parts that the engine knows.
        dtype: of weights and arithmetic; None for the one that fits the processor. In float32,
            prefill and decode round alike, so that a continued greedy answer equals the
            uninterrupted one.
    """

    model: str
    public_api: bool = False
    dtype: str | None = "float32"

    def __str__(self) -> str:
        return self.model + "_public_api" * self.public_api + "_native" * (self.dtype is None)


TOY: Final = Variant("toy")
REAL: Final = Variant("SmolLM2")
TOY_PUBLIC: Final = Variant("toy", public_api=True)
REAL_PUBLIC: Final = Variant("SmolLM2", public_api=True)
REAL_NATIVE: Final = Variant("SmolLM2", dtype=None)
ORDER: Final = (TOY, REAL, TOY_PUBLIC, REAL_PUBLIC, REAL_NATIVE)
BY_DAY: Final = (TOY, REAL)  # `make test` starts these


class Model(NamedTuple):
    """A running engine, the folder of its model, and what it is."""

    engine: vllm.VLLM
    folder: Path
    variant: Variant


def cases(*variants: Variant) -> list[Any]:
    """Parameters for `model`: each variant, with its marks."""
    nightly = [pytest.mark.nightly]
    return [
        pytest.param(each, id=str(each), marks=[] if each in BY_DAY else nightly)
        for each in variants
    ]


@dataclass
class Engines:
    """Starts engines. One runs at a time, because each has a gigabyte for its cache.

    Attributes:
        new_folder: an empty folder.
        starts: how often each variant was started.
        current: the running engine. None before the first one.
        folders: of the models, by name.
    """

    new_folder: Callable[[str], Path]
    starts: Counter[str] = field(default_factory=Counter)
    current: Model | None = None
    folders: dict[str, Path] = field(default_factory=lambda: {"SmolLM2": engine_environment.MODEL})

    async def acquire(self, variant: Variant) -> Model:
        """The engine of this variant. Stops another one, and replaces one that has died."""
        current = self.current
        if current is None or current.variant != variant or current.engine.dead.is_set():
            await self.stop()
            self.current = current = await self._start(variant)
        return current

    async def stop(self) -> None:
        if self.current is not None:
            await self.current.engine.shutdown()
            self.current = None

    async def _start(self, variant: Variant) -> Model:
        assert engine_environment.HERE, engine_environment.ELSEWHERE
        from worker.engines import vllm

        if variant.model not in self.folders:
            folder = self.new_folder("model") / "toy-tools"
            toy_tools.build(engine_environment.MODEL, folder)
            self.folders[variant.model] = folder
        folder = self.folders[variant.model]
        engine = vllm.VLLM(
            model=str(folder),
            capacity=CAPACITY,
            max_model_len=LENGTH,
            public_api=variant.public_api,
            cpu_dtype=variant.dtype,
            **ARGUMENTS[variant.model],
        )
        self.starts[str(variant)] += 1
        await engine.start()
        return Model(engine, folder, variant)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engines(
    tmp_path_factory: pytest.TempPathFactory,
    record_testsuite_property: Callable[[str, object], None],
) -> AsyncIterator[Engines]:
    shared = Engines(tmp_path_factory.mktemp)
    yield shared
    await shared.stop()
    record_testsuite_property(STARTS, json.dumps(shared.starts))


@pytest_asyncio.fixture(loop_scope="session")
async def model(request: pytest.FixtureRequest, engines: Engines) -> Model:
    """The running engine of the variant that is the parameter. On the session's loop."""
    return await engines.acquire(request.param)


@pytest.fixture
def engine_to_kill(engine: vllm.VLLM) -> vllm.VLLM:
    """The engine of the test, which comes last (`in_order`)."""
    return engine


def metric(name: str) -> float:
    """A metric of vLLM, of its last step."""
    body, _ = telemetry.exposition()
    [value] = re.findall(rf"^vllm:{name}{{.*}} (\S+)$", body.decode(), re.MULTILINE)
    return float(value)


def inside() -> float:
    """Requests that vLLM's scheduler had after its last step."""
    return metric("num_requests_running") + metric("num_requests_waiting")


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Tests without a shared engine first, then variant by variant."""

    def place(item: pytest.Item) -> tuple[int, bool]:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        places = [ORDER.index(each) + 1 for each in values if isinstance(each, Variant)]
        return max(places, default=0), "engine_to_kill" in getattr(item, "fixturenames", ())

    return sorted(items, key=place)
