"""The admin page in a real browser, beside a pipeline that runs on a real broker: it shows the
counts of the topics and the rows of the store."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright import sync_api

from bench.browser import ARGUMENTS
from pipelines import definition, samples
from pipelines.analytics import embedded, jobs, results, twins
from pipelines.examples import data
from tailrace import log
from tailrace.local import paths, ports
from tailrace.protocol import topics
from tests.pipelines import trial
from tests.support import accessibility, waiting
from tests.support import gateway_process as gp

pytestmark = [pytest.mark.nightly, pytest.mark.browser, pytest.mark.timeout(180)]

ROWS = 40
# Others use the same broker, and the page shows what is in it.
NAME = f"view-{os.urandom(4).hex()}"
SUBJECT = f"{NAME}-rows"


def aside(work: Any) -> Any:
    """The browser has a loop in the test's thread."""
    with futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


class Parts:
    """The programs of the test, on one broker."""

    def __init__(self, folder: Path, kafka: str, gateway: gp.Gateway) -> None:
        self.folder = folder
        self.kafka = kafka
        self.gateway = gateway
        self.port = ports.free_port()
        self.store = folder / "results.duckdb"
        told: dict[str, Any] = {
            name: {"topic": f"{NAME}.{name}"}
            for name in ("input", "output", "alert", "dead_letters")
        }
        told["alert"]["when"] = 'answer.sentiment == "negative"'
        self.file = trial.pipeline_file(folder, NAME, trial.SCRIPTED, **told)
        self.pipeline = definition.parse(self.file.read_bytes())
        self._running: list[subprocess.Popen[bytes]] = []
        (folder / "credential").write_text(gateway.keys.token(SUBJECT))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, command: str, *options: str) -> subprocess.Popen[bytes]:
        """One of the commands of pipelines, on the test's file."""
        environ = {
            **os.environ,
            "TAILRACE_KAFKA": self.kafka,
            "TAILRACE_URL": self.gateway.url,
            "TAILRACE_CREDENTIAL_FILE": str(self.folder / "credential"),
        }
        with (self.folder / f"{command}.log").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "pipelines", command, str(self.file), *options],
                cwd=paths.ROOT,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        self._running.append(process)
        return process

    def serve(self) -> subprocess.Popen[bytes]:
        """The view, once it answers."""
        options = ("--port", str(self.port), "--store", str(self.store), "--input-price", "2")
        process = self.start("serve", *options)

        def up() -> bool:
            assert process.poll() is None, (self.folder / "serve.log").read_text()
            try:
                return httpx.get(f"{self.url}/health").status_code == 200
            except httpx.ConnectError:
                return False

        waiting.eventually_blocking(up, "the view answers", within_s=60)
        return process

    def close(self) -> None:
        for process in self._running:
            process.terminate()
        assert [process.wait(30) for process in self._running] == [0] * len(self._running)

    def fold(self) -> None:
        """Analytics of this test's responses, as Flink would have them, into the store."""
        read = aside(results.read(self.kafka, topics.USAGE))
        bills = [b for b in twins.bills(read) if b.usage_record.owner.subject == SUBJECT]
        made = embedded.Store(self.store)
        for result, rows in (
            (jobs.USAGE_MINUTES, twins.usage_minutes(bills)),
            (jobs.REQUEST_MINUTES, twins.request_minutes(bills)),
            (jobs.LATENCY_MINUTES, twins.latency_minutes(bills)),
            (jobs.SESSIONS, twins.sessions(bills, jobs.GAP_S)),
        ):
            changes = [results.Change(0, at, *row) for at, row in enumerate(rows.items())]
            made.fold(result, f"a.{result.name}", 0, changes, log.Position(len(changes)))
        made.close()


@pytest.fixture
def parts(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Parts]:
    keys = gp.Keys.make(tmp_path)
    pool = NAME
    aside(log.apply_topics(kafka, (pool,), partitions=8, replication=1))
    with (
        gp.worker(tmp_path, kafka, redis_url, pool),
        gp.gateway(tmp_path, kafka, redis_url, pool, keys) as gateway,
    ):
        made = Parts(tmp_path, kafka, gateway)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def page(chromium: str) -> Iterator[sync_api.Page]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        made = browser.new_page(timezone_id="UTC")
        made.set_default_timeout(30_000)
        sync_api.expect.set_options(timeout=30_000)
        yield made
        browser.close()


def sign_in(page: sync_api.Page, credential: str) -> None:
    page.fill("dialog[open] textarea", credential)
    page.click("dialog[open] .primary")


def table(page: sync_api.Page, plot: str) -> list[list[str]]:
    """Time in ms and figures of a plot's table, as they are read."""
    rows = page.locator(f"#plot-{plot} tbody tr").all()
    return [
        [row.get_attribute("data-time") or "", *row.locator("td").all_inner_texts()] for row in rows
    ]


