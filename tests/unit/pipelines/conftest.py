"""A server that stands for a database in tests of what is sent to one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.database_server import DatabaseServer


@pytest.fixture
def server() -> Iterator[DatabaseServer]:
    made = DatabaseServer()
    yield made
    made.close()
