"""What a full run of the garbage collector still has to walk."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from tailrace.telemetry import gc_tuning


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


class Thing:
    me: Thing | None = None


def test_what_is_there_is_not_walked_any_more_and_what_comes_later_is() -> None:
    before = [Thing()]
    gc_tuning.freeze()
    after = [Thing()]
    walked = {id(o) for o in gc.get_objects()}
    assert id(before) not in walked
    assert id(after) in walked
    assert gc.get_threshold()[0] == gc_tuning.YOUNGEST


def test_garbage_is_not_kept_for_ever() -> None:
    thing = Thing()
    thing.me = thing
    gone = weakref.ref(thing)
    del thing
    gc_tuning.freeze()
    assert gone() is None


def test_garbage_that_comes_later_is_collected() -> None:
    gc_tuning.freeze()
    thing = Thing()
    thing.me = thing
    gone = weakref.ref(thing)
    del thing
    gc.collect()
    assert gone() is None
