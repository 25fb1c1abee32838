"""A file of pools that changes while a process runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tailrace import settings
from tailrace.settings import pools_file
from tests.support import metric

ONE = "pools: {a: {models: [m]}}"
TWO = "pools: {a: {models: [m, n]}, b: {models: [x]}}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "pools.yaml"
    made.write_text(ONE)
    return made


def stale() -> float:
    return metric.value("tailrace_pools_stale")


async def test_a_changed_file_is_in_force_and_names_stay_known(file: Path) -> None:
    told: list[settings.Catalog] = []
    pools = settings.CurrentPools(pools_file.POOLS.parse(str(file)), on_change=told.append)
    await pools.poll()
    assert told == []
    file.write_text(TWO)
    await pools.poll()
    assert pools.catalog.listed == ("m", "n", "x")
    assert told == [pools.catalog]
    file.write_text(ONE)
    await pools.poll()
    assert pools.catalog.names == ("a",)
    assert pools.ever() == ["a", "b"]


async def test_kubernetes_swaps_a_link(file: Path, tmp_path: Path) -> None:
    other, link = tmp_path / "other.yaml", tmp_path / "link.yaml"
    other.write_text(TWO)
    link.symlink_to(file)
    pools = settings.CurrentPools(pools_file.POOLS.parse(str(link)))
    await pools.poll()
    fresh = tmp_path / "fresh"
    fresh.symlink_to(other)
    fresh.rename(link)
    await pools.poll()
    assert pools.catalog.names == ("a", "b")


@pytest.mark.parametrize("wrong", ["pools: {a: {modles: [m]}}", None])
async def test_a_file_that_cannot_be_used_leaves_the_former_pools_and_is_told_once(
    wrong: str | None, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pools = settings.CurrentPools(pools_file.POOLS.parse(str(file)))
    before = pools.catalog
    if wrong is None:
        file.unlink()
    else:
        file.write_text(wrong)
    await pools.poll()
    await pools.poll()
    assert pools.catalog is before
    assert stale() == 1
    assert [record.message for record in caplog.records].count("pools_refused") == 1
    file.write_text(ONE)
    await pools.poll()
    assert stale() == 0


async def test_new_pools_are_in_force_once_they_can_be_used(file: Path) -> None:
    asked: list[Sequence[str]] = []
    missing = {"b"}

    async def admit(added: Sequence[str]) -> None:
        asked.append(added)
        if missing.intersection(added):
            raise ValueError("its topics are missing")

    pools = settings.CurrentPools(pools_file.POOLS.parse(str(file)), admit=admit)
    file.write_text(TWO)
    await pools.poll()
    assert (pools.catalog.names, asked, stale()) == (("a",), [["b"]], 1)
    missing.clear()
    await pools.poll()
    assert (pools.catalog.names, stale()) == (("a", "b"), 0)


async def test_inline_pools_do_not_change() -> None:
    pools = settings.CurrentPools(pools_file.POOLS.parse('{"p": {"models": ["m"]}}'))
    await pools.run()
