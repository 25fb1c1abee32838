"""Dockerfiles: each planted mistake is found by the check that is there for it."""

from __future__ import annotations

import pytest

from k8s.gate import images

GOOD = """
# a comment \\
ARG PYTHON_DIGEST
FROM docker.io/library/python:3.11-slim@${PYTHON_DIGEST} AS packages
COPY locks/requirements.lock ./locks/
RUN uv pip install --require-hashes \\
    # in between
    -r locks/requirements.lock
FROM docker.io/library/python:3.11-slim@${PYTHON_DIGEST}
COPY --from=packages /venv /venv
USER 10001:10001
CMD ["python", "-m", "gateway"]
"""
IGNORED = ["# closed", "*", "!locks/*.lock"]

PLANTED = [
    ("Dockerfile instructions", "USER 10001:10001", "USR 10001:10001"),
    ("base images pinned by digest", "python:3.11-slim@${PYTHON_DIGEST} AS", "python:3.11-slim AS"),
    ("base images pinned by digest", "ARG PYTHON_DIGEST", "ARG PYTHON_DIGEST=sha256:0"),
    (
        "base images pinned by digest",
        "python:3.11-slim@${PYTHON_DIGEST} AS",
        "python:latest@${PYTHON_DIGEST} AS",
    ),
    (
        "nothing fetched without a checksum",
        "COPY locks",
        "ADD https://example.com/x.tar /x\nCOPY locks",
    ),
    (
        "nothing fetched without a checksum",
        "RUN uv",
        "RUN curl -sf https://example.com/install.sh | sh && uv",
    ),
    ("packages by lock file and checksum", "--require-hashes", ""),
    ("packages by lock file and checksum", "-r locks/requirements.lock", "-r locks/other.lock"),
    ("packages by lock file and checksum", "CMD", "RUN npm install\nCMD"),
    ("packages by lock file and checksum", "CMD", "RUN npm ci\nCMD"),
    ("packages by lock file and checksum", "CMD", "RUN mvn -C dependency:copy-dependencies\nCMD"),
    ("image ends as a numeric non-root user", "USER 10001:10001\n", ""),
    ("image ends as a numeric non-root user", "USER 10001:10001", "USER app"),
    ("image ends as a numeric non-root user", "USER 10001:10001", "USER 10001:10001\nUSER 0:0"),
    ("processes in exec form", '["python", "-m", "gateway"]', "python -m gateway"),
    ("copied sources exist", "COPY locks/requirements.lock", "COPY locks/nothing.lock"),
    ("copied sources exist", "COPY locks/requirements.lock", "COPY pyproject.toml"),
]


def judged(text: str, ignored: list[str]) -> set[str]:
    image = images.Image("x.Dockerfile", images.parse(text), ignored)
    return {name for name, check in images.CHECKS.items() if check(image)}


def test_a_good_file_passes() -> None:
    assert judged(GOOD, IGNORED) == set()


@pytest.mark.parametrize(("check", "old", "new"), PLANTED)
def test_a_planted_mistake_is_found(check: str, old: str, new: str) -> None:
    assert old in GOOD
    assert check in judged(GOOD.replace(old, new, 1), IGNORED)


def test_an_open_build_context_is_found() -> None:
    assert judged(GOOD, ["!locks/*.lock"]) == {"build context closed"}


def test_every_check_is_shown_to_be_able_to_fail() -> None:
    assert {check for check, _, _ in PLANTED} | {"build context closed"} == images.CHECKS.keys()


@pytest.mark.parametrize("image", images.load(), ids=lambda i: i.name)
def test_what_is_in_the_tree_is_right(image: images.Image) -> None:
    assert {
        name: problem for name, check in images.CHECKS.items() if (problem := check(image))
    } == {}


def test_all_images_are_looked_at() -> None:
    names = ["analytics.Dockerfile", "service.Dockerfile", "worker.Dockerfile"]
    assert [i.name for i in images.load()] == names
