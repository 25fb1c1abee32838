"""Outputs in an index of OpenSearch or Elasticsearch, by `_bulk`.

The source is the id and the output's offset the external version of a document. The server takes a
version only if it is higher than that of the document, so neither a repeated write nor a late one
changes anything; a plain index would let a second, slower sink put an older output in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote

import httpx
import msgspec

from pipelines.servers import Address, Refused, Unavailable
from pipelines.sinks.outputs import Output
from pipelines.sinks.target import Rejection, WriteResult

BODY_BYTES: Final = 4 << 20  # of a request, unless a single document is larger
# Errors of a document's content. Other errors (rights, no index, a closed one) concern all of them.
_OF_DOCUMENTS: Final = frozenset(
    {
        "document_parsing_exception",
        "illegal_argument_exception",
        "mapper_parsing_exception",
        "strict_dynamic_mapping_exception",
    }
)


class Index:
    """One index. The server makes it at the first document, unless an operator has made it."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._url = f"{address.url}{quote(address.name, safe='')}/_bulk"
        self._http = address.client()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def write(self, rows: Sequence[Output]) -> WriteResult:
        """See `target.Target`."""
        retries: list[Output] = []
        rejections: list[Rejection] = []
        for some, body in _requests(rows):
            for row, (status, kind) in zip(some, self._bulk(body, some), strict=True):
                if status in (200, 201, 409):  # 409: this version or a later one is there
                    continue
                if status == 429 or status >= 500:
                    retries.append(row)
                elif status == 400 and kind in _OF_DOCUMENTS:
                    rejections.append(Rejection(row, kind))
                else:
                    raise Refused(f"the index refuses documents: {status}, {kind}")
        return WriteResult(tuple(retries), tuple(rejections))

    def _bulk(self, body: bytes, rows: Sequence[Output]) -> list[tuple[int, str]]:
        """Status and error type of each document."""
        user = self._address.user
        login = httpx.BasicAuth(user, self._address.password()) if user else None
        try:
            answer = self._http.post(
                self._url,
                # The reason of an error quotes the document.
                params={"filter_path": "items.*._id,items.*.status,items.*.error.type"},
                content=body,
                headers={"content-type": "application/x-ndjson"},
                auth=login or httpx.USE_CLIENT_DEFAULT,
            )
        except httpx.TransportError as error:
            raise Unavailable(f"the server does not answer: {type(error).__name__}") from error
        if answer.status_code == 429 or answer.status_code >= 500:
            raise Unavailable(f"the server answered {answer.status_code}")
        if answer.status_code != httpx.codes.OK:
            raise Refused(f"the server answered {answer.status_code}")
        try:
            items = [item["index"] for item in msgspec.json.decode(answer.content)["items"]]
            statuses = [(i["_id"], int(i["status"]), i.get("error", {}).get("type")) for i in items]
        except (msgspec.MsgspecError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise Refused("the answer is not that of a bulk request") from error
        # The status of one document must not be used for another one.
        if [each[0] for each in statuses] != [row.source for row in rows]:
            raise Refused("the answer is of other documents")
        return [(status, str(kind)) for _, status, kind in statuses]


def _requests(rows: Sequence[Output]) -> Iterator[tuple[list[Output], bytes]]:
    """Rows and the body that writes them, of at most BODY_BYTES, or of one row."""
    some: list[Output] = []
    body = b""
    for row in rows:
        action = {"index": {"_id": row.source, "version": row.version, "version_type": "external"}}
        lines = b"%b\n%b\n" % (msgspec.json.encode(action), msgspec.json.encode(_document(row)))
        if some and len(body) + len(lines) > BODY_BYTES:
            yield some, body
            some, body = [], b""
        some.append(row)
        body += lines
    if some:
        yield some, body


def _document(row: Output) -> dict[str, Any]:
    """Members that say something; `timestamp` in ms, which a mapping takes as a date."""
    members = {name: value for name, value in row._asdict().items() if value not in ("", None)}
    del members["place"], members["version"]
    return members
