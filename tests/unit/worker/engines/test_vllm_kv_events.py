"""What vLLM's events of its KV cache say. The real ones are read in tests/contract/test_vllm.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.support import cases
from worker.engines.vllm_kv_events import KvEvents, available, events_of
from worker.prefixes.cached_blocks import Cleared, Removed, Stored


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


class Again(Exception):
    """Nothing has come."""


class Socket:
    """Of ZeroMQ. `come`: messages that were not read yet."""

    def __init__(self) -> None:
        self.address = ""
        self.come: list[list[bytes]] = []

    def setsockopt(self, *_: Any) -> None: ...

    def connect(self, address: str) -> None:
        self.address = address

    def recv_multipart(self, _flags: int) -> list[bytes]:
        if not self.come:
            raise Again
        return self.come.pop(0)

    def close(self) -> None: ...


@pytest.fixture
def socket(monkeypatch: pytest.MonkeyPatch) -> Socket:
    """In the place of ZeroMQ and of vLLM, as far as events need them."""
    made = Socket()
    context = SimpleNamespace(instance=lambda: SimpleNamespace(socket=lambda _: made))
    words = dict.fromkeys(("SUB", "LINGER", "RCVHWM", "SUBSCRIBE", "NOBLOCK"), 0)
    zmq = SimpleNamespace(Context=context, Again=Again, **words)
    modules = {
        "zmq": zmq,
        "vllm": ModuleType("vllm"),
        "vllm.config": ModuleType("vllm.config"),
        "vllm.config.kv_events": SimpleNamespace(KVEventsConfig=SimpleNamespace),
        "vllm.distributed": ModuleType("vllm.distributed"),
        "vllm.distributed.kv_events": SimpleNamespace(KVEventBatch=Batch),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


@pytest.fixture
def reader() -> Iterator[KvEvents]:
    events = KvEvents()
    yield events
    events.close()


def read(reader: KvEvents, socket: Socket, *batches: tuple[int, bytes]) -> None:
    for number, body in batches:
        socket.come.append([b"", number.to_bytes(8, "big"), body])
    assert reader.read() == len(batches)


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


def test_after_a_batch_that_was_lost_nothing_is_known_to_be_held(
    reader: KvEvents, socket: Socket
) -> None:
    blocks = reader.begin(2)
    one, two = BlockStored([b"a"], None, [1, 2]), BlockStored([b"b"], None, [3, 4])
    read(reader, socket, (7, payload(one)), (8, payload(two)))
    assert len(blocks) == 2
    read(reader, socket, (10, payload(one)))
    assert len(blocks) == 1
    read(reader, socket, (11, payload(BlockRemoved([b"a"]), two)))
    assert len(blocks) == 1


def test_a_batch_that_cannot_be_read_is_one_that_was_lost(reader: KvEvents, socket: Socket) -> None:
    blocks = reader.begin(2)
    one = BlockStored([b"a"], None, [1, 2])
    read(reader, socket, (0, payload(one)), (1, b"\xc1"))
    assert len(blocks) == 0
    read(reader, socket, (2, payload(one)))
    assert len(blocks) == 1


def test_events_go_over_a_socket_that_only_this_user_reaches(
    reader: KvEvents, socket: Socket
) -> None:
    reader.begin(2)
    assert reader.arguments()["kv_events_config"].endpoint == socket.address
    scheme, _, path = socket.address.partition("://")
    folder = Path(path).parent
    assert scheme == "ipc"
    assert folder.stat().st_mode & 0o777 == 0o700
    reader.close()
    assert not folder.exists()


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
    assert available(given) is expected
