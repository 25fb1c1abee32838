"""The overlay with runners of a pipeline: what its checks would not let pass."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from k8s import validate
from k8s.gate import render
from k8s.gate.manifests import Doc, Manifests

Break = Callable[[Manifests], object]


@pytest.fixture(scope="module")
def rendered() -> Manifests:
    return render.render(render.HERE / "overlays" / "pipelines")


def named(m: Manifests, kind: str, name: str) -> Doc:
    found = m.named(kind, name)
    assert found is not None
    return found


def acls(m: Manifests) -> list[Doc]:
    user = named(m, "KafkaUser", "tailrace-pipeline-reviews")
    found: list[Doc] = user["spec"]["authorization"]["acls"]
    return found


def other_file(m: Manifests, old: str, new: str) -> None:
    [config] = [
        c for c in m.kind("ConfigMap") if c["metadata"]["name"].startswith("pipeline-reviews")
    ]
    assert old in config["data"]["pipeline.yaml"]
    config["data"]["pipeline.yaml"] = config["data"]["pipeline.yaml"].replace(old, new)


BREAKS: dict[str, tuple[Break, str]] = {
    "it may read what it alerts": (
        lambda m: acls(m)[2]["operations"].append("Read"),
        "has Read+Write, needs Write",
    ),
    "without its transactional ids": (lambda m: acls(m).pop(), "has nothing, needs Describe+Write"),
    "transactional ids of others": (
        lambda m: acls(m)[-1]["resource"].update(name="tailrace.pipelines."),
        "tailrace.pipelines.reviews.*: has nothing",
    ),
    "another topic in the file": (
        lambda m: other_file(m, "topic: shop.reviews.judged", "topic: judged"),
        "a pipeline needs it",
    ),
    "one replica": (
        lambda m: named(m, "KafkaTopic", "shop.reviews.dead")["spec"].update(replicas=1),
        "1 replicas on 3 brokers",
    ),
    "no way to the gateway": (
        lambda m: m.docs.remove(named(m, "NetworkPolicy", "gateway-from-pipelines")),
        "is needed and closed",
    ),
    "no metrics": (lambda m: m.docs.remove(named(m, "PodMonitor", "pipelines")), "is not scraped"),
}


@pytest.mark.parametrize("name", list(BREAKS))
def test_a_planted_break_is_seen(name: str, rendered: Manifests) -> None:
    broken = copy.deepcopy(rendered)
    plant, words = BREAKS[name]
    plant(broken)
    found = [verdict.problem for _, verdict in validate.examine(broken) if verdict.problem]
    assert any(words in problem for problem in found), found
