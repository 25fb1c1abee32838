"""What vLLM's events of its KV cache say. The real ones are read in tests/contract/test_vllm.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from tests.support import cases
from worker.cached_blocks import CachedBlocks, Cleared, Removed, Stored
from worker.engines.vllm_kv_events import KvEvents, events_of, wanted


class BlockStored(msgspec.Struct, tag=True):
    """As vLLM 0.32 has it, as far as it is read."""

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int = 2
    medium: str | None = "GPU"
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = 0


class BlockRemoved(msgspec.Struct, tag=True):
    block_hashes: list[bytes]
    medium: str | None = "GPU"
    group_idx: int | None = 0


class AllBlocksCleared(msgspec.Struct, tag=True):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


def payload(*events: Any) -> bytes:
    return msgspec.msgpack.encode(Batch(0.0, list(events)))


@pytest.fixture
def reader() -> Iterator[KvEvents]:
    made = KvEvents()
    made._decoder = msgspec.msgpack.Decoder(Batch)
    yield made
    made.close()


def fold(reader: KvEvents, blocks: CachedBlocks, *batches: tuple[int, bytes]) -> int:
    """How many blocks are held then."""
    for number, body in batches:
        reader._fold(blocks, number, body)
    return len(blocks)


def test_blocks_are_stored_with_the_scope_of_the_first_removed_and_cleared() -> None:
    stored = BlockStored([b"a", b"b"], None, [1, 2, 3, 4], extra_keys=[("lora", "acme"), ("lora",)])
    assert list(events_of(stored)) == [
        Stored([b"a", b"b"], None, [1, 2, 3, 4], ("lora", "acme")),
    ]
    later = BlockStored([b"c"], b"b", [5, 6])
    assert list(events_of(later)) == [Stored([b"c"], b"b", [5, 6], ())]
    assert list(events_of(BlockRemoved([b"a"]))) == [Removed([b"a"])]
    assert list(events_of(AllBlocksCleared())) == [Cleared()]


@cases.each(
    "event",
    [
        BlockStored([b"a"], None, [1, 2], medium="CPU"),
        BlockStored([b"a"], None, [1, 2], group_idx=1),
        BlockRemoved([b"a"], medium="CPU"),
        BlockRemoved([b"a"], group_idx=1),
        BlockStored([b"a"], None, [1, 2], extra_keys=[(("image", 0), "acme")]),
    ],
)
def test_other_memory_other_groups_and_images_are_left_out(event: Any) -> None:
    assert list(events_of(event)) == []


def test_what_comes_before_an_image_counts() -> None:
    extra: Sequence[tuple[Any, ...] | None] = [("acme",), (["image", 0],), None]
    event = BlockStored([b"a", b"b", b"c"], None, [1, 2, 3, 4, 5, 6], extra_keys=[*extra])
    assert list(events_of(event)) == [Stored([b"a"], None, [1, 2], ("acme",))]


def test_after_a_batch_that_was_lost_nothing_is_known_to_be_held(reader: KvEvents) -> None:
    blocks = CachedBlocks(2)
    one, two = BlockStored([b"a"], None, [1, 2]), BlockStored([b"b"], None, [3, 4])
    assert fold(reader, blocks, (7, payload(one)), (8, payload(two))) == 2
    assert fold(reader, blocks, (10, payload(one))) == 1
    assert fold(reader, blocks, (11, payload(BlockRemoved([b"a"]), two))) == 1


def test_a_batch_that_cannot_be_read_is_one_that_was_lost(reader: KvEvents) -> None:
    blocks = CachedBlocks(2)
    one = BlockStored([b"a"], None, [1, 2])
    assert fold(reader, blocks, (0, payload(one)), (1, b"\xc1")) == 0
    assert fold(reader, blocks, (2, payload(one))) == 1


def test_events_go_over_a_socket_that_only_this_user_reaches(reader: KvEvents) -> None:
    assert reader._folder.stat().st_mode & 0o777 == 0o700
    assert reader._endpoint == f"ipc://{reader._folder}/events"
    reader.close()
    assert not reader._folder.exists()


@cases.each(
    ("given", "expected"),
    [
        ({}, True),
        ({"enable_prefix_caching": True}, True),
        ({"enable_prefix_caching": False}, False),
        ({"kv_events_config": {}}, False),
        ({"data_parallel_size": 2}, False),
    ],
)
def test_who_publishes_elsewhere_is_left_alone(given: dict[str, Any], expected: bool) -> None:
    assert wanted(given) is expected
