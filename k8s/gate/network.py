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
    judged,
    selects,
    subject,
)

# From, to, port. A name without prefix is a pod of this product, `ns:` a namespace, `*` anywhere.
Edge = tuple[str, str, str]

_NS_LABEL = "kubernetes.io/metadata.name"
# Every intended connection (docs/operations.md, The gate). Probes come from the node itself and
# need no policy.
ALLOWED: frozenset[Edge] = frozenset(
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
    # The API server, which no selector can name. Nothing that sees a prompt may do this.
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
            # Anything but one namespace by name is as good as anywhere.
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
    """(pod, peer, port) for every rule of one direction, and the pods whose other traffic of that
    direction is refused."""
    pods = _pods(m)
    found: set[tuple[str, str, str]] = set()
    closed: set[str] = set()
    for policy in m.kind("NetworkPolicy"):
        spec = policy["spec"]
        if direction not in spec["policyTypes"]:
            continue
        chosen = [pod for pod, labels in pods.items() if selects(spec["podSelector"], labels)]
        closed |= set(chosen)
        for rule in spec.get(direction.lower(), []):
            peers = _peers(pods, rule.get("to" if direction == "Egress" else "from"))
            found |= {
                (pod, peer, port) for pod in chosen for peer in peers for port in _ports(rule)
            }
    return found, closed


def edges(m: Manifests) -> set[Edge]:
    """The edges that the policies allow. Between two pods of this product both sides must allow it;
    for a peer outside, this product's side decides."""
    pods = set(_pods(m))
    out, out_closed = _half_edges(m, "Egress")
    into, into_closed = _half_edges(m, "Ingress")
    out |= {(pod, "*", "any") for pod in pods - out_closed}
    into |= {(pod, "*", "any") for pod in pods - into_closed}
    found: set[Edge] = {(pod, peer, port) for pod, peer, port in out if peer not in pods}
    found |= {(peer, pod, port) for pod, peer, port in into if peer not in pods}
    found |= {(a, b, port) for a, b, port in out if (b, a, port) in into}
    return found


def default_deny(m: Manifests) -> Iterator[Verdict]:
    closed: list[dict[str, Any]] = [
        p for p in m.kind("NetworkPolicy") if p["spec"]["podSelector"] == {}
    ]
    denies = [
        p
        for p in closed
        if set(p["spec"]["policyTypes"]) == {"Ingress", "Egress"}
        and not p["spec"].get("ingress")
        and not p["spec"].get("egress")
    ]
    yield judged("namespace", denies, "no policy denies what the others do not allow")


def only_allowed(m: Manifests) -> Iterator[Verdict]:
    """Every allowed edge is intended, and every intended edge is allowed."""
    found, pods = edges(m), set(_pods(m))
    runners = m.pipelines()
    of_runners = {
        edge
        for name in runners
        for edge in (
            (name, "kafka", "9093"),
            (name, "gateway", "8000"),
            (name, "ns:kube-system", "53"),
            ("ns:monitoring", name, "9000"),
        )
    }
    wanted = {
        e
        for e in ALLOWED | of_runners | analytics.edges(m) | admin_page.edges(m)
        if all(end in pods or end.startswith(("ns:", "*")) for end in e[:2])
    }
    for source, target, port in sorted(found | wanted):
        edge = (source, target, port)
        name = f"{source} → {target}:{port}"
        if edge in found and edge in wanted:
            yield Verdict(name)
        else:
            yield Verdict(
                name, "is open and should not be" if edge in found else "is needed and closed"
            )


def listener_peers(m: Manifests) -> Iterator[Verdict]:
    """Strimzi adds a policy of its own from the listener's peers, and policies add up. So the peers
    must be exactly the allowed ones."""
    wanted = {source for source, target, port in ALLOWED if (target, port) == ("kafka", "9093")}
    wanted |= m.pipelines().keys() | analytics.users(m) | admin_page.users(m)
    for kafka in m.kind("Kafka"):
        for listener in kafka["spec"]["kafka"]["listeners"]:
            given = _peers(_pods(m), listener.get("networkPolicyPeers"))
            yield judged(
                f"{subject(kafka)} {listener['name']}",
                given == wanted,
                f"lets in {sorted(given)}, wanted {sorted(wanted)}",
            )


CHECKS: dict[str, Check] = {
    "default deny": default_deny,
    "network edges are the allowed ones": only_allowed,
    "Kafka's listener lets in whom the policies do": listener_peers,
}
