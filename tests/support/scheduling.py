"""Which process of a test run gets which tests, and in which order.

A file's tests go to one process, so that they share what the file starts. Some files share more: a
deployment, a browser, a real model. These are one group and start it once. What takes longest
comes first, and the unit tests, which are many and short, fill the gaps at the end.
"""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

# Group -> how the ids of its tests begin. The first group that fits is it.
GROUPS: Final = {
    "real model": (
        "tests/journey/test_page.py::TestRealModel::",
        "tests/journey/test_sdk_node.py::test_events_are_dense",
        "tests/journey/test_sdk_node.py::test_a_stream_is_resumed",
        "tests/journey/test_sdk_node.py::test_cancel_chat_and_errors",
        "tests/journey/test_sdk_python.py::",
        "tests/contract/test_engine_environment.py::",
    ),
    "attacks": ("tests/attacks/",),
    # One stack of the scripted engine, and one browser.
    "scripted stack": ("tests/journey/",),
    # Their deployment with an archive is one for all of them.
    "archive": ("tests/services/gateway/archive/",),
    # A gateway with a vector database.
    "vectors": (
        "tests/services/gateway/test_file_search.py::",
        "tests/services/gateway/test_many_passages.py::",
        "tests/services/gateway/test_vector_stores.py::",
    ),
    # One broker that they kill, and whose topics they delete.
    "mortal broker": (
        "tests/contract/test_archive_retry.py::",
        "tests/contract/test_log.py::",
        "tests/contract/test_moved_deletions.py::",
        "tests/contract/test_record_keys.py::",
        "tests/contract/test_telemetry.py::",
        "tests/contract/test_verify_source.py::",
    ),
}
# The groups and folders that come first: the longest, and those that mostly wait.
FIRST: Final = (
    "real model",
    "scripted stack",
    "archive",
    "tests/faults/",
    "mortal broker",
    "attacks",
    "vectors",
    "tests/services/",
    "tests/contract/",
)


def group(node_id: str) -> str:
    """The group of a test: its file, or one of GROUPS."""
    for name, beginnings in GROUPS.items():
        if node_id.startswith(beginnings):
            return name
    return node_id.split("::", 1)[0]


def rank(node_id: str) -> int:
    """Where the test's group comes, the first ones first."""
    name = group(node_id)
    for number, beginning in enumerate(FIRST):
        if name.startswith(beginning):
            return number
    return len(FIRST)


class Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """Groups in the order in which they were collected (`--no-loadscope-reorder`)."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)
