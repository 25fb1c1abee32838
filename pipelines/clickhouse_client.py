"""Statements for ClickHouse, over its HTTP interface."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import httpx

from pipelines.servers import ANSWER_S, Address, Refused, Unavailable

_NONE: Final[Mapping[str, Any]] = {}
_SETTINGS: Final = {
    # The status is that of the whole statement: the response is sent when it has ended.
    "wait_end_of_query": "1",
    "async_insert": "0",
    # An unknown member is a defect of this module, and would be ignored silently.
    "input_format_skip_unknown_fields": "0",
    "output_format_json_quote_64bit_integers": "0",
}

FIRST_MS: Final = -2_208_988_800_000  # 1900-01-01
LAST_MS: Final = 10_413_791_999_999  # the end of 2299


class Client:
    """One database on a server. All calls block, and raise `Unavailable` or `Refused`."""

    def __init__(self, address: Address, *, answer_s: float = ANSWER_S) -> None:
        """`answer_s`: time limit of a response."""
        self._address = address
        self._http = address.client(answer_s)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ask(
        self,
        query: str,
        parameters: Mapping[str, int] = _NONE,
        settings: Mapping[str, str] = _NONE,
    ) -> list[tuple[Any, ...]]:
        """The rows of a query. `parameters`: of its `{name:Type}`; `settings`: of the server, for
        this query."""
        arguments = {f"param_{name}": str(value) for name, value in parameters.items()}
        text = self.run(f"{query} FORMAT JSONCompactEachRow", options={**settings, **arguments})
        # Not `splitlines`: values have other line breaks in them, such as U+0085.
        return [tuple(json.loads(line)) for line in text.split("\n") if line]

    def insert(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Insert rows, each with the values of its columns. After an error some may be there."""
        body = "\n".join(json.dumps(row) for row in rows)
        self.run(f'INSERT INTO "{table}" FORMAT JSONEachRow', body.encode())

    def run(self, query: str, body: bytes = b"", options: Mapping[str, str] = _NONE) -> str:
        """The answer to a statement; `body` is the data of an insert, `options` are more parameters
        of the request."""
        try:
            answer = self._http.post(
                self._address.url,
                params={"database": self._address.name, "query": query, **_SETTINGS, **options},
                content=body,
                headers=self._login(),
            )
        except httpx.TransportError as error:
            raise Unavailable(f"ClickHouse does not answer: {type(error).__name__}") from error
        if answer.status_code == httpx.codes.OK:
            return answer.text
        # Its text may quote rows.
        code = answer.headers.get("X-ClickHouse-Exception-Code", "none")
        text = f"ClickHouse answered {answer.status_code}, code {code}"
        kind = Refused if answer.status_code in (400, 401, 403, 404) else Unavailable
        raise kind(text, int(code) if code.isdigit() else 0)

    def _login(self) -> dict[str, str]:
        if not self._address.user:
            return {}
        login = {"X-ClickHouse-User": self._address.user}
        if self._address.password_file:
            login["X-ClickHouse-Key"] = self._address.password()
        return login


def moment(ms: int) -> str:
    """A time in the zone of the columns; the next one that DateTime64 has, where it has none. A
    number would be read as seconds or ms, by its size."""
    ms = min(max(ms, FIRST_MS), LAST_MS)
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
