"""Fixtures every tier may ask for. A test that asks for no broker starts none."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from scripts.test_tools import CHROMIUM, FIREFOX
from tests.support import scheduling

# Shared test classes: a failed assertion in them shows its values, like one in a test module.
pytest.register_assert_rewrite("tests.support.log_contract")

# A busy machine is no counterexample; a test that hangs is ended by its timeout.
hypothesis.settings.register_profile(
    "tailrace", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("tailrace")


NO_AUTHORITY = Path(__file__).parent / "support" / "no_authority.pem"


def _program(names: Sequence[str]) -> str | None:
    return next((found for name in names if (found := shutil.which(name))), None)


def _missing(marker: str) -> str | None:
    """Why tests with this marker cannot run here; None when they can."""
    from tailrace.local import install_engine, install_page, paths

    if marker == "engine":
        if not (paths.ENGINE_ENVIRONMENT / "bin" / "python").exists():
            return "the model engine is not installed (make install)"
        return (
            None
            if (paths.model() / "config.json").exists()
            else "the model is not there (make install)"
        )
    if marker == "browser":
        return None if _program(CHROMIUM) else "no Chromium (apt-get install chromium)"
    if marker == "firefox":
        return None if _program(FIREFOX) else "no Firefox (apt-get install firefox-esr)"
    if marker == "node":
        return None if install_page.node_path() else "no Node.js"
    return None if install_engine.has_gpu() else "no GPU"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first. What a test needs of the machine is said by its markers; what
    is not there is skipped with the reason."""
    items.sort(key=lambda item: scheduling.rank(item.nodeid))
    needs = {
        name
        for item in items
        for name in ("engine", "browser", "firefox", "node", "gpu")
        if item.get_closest_marker(name)
    }
    reasons = {name: reason for name in needs if (reason := _missing(name))}
    for item in items:
        for name, reason in reasons.items():
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The report of a failed test has the last lines of the services that run."""
    report = yield
    started = sys.modules.get("tests.support.gateway_process")
    if report.failed and started is not None:
        for process in sorted(started.STARTED, key=lambda each: each.name):
            if process.child.poll() is None:
                report.sections.append((f"log of {process.name}", process.tail(20)))
    return report


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium (for tests marked `browser`)."""
    found = _program(CHROMIUM)
    assert found, "a test that asks for Chromium carries the marker `browser`"
    return found


@pytest.fixture(scope="session")
def firefox() -> str:
    """Path of a Firefox (for tests marked `firefox`)."""
    found = _program(FIREFOX)
    assert found, "a test that asks for Firefox carries the marker `firefox`"
    return found


@pytest.fixture(scope="session", autouse=True)
def _scrubbed_environment() -> Iterator[None]:
    """A developer's own settings must not reach a test; `TAILRACE_TEST_…` are the tests' own
    switches. Nor must the certificate authorities that the machine trusts: to read them takes 50 ms
    of processor time for each HTTP client, and no server of a test has a certificate of theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(NO_AUTHORITY))
        for name in list(os.environ):
            if (
                name.startswith("TAILRACE_") and not name.startswith("TAILRACE_TEST_")
            ) or name.startswith("OTEL_"):
                patch.delenv(name)
        yield


# ---- Servers that the run's processes share ------------------------------------------------------


_SERVERS = pytest.StashKey[contextlib.ExitStack]()
_ADDRESSES = pytest.StashKey[dict[str, str]]()
_WITHOUT = ("tests/unit", "tests/model")  # no test below these asks for a server


def pytest_sessionstart(session: pytest.Session) -> None:
    """The controller of several processes starts the shared servers, unless it was asked for tests
    that need none."""
    config = session.config
    controls = config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")
    if not controls or all(argument.startswith(_WITHOUT) for argument in config.args):
        return
    from tests.support import shared_servers

    servers = config.stash[_SERVERS] = contextlib.ExitStack()
    config.stash[_ADDRESSES] = servers.enter_context(shared_servers.started())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the addresses to a worker."""
    node.workerinput["servers"] = node.config.stash.get(_ADDRESSES, None)


def pytest_unconfigure(config: pytest.Config) -> None:
    """The servers end after the last worker."""
    if (servers := config.stash.get(_SERVERS, None)) is not None:
        servers.close()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By file, as `tests/support/scheduling.py` says."""
    return scheduling.Scheduling(config, log)


def _worker(config: pytest.Config) -> dict[str, Any]:
    """What the controller gave this process; nothing in a run of one process."""
    given: dict[str, Any] = getattr(config, "workerinput", {})
    return given


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Iterator[str]:
    """Bootstrap address of a real broker with all topics, 8 partitions. Other tests use it at the
    same time: use response ids, pools and topics of your own."""
    if servers := _worker(request.config).get("servers"):
        yield servers["kafka"]
        return
    from tests.support import local

    with local.LocalKafka() as broker:
        broker.apply_topics()
        yield broker.bootstrap


@pytest.fixture(scope="session")
def redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a real Redis: a database of this process. Shared by its tests: use keys of your
    own."""
    if servers := (worker := _worker(request.config)).get("servers"):
        from tests.support import shared_servers

        yield shared_servers.redis_of(servers["redis"], worker["workerid"])
        return
    from tests.support import local

    with local.LocalRedis() as server:
        yield server.url


@pytest.fixture(scope="session")
def postgres_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a real PostgreSQL, for `postgres.new_database`. Skips where it is not installed."""
    from tests.support import postgres

    servers = _worker(request.config).get("servers")
    if servers and servers["postgres"]:
        yield servers["postgres"]
        return
    if not postgres.installed():
        pytest.skip("PostgreSQL is NOT tested: it is not installed (make test)")
    with postgres.LocalPostgres() as server:
        yield server.url


@pytest.fixture(scope="session")
def process_name(request: pytest.FixtureRequest) -> str:
    """`gw0`, `gw1`, ... for names on the shared broker that two processes must not both use."""
    return str(_worker(request.config).get("workerid", "gw0"))
