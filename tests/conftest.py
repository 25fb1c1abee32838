"""Fixtures every tier may ask for. A test that asks for no broker starts none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from scripts.test_tools import CHROMIUM, FIREFOX

if TYPE_CHECKING:
    from tests.support import local

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
    """What a test needs of the machine is said by its markers; what is not there is skipped with
    the reason."""
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


@pytest.fixture(scope="session")
def local_kafka() -> Iterator[local.LocalKafka]:
    """The run's one broker, topics applied. Tests that kill a broker start a `LocalKafka` of their
    own."""
    from tests.support import local

    with local.LocalKafka() as broker:
        broker.apply_topics()
        yield broker


@pytest.fixture(scope="session")
def kafka(local_kafka: local.LocalKafka) -> str:
    """Bootstrap address of a real broker with all topics, 8 partitions. Shared: use response ids of
    your own."""
    return local_kafka.bootstrap


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """URL of a real Redis. Shared: use keys of your own."""
    from tests.support import local

    with local.LocalRedis() as server:
        yield server.url