def test_the_page_shows_what_topics_and_store_have(parts: Parts, page: sync_api.Page) -> None:
    pipeline, keys = parts.pipeline, parts.gateway.keys
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    screens = accessibility.Screens(page)
    aside(log.create_topics(parts.kafka, [pipeline.input.topic, *pipeline.outputs], partitions=2))
    generated = data.GENERATORS["reviews"](ROWS, 4)
    aside(samples.write(parts.kafka, pipeline.input.topic, generated))
    view = parts.serve()
    page.goto(parts.url)

    # A user without the right is told so, and asked for another credential.
    page.locator("dialog[open] textarea").wait_for()
    screens.look("signed out")
    sign_in(page, keys.token("ann"))
    refused = page.locator("#pipelines .trouble")
    sync_api.expect(refused).to_contain_text("does not have the scope `admin`")
    assert page.locator("tr[data-name]").count() == 0
    screens.look("refused")
    refused.get_by_role("button").click()
    sign_in(page, keys.token("root", scopes=["admin"]))

    # Before a runner runs; and analytics that never ran.
    row = page.locator(f'tr[data-name="{NAME}"]')
    sync_api.expect(row.locator(".state")).to_contain_text(f"0 of {ROWS} rows, 0 %")
    sync_api.expect(page.locator("#analytics .trouble")).to_contain_text("have not run yet")
    screens.look("pipelines, and no store")
    parts.start("run")
    sync_api.expect(row.locator(".state")).to_contain_text(f"{ROWS} of {ROWS} rows, 100 %")
    sync_api.expect(row).to_have_attribute("data-state", "done")
    figures = {
        name: row.locator(f'[data-title="{name}"]').inner_text()
        for name in ("Answered", "Dead", "Alerts", "Skipped", "Lag")
    }
    answered, dead, alerts = (
        len(aside(trial.consumed(parts.kafka, topic)))
        for topic in (f"{NAME}.output", f"{NAME}.dead_letters", f"{NAME}.alert")
    )
    assert answered > ROWS / 2
    assert figures == {
        "Answered": str(answered),
        "Dead": str(dead),
        "Alerts": str(alerts),
        "Skipped": str(ROWS - answered - dead),
        "Lag": "0",
    }

    # The plots' figures are the store's.
    embedded.Store(parts.store).close()
    page.select_option("#range", "360")
    sync_api.expect(page.locator("#plot-rate .nothing")).to_be_visible()
    screens.look("a store without results")
    parts.fold()
    page.select_option("#range", "15")
    for plot in ("input", "rate"):
        page.locator(f"#plot-{plot} svg").wait_for()
        page.locator(f"#plot-{plot} summary").click()
    kept = embedded.Store(parts.store)
    usage = kept.ask(
        "SELECT epoch_ms(minute), sum(input_tokens), count(DISTINCT model) FROM usage_minutes "
        "GROUP BY 1 ORDER BY 1 DESC"
    )
    requests = kept.ask(
        "SELECT epoch_ms(minute), peak FROM request_minutes WHERE responses > 0 ORDER BY 1 DESC"
    )
    kept.close()
    assert usage
    assert {models for _, _, models in usage} == {1}
    screens.look("plots and tables")
    assert table(page, "input") == [[str(time), f"{tokens:,}"] for time, tokens, _ in usage]
    assert [(r[0], r[2]) for r in table(page, "rate")] == [(str(t), f"{p:,}") for t, p in requests]

    # Behind TLS a browser names another host. The cookie is of this host and for TLS alone, and a
    # page of another origin has no use of it.
    at = "admin.tailrace.example"
    asked = {"host": at, "origin": f"https://{at}", "sec-fetch-site": "same-origin"}
    with httpx.Client(base_url=parts.url, headers=asked) as browser:
        given = {"credential": keys.token("root", scopes=["admin"])}
        begun = browser.post("/v1/session", json=given)
        session = begun.headers["set-cookie"]
        assert session.startswith("__Host-tailrace=")
        assert {"Secure", "HttpOnly", "Path=/", "SameSite=strict"} <= set(session.split("; "))
        cookie = {"cookie": session.partition(";")[0]}
        assert browser.get("/v1/pipelines", headers=cookie).status_code == 200
        for other in ({"origin": "https://elsewhere.example"}, {"sec-fetch-site": "cross-site"}):
            answer = browser.get("/v1/pipelines", headers={**cookie, **other})
            assert answer.status_code == 403, answer.text

    # A session that is over takes the figures; a service that is away leaves them.
    page.context.clear_cookies()
    sync_api.expect(page.locator("dialog[open]")).to_be_visible()
    assert page.locator("tr[data-name]").count() == 0
    sign_in(page, keys.token("root", scopes=["admin"]))
    sync_api.expect(row.locator('[data-title="Answered"]')).to_have_text(str(answered))
    view.terminate()
    assert view.wait(30) == 0
    sync_api.expect(refused).to_contain_text("cannot be reached")
    sync_api.expect(row.locator('[data-title="Answered"]')).to_have_text(str(answered))
    screens.look("a service that is away")
    screens.check()
    assert complaints == []
