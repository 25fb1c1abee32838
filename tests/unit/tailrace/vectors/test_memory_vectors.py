"""The vector database in memory keeps the contract."""

from __future__ import annotations

import pytest

from tests.support import memory_vectors
from tests.support.vectors_contract import VectorsContract


class TestMemory(VectorsContract):
    @pytest.fixture
    def database(self) -> memory_vectors.MemoryVectors:
        return memory_vectors.MemoryVectors()
