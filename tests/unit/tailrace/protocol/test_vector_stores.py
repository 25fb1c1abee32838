"""The records of vector stores, and their fold."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from tailrace.protocol import files, ids, records, vector_stores
from tailrace.protocol.vector_stores import (
    Attached,
    Changed,
    Created,
    Deleting,
    Described,
    Detached,
    Passage,
    Progress,
    Stores,
    Used,
)
from tests.support import cases

ALICE, BOB = records.Owner("i", "alice"), records.Owner("i", "bob", "t")
STORE = ids.mint(ids.Address(b"abcd", 1, 0), bytes(11), vector_stores.PREFIX)
PLACE = files.Place(0, (5,), 10, 1)
FILE = Attached(STORE, ALICE, "vsa_1", "file-1", "a.txt", "ff", PLACE, 10, "g1", 800, 400)
ACTS: list[vector_stores.Act] = [
    Created(STORE, ALICE, 5),
    Changed(STORE, ALICE, "Name", metadata={"a": "b"}, days=2),
    FILE,
    Progress(STORE, ALICE, "vsa_1", "g1", passages=3),
    Described(STORE, ALICE, "vsa_1", {"k": 1.0}),
    Progress(STORE, ALICE, "vsa_1", "g1", "completed", passages=3, bytes=30),
    Used(STORE, ALICE, 100),
]


def folded(*acts: vector_stores.Act) -> Stores:
    stores = Stores()
    for act in acts:
        stores.apply(act)
    return stores


def only(stores: Stores) -> vector_stores.Store:
    found = stores.find(STORE)
    assert found is not None
    return found


@cases.each("act", [*ACTS, Deleting(STORE, ALICE), Detached(STORE, ALICE, "vsa_1")])
def test_a_record_is_read_as_it_was_written_under_its_own_key_only(act: vector_stores.Act) -> None:
    value, key = vector_stores.encode(act), vector_stores.key(act)
    assert vector_stores.decode(key.encode(), value) == act
    assert vector_stores.decode(f"{key}x".encode(), value) is None
    assert vector_stores.decode(key.encode(), value[:-1]) is None
    assert vector_stores.decode(key.encode(), None) is None


def test_a_word_that_is_no_id_is_garbage() -> None:
    bad = msgspec.structs.replace(FILE, attachment='x" or "')
    assert vector_stores.decode(vector_stores.key(bad).encode(), vector_stores.encode(bad)) is None


def test_a_passage_is_read_as_it_was_written() -> None:
    passage = Passage(STORE, ALICE, "vsa_1", 7, "text", "m", b"\0\0\x80\x3f" * 2)
    value = vector_stores.encode(passage)
    assert passage.key == f"{STORE}:vsa_1:7"
    assert vector_stores.decode_passage(passage.key.encode(), value) == passage
    assert vector_stores.decode_passage(f"{STORE}:vsa_1:8".encode(), value) is None
    long = msgspec.structs.replace(passage, text="é" * 32_768)
    assert vector_stores.decode_passage(long.key.encode(), vector_stores.encode(long)) is None
    for wrong in (b"", b"\0\0\0"):
        odd = msgspec.structs.replace(passage, vector=wrong)
        assert vector_stores.decode_passage(odd.key.encode(), vector_stores.encode(odd)) is None


def test_what_a_store_is() -> None:
    store = only(folded(*ACTS))
    assert (store.name, store.metadata, store.days, store.created) == ("Name", {"a": "b"}, 2, 5)
    assert (store.used, store.expires) == (100, 100 + 2 * 86_400)
    assert not store.expired(172_899)
    assert store.expired(172_900)
    file = store.present["file-1"]
    assert (file.status, file.passages, file.bytes, file.attributes) == (
        "completed",
        3,
        30,
        {"k": 1.0},
    )


def test_of_two_that_add_a_file_at_once_the_first_stands_and_the_other_is_erased() -> None:
    late = msgspec.structs.replace(FILE, attachment="vsa_2")
    stores = folded(*ACTS, late)
    store = only(stores)
    assert store.present["file-1"].act == FILE
    assert store.files["vsa_2"].detached
    other = msgspec.structs.replace(FILE, attachment="vsa_3", file="file-3")
    stores.apply(other)
    assert list(store.present) == ["file-1", "file-3"]
    # Taken out, it may be added again, before its erasure and after it.
    stores.apply(Detached(STORE, ALICE, "vsa_1"))
    again = msgspec.structs.replace(FILE, attachment="vsa_4")
    stores.apply(again)
    assert store.present["file-1"].act == again
    stores.erase(f"{STORE}:f:vsa_1".encode())
    stores.apply(msgspec.structs.replace(FILE, attachment="vsa_5"))
    assert store.present["file-1"].act == again
    stores.apply(Detached(STORE, ALICE, "vsa_4"))
    stores.erase(f"{STORE}:f:vsa_4".encode())
    stores.apply(msgspec.structs.replace(FILE, attachment="vsa_6"))
    assert store.present["file-1"].act.attachment == "vsa_6"


def test_who_is_not_its_owner_changes_nothing() -> None:
    stores = folded(
        *ACTS,
        Created(STORE, BOB, 6),
        Changed(STORE, BOB, "Mine"),
        Detached(STORE, BOB, "vsa_1"),
        Deleting(STORE, BOB),
    )
    assert only(stores) == only(folded(*ACTS))
    assert [each.id for each in stores.for_owner(ALICE)] == [STORE]
    assert stores.for_owner(BOB) == []


def test_nothing_brings_back_what_was_erased() -> None:
    stores = folded(*ACTS)
    stores.erase(f"{STORE}:p:vsa_1".encode())
    assert only(stores).present
    stores.erase(f"{STORE}:f:vsa_1".encode())
    stores.apply(Progress(STORE, ALICE, "vsa_1", "g2", "completed", 3))
    stores.apply(Described(STORE, ALICE, "vsa_1", {}))
    assert only(stores).files == {}
    stores.erase(STORE.encode())
    for act in ACTS[1:]:
        stores.apply(act)
    assert stores.find(STORE) is None
    assert list(stores) == stores.for_owner(ALICE) == []


def test_what_is_deleted_is_kept_until_it_is_erased() -> None:
    stores = folded(*ACTS, Detached(STORE, ALICE, "vsa_1"))
    assert only(stores).present == {}
    assert only(stores).files["vsa_1"].passages == 3
    stores.apply(Deleting(STORE, ALICE))
    assert stores.for_owner(ALICE) == []
    assert [each.id for each in stores] == [STORE]


def test_a_process_that_was_taken_for_dead_opens_no_finished_file_again() -> None:
    stores = folded(*ACTS, Progress(STORE, ALICE, "vsa_1", "g0", passages=3))
    assert only(stores).present["file-1"].status == "completed"


def test_all_keys_of_a_file_and_of_a_store_are_erased() -> None:
    acts: list[Any] = [*ACTS, Detached(STORE, ALICE, "vsa_1"), Deleting(STORE, ALICE)]
    keys = {vector_stores.key(act) for act in acts}
    erased = [*vector_stores.keys_of_file(STORE, "vsa_1"), *vector_stores.keys_of_store(STORE)]
    assert set(erased) == keys
    # What says that an erasure is to go on goes last.
    assert erased.index(f"{STORE}:f:vsa_1") > erased.index(f"{STORE}:p:vsa_1")
    assert erased[-1] == f"{STORE}:d"


def test_the_fold_of_what_compaction_leaves_is_that_of_everything() -> None:
    """Of each key the last record, where it was."""
    rng = random.Random(16)
    for _ in range(300):
        acts = ACTS[:3] + rng.choices([*ACTS[1:2], *ACTS[3:]], k=8)
        acts += rng.choices([Detached(STORE, ALICE, "vsa_1"), Deleting(STORE, ALICE)], k=1)
        last = {vector_stores.key(act): index for index, act in enumerate(acts)}
        left = [act for index, act in enumerate(acts) if last[vector_stores.key(act)] == index]
        whole, compacted = only(folded(*acts)), only(folded(*left))
        # A late sign of life may hide that a file was finished: then it is looked through again.
        for file in (*whole.files.values(), *compacted.files.values()):
            file.progress = None
        assert whole == compacted
