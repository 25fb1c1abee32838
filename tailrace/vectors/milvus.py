"""Milvus: a server at a URL, or milvus-lite in a file, by the same client.

A collection holds the passages of one model and one number of dimensions, of all owners and stores.
Its name has the tag of the log in it: another log is not mixed with this one. Searches compare all
rows that the filter lets through, so that an answer is exact and the same after each rebuild.

milvus-lite searches 20 times more slowly what was not flushed, so each batch is flushed there. A
server is never asked to: what it acknowledged is in its own log, it flushes by itself, it limits
how often clients may ask (since 2.4 once in 10 s by default), and 2.3.5 refuses for half a minute
after it was killed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tailrace.protocol import vector_stores
from tailrace.vectors import contract
from tailrace.vectors.contract import Hit, NotInstalled, Passage, Unavailable, Where

ANSWER_S: Final = 30.0
BATCH: Final = 500  # rows of one call: with 4,096 dimensions 8 MB
_NAME_CHARS: Final = 64
_WORD: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_NO_PARTITION: Final = -1  # its row among the positions says nothing
_SAFE_MODEL: Final = 8  # bytes of a model's digest
_INSTALL: Final = "install them with: pip install 'tailrace[retrieval]'"


def open_database(url: str, name: str, tag: bytes) -> Milvus:
    """The database of a setting. It connects in `open`.

    Args:
        url: `http(s)://[user:password@]host:port` of a server, or the path of a folder. There each
            `name` has a file of its own, because milvus-lite lets one process use a file.
        tag: of the log's incarnation.

    Raises:
        NotInstalled
    """
    _check_installed("pymilvus")
    if urlsplit(url).scheme in ("http", "https"):
        parts = urlsplit(url)
        token = f"{parts.username}:{parts.password}" if parts.username else ""
        host = parts.netloc.rpartition("@")[2]
        return Milvus(f"{parts.scheme}://{host}", tag, token)
    _check_installed("milvus_lite")
    return Milvus(str(Path(url) / f"{name}.db"), tag, "")


class Milvus:
    """The database.

    Attributes:
        _file: of milvus-lite; None: a server.
        _limits: what each call is given: a server's calls end after ANSWER_S, without which the
            client tries for minutes, and searches wait for them.
        _client: None before `open` and after `close`.
        _dimensions: of each collection of passages that is known to be there, by its name.
    """

    def __init__(self, uri: str, tag: bytes, token: str) -> None:
        self._uri = uri
        self._token = token
        self._prefix = f"tailrace_{tag.hex()}"
        self._file = None if "://" in uri else Path(uri)
        self._limits = {} if self._file else {"timeout": ANSWER_S}
        self._client: Any = None
        self._dimensions: dict[str, int] = {}

    def open(self) -> None:
        if self._client is not None:
            return
        # Takes most of a second, and only deployments with a vector store have it.
        import pymilvus

        # It writes the texts of failed calls to the root logger; callers get the error.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        try:
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._client = pymilvus.MilvusClient(uri=self._uri, token=self._token, timeout=ANSWER_S)
            for name in self._call("list_collections"):
                if name.startswith(self._prefix):
                    self._call("load_collection", name)
                    if name != self._places:
                        self._dimensions[name] = int(name.rpartition("_")[2])
            if self._places not in self._call("list_collections"):
                self._create(self._places, 2, ())
        except Unavailable:
            self.close()
            raise
        except Exception as error:
            self.close()
            raise Unavailable(f"cannot open {self._uri}: {type(error).__name__}") from error

    def positions(self) -> dict[int, int]:
        rows = self._call(
            "query", self._places, filter='id != ""', output_fields=["id", "number"], limit=10_000
        )
        positions = {int(row["id"]): int(row["number"]) for row in rows}
        positions.pop(_NO_PARTITION, None)
        return positions

    def check_writes(self) -> None:
        self._remember({_NO_PARTITION: 0})

    def fold(
        self, passages: Sequence[Passage], erased: Sequence[str], positions: Mapping[int, int]
    ) -> None:
        by_collection: dict[str, list[dict[str, Any]]] = {}
        for each in passages:
            name = self._collection(each.model, len(each.vector) // 4)
            by_collection.setdefault(name, []).append(_row(each))
        for name, rows in by_collection.items():
            if name not in self._dimensions:
                dimensions = len(rows[0]["vector"])
                self._create(name, dimensions, ("scope", "store", "attachment"))
                self._dimensions[name] = dimensions
            for start in range(0, len(rows), BATCH):
                self._call("upsert", name, rows[start : start + BATCH])
        row_ids = [_id(key) for key in erased]
        for name in self._dimensions:
            # A row may have been written with another model, and an erased one with any.
            ids = row_ids + [
                row["id"]
                for collection, rows in by_collection.items()
                if collection != name
                for row in rows
            ]
            for start in range(0, len(ids), BATCH):
                self._call("delete", name, ids=ids[start : start + BATCH])
            if self._file is not None and (ids or name in by_collection):
                self._call("flush", name)
        if positions:
            self._remember(positions)

    def search(self, where: Where, model: str, vector: bytes, limit: int) -> list[Hit]:
        name = self._collection(model, len(vector) // 4)
        if name not in self._dimensions or not where.attachments:
            return []
        answers = self._call(
            "search",
            name,
            data=[_values(vector)],
            filter=_filter(where),
            limit=limit,
            output_fields=["attachment", "number", "text"],
        )
        return [
            Hit(
                hit["entity"]["attachment"],
                int(hit["entity"]["number"]),
                hit["entity"]["text"],
                float(hit["distance"]),
            )
            for hit in answers[0]
        ]

    def numbers(self, where: Where, model: str) -> set[int]:
        digest = self._model_prefix(model)
        names = [name for name in self._dimensions if name.startswith(digest)]
        return {int(row["number"]) for name in names for row in self._rows(name, where, "number")}

    def texts(self, where: Where) -> list[str]:
        texts = {
            int(row["number"]): row["text"]
            for name in self._dimensions
            for row in self._rows(name, where, "number", "text")
        }
        return [texts[number] for number in sorted(texts)]

    def close(self) -> None:
        client, self._client = self._client, None
        self._dimensions = {}
        if client is not None:
            client.close()

    @property
    def _places(self) -> str:
        return f"{self._prefix}_positions"

    def _remember(self, positions: Mapping[int, int]) -> None:
        rows = [
            {"id": str(partition), "number": offset, "vector": [0.0, 1.0]}
            for partition, offset in positions.items()
        ]
        self._call("upsert", self._places, rows)

    def _model_prefix(self, model: str) -> str:
        digest = hashlib.blake2b(model.encode(), digest_size=_SAFE_MODEL).hexdigest()
        return f"{self._prefix}_{digest}_"

    def _collection(self, model: str, dimensions: int) -> str:
        return f"{self._model_prefix(model)}{dimensions}"

    def _rows(self, name: str, where: Where, *fields: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._call(
            "query",
            name,
            filter=_filter(where),
            output_fields=list(fields),
            limit=contract.MAX_ROWS,
        )
        return rows

    def _create(self, name: str, dimensions: int, words: Sequence[str]) -> None:
        import pymilvus

        kinds = pymilvus.DataType
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", kinds.VARCHAR, max_length=_NAME_CHARS, is_primary=True)
        for each in words:
            schema.add_field(each, kinds.VARCHAR, max_length=_NAME_CHARS)
        if words:
            schema.add_field("text", kinds.VARCHAR, max_length=vector_stores.MAX_TEXT_BYTES)
        schema.add_field("number", kinds.INT64)
        schema.add_field("vector", kinds.FLOAT_VECTOR, dim=dimensions)
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="FLAT", metric_type="COSINE")
        self._call(
            "create_collection",
            name,
            schema=schema,
            index_params=index,
            consistency_level="Strong",  # of a server: written rows are found
        )
        self._call("load_collection", name)

    def _call(self, method: str, *args: Any, **keywords: Any) -> Any:
        if self._client is None:
            raise Unavailable("the vector database is not open")
        import pymilvus

        try:
            return getattr(self._client, method)(*args, **self._limits, **keywords)
        except pymilvus.MilvusException as error:
            # The message may quote a filter or a row.
            raise Unavailable(f"{method}: code {error.code}") from error


def _check_installed(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise NotInstalled(f"TAILRACE_VECTORS needs pymilvus and milvus-lite; {_INSTALL}")


def _id(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=20).hexdigest()


def _row(passage: Passage) -> dict[str, Any]:
    return {
        "id": _id(passage.key),
        "scope": passage.scope,
        "store": passage.store,
        "attachment": passage.attachment,
        "text": passage.text,
        "number": passage.number,
        "vector": _values(passage.vector),
    }


def _values(vector: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))


def _filter(where: Where) -> str:
    """Which rows a call may see. All words are made here or are digests; a word that could end its
    quotes is refused, because milvus-lite takes no parameters."""
    for word in (where.scope, where.store, *where.attachments):
        if not _WORD.match(word):
            raise ValueError("a word of a filter has other characters than an id")
    names = ",".join(f'"{name}"' for name in where.attachments)
    return f'scope == "{where.scope}" and store == "{where.store}" and attachment in [{names}]'
