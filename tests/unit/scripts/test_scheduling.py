"""Which tests go to one process, and which come first (`tests/support/scheduling.py`)."""

from __future__ import annotations

from tests.support import scheduling


def test_the_tests_of_a_file_are_one_group() -> None:
    first, second = (
        "tests/services/test_push.py::test_a[1]",
        "tests/services/test_push.py::TestB::c",
    )
    assert scheduling.group(first) == scheduling.group(second) == "tests/services/test_push.py"


def test_what_needs_the_real_model_is_one_group() -> None:
    names = (
        "tests/journey/test_page.py::TestRealModel::test_a",
        "tests/journey/test_sdk_python.py::test_b",
    )
    assert {scheduling.group(name) for name in names} == {"real model"}
    assert scheduling.group("tests/journey/test_page.py::test_c") == "scripted stack"


def test_the_longest_come_first_and_unit_tests_last() -> None:
    ids = [
        "tests/unit/test_references.py::a",
        "tests/services/test_push.py::a",
        "tests/attacks/test_frames.py::a",
        "tests/faults/test_short.py::a",
        "tests/journey/test_sdk_python.py::a",
    ]
    assert sorted(ids, key=scheduling.rank) == ids[::-1]
