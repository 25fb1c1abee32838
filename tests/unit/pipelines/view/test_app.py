"""The service's answers, with a gateway that knows one administrator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar, cast

import httpx
import pytest

from pipelines.view import plots
from pipelines.view.app import View
from pipelines.view.callers import Callers
from pipelines.view.plots import Range
from pipelines.view.status import Observations
from pipelines.view.watcher import Watcher
from tests.unit.pipelines.view.test_status import PIPELINE, look

NOW = 1_795_630_800.0  # 18:20 UTC
ADMIN = {"authorization": "Bearer admin"}


def gateway(request: httpx.Request) -> httpx.Response:
    scopes = {"Bearer admin": ["admin"], "Bearer user": ["create", "read"]}
    shown = request.headers.get("authorization", "")
    if shown not in scopes:
        return httpx.Response(401, json={"error": {"code": "invalid_api_key", "message": "no"}})
    return httpx.Response(200, json={"subject": "ann", "scopes": scopes[shown], "token": None})


class FakePlots:
    def __init__(self) -> None:
        self.asked: list[Range] = []
        self.error: Exception | None = None

    async def results_for(self, asked: Range) -> dict[str, Any]:
        self.asked.append(asked)
        if self.error:
            raise self.error
        return {"from": asked.since, "results": {}}


class FakeWatching:
    observations: ClassVar[dict[str, Observations]] = {
        "small": Observations((look(0, 0), look(10, 300)))
    }


@pytest.fixture
def results() -> FakePlots:
    return FakePlots()


@pytest.fixture
async def client(results: FakePlots) -> AsyncIterator[httpx.AsyncClient]:
    callers = Callers("http://gateway", transport=httpx.MockTransport(gateway))
    view = View(
        [PIPELINE],
        cast(Watcher, FakeWatching()),
        callers,
        cast(plots.Plots, results),
        clock=lambda: NOW,
    )
    transport = httpx.ASGITransport(view.application(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://view") as made:
        yield made
    await callers.close()


@pytest.mark.parametrize("path", ["/v1/pipelines", "/v1/analytics"])
async def test_only_an_administrator_sees_figures(
    path: str, client: httpx.AsyncClient, results: FakePlots
) -> None:
    for shown, status in (({}, 401), ("Bearer user", 403), ("Bearer x", 401), (ADMIN, 200)):
        headers = {"authorization": shown} if isinstance(shown, str) else shown
        answer = await client.get(path, headers=headers)
        assert answer.status_code == status
        assert answer.headers["cache-control"] == "no-store"
        if status != 200:
            assert answer.json()["error"]["code"] in ("invalid_api_key", "insufficient_scope")
            assert results.asked == []


async def test_pipelines_are_as_the_last_look_found_them(client: httpx.AsyncClient) -> None:
    told = (await client.get("/v1/pipelines", headers=ADMIN)).json()
    assert (told["object"], told["now"]) == ("list", NOW)
    [small] = told["data"]
    assert (small["name"], small["state"]) == ("small", "running")
    assert (small["progress"]["read"], small["progress"]["rows_per_s"]) == (300, 30.0)


@pytest.mark.parametrize(
    ("query", "since_min", "until_min"),
    [
        ("", -60, 0),
        ("?minutes=15", -15, 0),
        ("?from=2026-11-25T16:20:00Z&to=2026-11-25T16:50:00%2B00:00", -120, -90),
        ("?from=2026-11-25T18:00:00Z", -20, 0),
        ("?from=2026-11-25T19:10:00%2B01:00", -10, 0),
    ],
)
async def test_a_range_is_named_by_its_length_or_its_times(
    query: str, since_min: int, until_min: int, client: httpx.AsyncClient, results: FakePlots
) -> None:
    assert (await client.get(f"/v1/analytics{query}", headers=ADMIN)).status_code == 200
    [asked] = results.asked
    at = [round((each / 1000 - NOW) / 60) for each in (asked.since, asked.until)]
    assert at == [since_min, until_min]


@pytest.mark.parametrize(
    "query",
    [
        "minutes=0",
        "minutes=-5",
        "minutes=99999999",
        "minutes=1.5",
        "minutes=%D9%A3",
        "minutes=5&to=2026-11-25T16:30:00Z",
        "hours=1",
        "from=yesterday",
        "from=2026-11-25T16:00:00",
        "from=2026-11-26T16:00:00Z",
        "from=0001-01-01T00:00:00Z",
        "from=9999-12-31T22:00:00Z&to=9999-12-31T23:00:00Z",
    ],
)
async def test_other_ranges_are_refused(
    query: str, client: httpx.AsyncClient, results: FakePlots
) -> None:
    answer = await client.get(f"/v1/analytics?{query}", headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")
    assert results.asked == []


@pytest.mark.parametrize(
    ("error", "status", "code", "words"),
    [
        (plots.NoStore("It has not run."), 404, "no_store", "It has not run."),
        (plots.StoreBusy(), 503, "store_busy", "Another program"),
        (plots.StoreUnavailable("It is away."), 503, "store_unavailable", "It is away."),
        (RuntimeError("secret"), 500, "server_error", "The service failed"),
    ],
)
async def test_what_is_wrong_with_the_store_is_said(
    error: Exception,
    status: int,
    code: str,
    words: str,
    client: httpx.AsyncClient,
    results: FakePlots,
) -> None:
    results.error = error
    answer = await client.get("/v1/analytics", headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.json()["error"]["message"].startswith(words)


async def test_every_answer_has_the_security_headers(client: httpx.AsyncClient) -> None:
    for path, status in (("/health", 200), ("/v1/pipelines", 401), ("/none", 404)):
        answer = await client.get(path)
        assert answer.status_code == status
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert (await client.post("/v1/pipelines", headers=ADMIN)).status_code == 405
