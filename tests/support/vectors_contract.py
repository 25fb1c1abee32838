"""What every vector database promises, as a class of tests.

A subclass gives a fixture `database`: open, and empty. milvus-lite in a file and behind a URL:
`tests/contract/test_vectors.py`. In memory: `tests/unit/tailrace/vectors/test_memory_vectors.py`.
"""

from __future__ import annotations

import struct

import pytest

from tailrace.vectors.contract import Passage, VectorDatabase, Where

ALICE = Where("a" * 40, "vs_1", ("vsa_1", "vsa_2"))


def vector(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def passage(
    number: int,
    values: tuple[float, ...] = (1.0, 0.0, 0.0),
    *,
    attachment: str = "vsa_1",
    store: str = "vs_1",
    scope: str = ALICE.scope,
    model: str = "m",
    text: str | None = None,
) -> Passage:
    return Passage(
        f"{store}:{attachment}:{number}",
        scope,
        store,
        attachment,
        number,
        text if text is not None else f'text {number} "größe"\n',
        model,
        vector(*values),
    )


class VectorsContract:
    """Tests of any database."""

    def test_nothing_is_found_in_an_empty_one(self, database: VectorDatabase) -> None:
        assert database.positions() == {}
        assert database.search(ALICE, "m", vector(1, 0, 0), 5) == []
        assert database.numbers(ALICE, "m") == set()
        assert database.texts(ALICE) == []

    def test_the_best_come_first_and_no_more_than_asked_for(self, database: VectorDatabase) -> None:
        database.fold([passage(0, (0, 1, 0)), passage(1, (1, 0, 0)), passage(2, (1, 1, 0))], [], {})
        hits = database.search(ALICE, "m", vector(2, 0, 0), 2)
        assert [(hit.attachment, hit.number, hit.text) for hit in hits] == [
            ("vsa_1", 1, 'text 1 "größe"\n'),
            ("vsa_1", 2, 'text 2 "größe"\n'),
        ]
        assert [hit.score for hit in hits] == [
            pytest.approx(1, abs=1e-5),
            pytest.approx(0.5**0.5, abs=1e-5),
        ]

    def test_what_is_folded_twice_is_there_once(self, database: VectorDatabase) -> None:
        rows = [passage(number, (1, number, 0)) for number in range(20)]
        for _ in range(2):
            database.fold(rows, [], {3: 20})
        database.fold([passage(5, (1, 5, 0), text="other")], [], {3: 21, 4: 1})
        assert database.numbers(ALICE, "m") == set(range(20))
        assert len(database.search(ALICE, "m", vector(1, 0, 0), 50)) == 20
        assert database.texts(ALICE)[5] == "other"
        assert database.positions() == {3: 21, 4: 1}

    def test_a_check_of_writes_leaves_nothing(self, database: VectorDatabase) -> None:
        database.check_writes()
        assert database.positions() == {}

    def test_neither_another_owner_nor_another_store_nor_another_file_is_found(
        self, database: VectorDatabase
    ) -> None:
        bob = "b" * 40
        database.fold(
            [
                passage(0),
                passage(1, scope=bob, attachment="vsa_2"),
                passage(2, store="vs_2"),
                passage(3, attachment="vsa_3"),
                passage(4, attachment="vsa_2", model="other"),
                passage(5, (1.0, 0.0), attachment="vsa_2"),
            ],
            [],
            {},
        )
        assert [hit.number for hit in database.search(ALICE, "m", vector(1, 0, 0), 50)] == [0]
        assert database.numbers(ALICE, "m") == {0, 5}
        assert database.texts(ALICE._replace(attachments=("vsa_3",))) == ['text 3 "größe"\n']
        nobody = ALICE._replace(attachments=())
        assert database.search(nobody, "m", vector(1, 0, 0), 50) == []

    def test_a_row_by_another_model_takes_the_place_of_the_former_one(
        self, database: VectorDatabase
    ) -> None:
        database.fold([passage(0), passage(1)], [], {})
        database.fold([passage(0, (1.0, 2.0), model="n", text="new")], [], {})
        assert database.numbers(ALICE, "m") == {1}
        assert database.numbers(ALICE, "n") == {0}
        assert database.texts(ALICE) == ["new", 'text 1 "größe"\n']

    def test_what_is_erased_is_gone(self, database: VectorDatabase) -> None:
        rows = [passage(number) for number in range(10)]
        database.fold([*rows, passage(10, (1.0, 2.0), model="n")], [], {})
        erased = [rows[number].key for number in (1, 3)]
        database.fold([], [*erased, "vs_1:vsa_1:10", "vs_1:vsa_9:0"], {0: 5})
        assert database.numbers(ALICE, "m") == {0, 2, 4, 5, 6, 7, 8, 9}
        assert database.numbers(ALICE, "n") == set()
        database.fold([passage(11)], [row.key for row in rows], {})
        assert database.numbers(ALICE, "m") == {11}
        assert database.texts(ALICE) == ['text 11 "größe"\n']

    def test_a_word_that_could_end_its_quotes_is_no_filter(self, database: VectorDatabase) -> None:
        database.fold([passage(0)], [], {})
        for where in (
            ALICE._replace(scope='x" or id != "'),
            ALICE._replace(store='x" or id != "'),
            ALICE._replace(attachments=('x"] or id != "',)),
        ):
            try:
                assert database.search(where, "m", vector(1, 0, 0), 5) == []
            except ValueError as error:
                assert "filter" in str(error)  # noqa: PT017 - a refusal is as good
