"""Allowed connections: converts the policies to edges and compares these with one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from k8s.gate import admin_page, analytics
from k8s.gate.manifests import (
    STRIMZI_PODS,
    Check,
    Doc,
    Manifests,
    Verdict,
    selects,
    subject,
    verdict_on,
)

# From, to, port. A name without prefix is a pod of this product, `ns:` a namespace, `*` anywhere.
Edge = tuple[str, str, str]

_NS_LABEL = "kubernetes.io/metadata.name"
# Every intended connection (docs/operations.md, The gate). Probes come from the node itself and
# need no policy.
INTENDED: frozenset[Edge] = frozenset(
    {
        ("ns:ingress", "gateway", "8000"),
        ("ns:ingress", "push", "8001"),
        ("ns:keda", "kafka", "9093"),
        ("log-incarnation", "kafka", "9093"),
    }
    | {(service, "kafka", "9093") for service in ("gateway", "push", "worker", "archive")}
    | {(service, "redis", "6379") for service in ("gateway", "push", "worker")}
    | {(service, "redis", "6380") for service in ("gateway", "worker")}
    | {(service, "ns:postgres", "5432") for service in ("gateway", "push", "archive")}
    | {(service, "ns:monitoring", "4318") for service in ("gateway", "push", "worker", "archive")}
    | {("ns:monitoring", service, "9000") for service in ("gateway", "push", "worker", "archive")}
    | {("kafka", "kafka", port) for port in ("9090", "9091")}
    | {("ns:strimzi", "kafka", port) for port in ("9090", "9091", "8443")}
    | {
        ("kafka-exporter", "kafka", "9091"),
        ("entity-operator", "kafka", "9091"),
        ("ns:monitoring", "kafka-exporter", "9404"),
    }
    # The API server, which no selector can name. No pod that reads prompts may connect to it.
    | {("entity-operator", "*", port) for port in ("443", "6443")}
    | {
        (pod, "ns:kube-system", "53")
        for pod in (
            "gateway",
            "push",
            "worker",
            "archive",
            "log-incarnation",
            "kafka",
            "kafka-exporter",
            "entity-operator",
        )
    }
)


def _pods(m: Manifests) -> dict[str, Mapping[str, str]]:
    ours: dict[str, Mapping[str, str]] = {w.name: w.labels for w in m.workloads()}
    return ours | (STRIMZI_PODS if m.kind("Kafka") else {})


def _peers(pods: Mapping[str, Mapping[str, str]], peers: list[Doc] | None) -> set[str]:
    if not peers:
        return {"*"}
    names: set[str] = set()
    for peer in peers:
        if "ipBlock" in peer:
            names.add("*")
        elif "namespaceSelector" in peer:
            # Any other selector counts as everywhere.
            name = peer["namespaceSelector"].get("matchLabels", {}).get(_NS_LABEL)
            names.add(f"ns:{name}" if name else "*")
        else:
            names |= {
                pod for pod, labels in pods.items() if selects(peer["podSelector"], labels)
            } or {"?"}
    return names


def _ports(rule: Doc) -> set[str]:
    return {str(p.get("port", "any")) for p in rule.get("ports", [])} or {"any"}


def _half_edges(m: Manifests, direction: str) -> tuple[set[tuple[str, str, str]], set[str]]:
    """(pod, peer, port) for every rule of one direction, and the pods whose other traffic in that
    direction is denied."""
    pods = _pods(m)
    half_edges: set[tuple[str, str, str]] = set()
    closed_pods: set[str] = set()
    for policy in m.kind("NetworkPolicy"):
        spec = policy["spec"]
        if direction not in spec["policyTypes"]:
            continue
        pods_of_policy = [
            pod for pod, labels in pods.items() if selects(spec["podSelector"], labels)
        ]
        closed_pods |= set(pods_of_policy)
        for rule in spec.get(direction.lower(), []):
            peers = _peers(pods, rule.get("to" if direction == "Egress" else "from"))
            half_edges |= {
                (pod, peer, port)
                for pod in pods_of_policy
                for peer in peers
                for port in _ports(rule)
            }
    return half_edges, closed_pods


def edges(m: Manifests) -> set[Edge]:
    """The edges that the policies allow. Between two pods of this product both sides must allow it;
    for a peer outside, this product's side decides."""
    pods = set(_pods(m))
    out, egress_pods = _half_edges(m, "Egress")
    into, ingress_pods = _half_edges(m, "Ingress")
    out |= {(pod, "*", "any") for pod in pods - egress_pods}
    into |= {(pod, "*", "any") for pod in pods - ingress_pods}
    connections: set[Edge] = {(pod, peer, port) for pod, peer, port in out if peer not in pods}
    connections |= {(peer, pod, port) for pod, peer, port in into if peer not in pods}
    connections |= {(a, b, port) for a, b, port in out if (b, a, port) in into}
    return connections


def default_deny(m: Manifests) -> Iterator[Verdict]:
    policies: list[dict[str, Any]] = [
        p for p in m.kind("NetworkPolicy") if p["spec"]["podSelector"] == {}
    ]
    denies = [
        p
        for p in policies
        if set(p["spec"]["policyTypes"]) == {"Ingress", "Egress"}
        and not p["spec"].get("ingress")
        and not p["spec"].get("egress")
    ]
    yield verdict_on("namespace", denies, "no policy denies what the others do not allow")


def only_allowed(m: Manifests) -> Iterator[Verdict]:
    """Every allowed edge is intended, and every intended edge is allowed."""
    open_edges, pods = edges(m), set(_pods(m))
    runners = m.pipelines()
    runner_edges = {
        edge
        for name in runners
        for edge in (
            (name, "kafka", "9093"),
            (name, "gateway", "8000"),
            (name, "ns:kube-system", "53"),
            ("ns:monitoring", name, "9000"),
        )
    }
    required = {
        e
        for e in INTENDED | runner_edges | analytics.edges(m) | admin_page.edges(m)
        if all(end in pods or end.startswith(("ns:", "*")) for end in e[:2])
    }
    for source, target, port in sorted(open_edges | required):
        edge = (source, target, port)
        name = f"{source} → {target}:{port}"
        if edge in open_edges and edge in required:
            yield Verdict(name)
        else:
            yield Verdict(
                name, "is open and should not be" if edge in open_edges else "is needed and closed"
            )


def listener_peers(m: Manifests) -> Iterator[Verdict]:
    """Strimzi adds a policy of its own from the listener's peers, and policies add up. So the peers
    must be exactly the allowed ones."""
    required = {source for source, target, port in INTENDED if (target, port) == ("kafka", "9093")}
    required |= m.pipelines().keys() | analytics.users(m) | admin_page.users(m)
    for kafka in m.kind("Kafka"):
        for listener in kafka["spec"]["kafka"]["listeners"]:
            peers = _peers(_pods(m), listener.get("networkPolicyPeers"))
            yield verdict_on(
                f"{subject(kafka)} {listener['name']}",
                peers == required,
                f"lets in {sorted(peers)}, wanted {sorted(required)}",
            )


CHECKS: dict[str, Check] = {
    "default deny": default_deny,
    "network edges are the allowed ones": only_allowed,
    "Kafka's listener lets in whom the policies do": listener_peers,
}
