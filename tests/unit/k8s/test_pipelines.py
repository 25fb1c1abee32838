"""The overlay with runners of a pipeline and the page for administrators: what its checks would not
let pass."""

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
    doc = m.resource(kind, name)
    assert doc is not None
    return doc


def acls(m: Manifests) -> list[Doc]:
    user = named(m, "KafkaUser", "tailrace-pipeline-reviews")
    docs: list[Doc] = user["spec"]["authorization"]["acls"]
    return docs


def page(m: Manifests) -> Doc:
    workload = m.workload("admin-page")
    assert workload is not None
    return workload.containers[0]


def page_rights(m: Manifests) -> list[Doc]:
    user = named(m, "KafkaUser", "tailrace-admin-page")
    docs: list[Doc] = user["spec"]["authorization"]["acls"]
    return docs


def told(m: Manifests, old: str, new: str) -> None:
    command = page(m)["command"]
    assert old in command
    command[command.index(old)] = new


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
    "the page may read records": (
        lambda m: page_rights(m)[0]["operations"].append("Read"),
        "topic shop.reviews: has Describe+Read, needs Describe",
    ),
    "the page may not see offsets": (
        lambda m: page_rights(m).pop(),
        "group tailrace.pipelines.reviews: has nothing, needs Describe",
    ),
    "the page sees another topic": (
        lambda m: page_rights(m)[0]["resource"].update(name="llm.usage"),
        "topic llm.usage: has Describe, needs nothing",
    ),
    "the page without its user": (
        lambda m: m.docs.remove(named(m, "KafkaUser", "tailrace-admin-page")),
        "is missing",
    ),
    "the page on the loopback": (
        lambda m: told(m, "--host=0.0.0.0", "--host=127.0.0.1"),
        "listens on 127.0.0.1:8090",
    ),
    "the page at another port": (
        lambda m: told(m, "--port=8090", "--port=8091"),
        "listens on 0.0.0.0:8091, sent to {'8090'}",
    ),
    "a folder without the page": (
        lambda m: told(m, "--page=/app/frontend/dist-admin", "--page=/app/frontend/admin"),
        "no image has a page at /app/frontend/admin",
    ),
    "a file that is not mounted": (
        lambda m: told(m, "/etc/tailrace/reviews/pipeline.yaml", "/etc/tailrace/other.yaml"),
        "/etc/tailrace/other.yaml is in no config map",
    ),
    "a pipeline that is not shown": (
        lambda m: page(m)["command"].remove("/etc/tailrace/reviews/pipeline.yaml"),
        "does not show the pipelines that run, ['reviews']",
    ),
    "a credential in the page's pod": (
        lambda m: page(m)["env"].append({"name": "TAILRACE_CREDENTIAL_FILE", "value": "/c"}),
        "unknown TAILRACE_CREDENTIAL_FILE",
    ),
    "a page that no gateway lets in": (
        lambda m: m.docs.remove(named(m, "NetworkPolicy", "gateway-from-admin-page")),
        "is needed and closed",
    ),
    "a page that all may reach": (
        lambda m: named(m, "NetworkPolicy", "admin-page")["spec"]["ingress"][0].pop("from"),
        "is open and should not be",
    ),
    "a page that Strimzi keeps out": (
        lambda m: named(m, "Kafka", "kafka")["spec"]["kafka"]["listeners"][0][
            "networkPolicyPeers"
        ].pop(),
        "lets in",
    ),
    "a page without TLS": (
        lambda m: named(m, "Ingress", "admin-page")["spec"].pop("tls"),
        "without TLS: ['admin.tailrace.example.com']",
    ),
    "a page without probes": (lambda m: page(m).pop("readinessProbe"), "no readinessProbe"),
    "a page as root": (
        lambda m: page(m)["securityContext"].update(runAsUser=0),
        "may run as root",
    ),
    "a page that writes": (
        lambda m: page(m)["securityContext"].update(readOnlyRootFilesystem=False),
        "its root file system is writable",
    ),
}


@pytest.mark.parametrize("name", list(BREAKS))
def test_a_planted_break_is_seen(name: str, rendered: Manifests) -> None:
    broken = copy.deepcopy(rendered)
    plant, words = BREAKS[name]
    plant(broken)
    found = [verdict.problem for _, verdict in validate.examine(broken) if verdict.problem]
    assert any(words in problem for problem in found), found
