"""Monitors, alerts and dashboards name only metrics, labels and buckets that exist in
tailrace/telemetry/metrics.py and pipelines/metrics.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from prometheus_client.metrics import MetricWrapperBase

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
from pipelines import metrics as of_pipelines
from tailrace import telemetry

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
# Series of other programs. Every other name in an expression is one of this product.
_FOREIGN = re.compile(
    r"(kafka_topic_partition_under_replicated_partition|kafka_consumergroup_lag|DCGM_FI_DEV_[A-Z_]+|up)\Z"
)
_SCRAPED = {
    "le",
    "namespace",
    "pod",
    "job",
    "instance",
    "app_kubernetes_io_name",
}  # labels that no metric declares itself
_OF_OTHERS = {"consumergroup", "topic", "partition", "gpu"}
_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
# Required alerts, by words that their expressions must contain (docs/operations.md, Alerts).
REQUIRED_ALERTS = {
    "first token > 250 ms over 5 min": ("tailrace_first_token_seconds_bucket[5m]", "> 0.25"),
    "first token > 200 ms on average over 1 min": ("tailrace_first_token_seconds_sum[1m]", "> 0.2"),
    "seconds of work ahead": (
        "tailrace_backlog_tokens",
        "/ sum by (pool) (tailrace_drain_tokens_per_second)",
    ),
    "GPU memory > 90 %": ("DCGM_FI_DEV_FB_USED", "> 0.9"),
    "error rate > 0.1 %": ("tailrace_responses_ended_total", "> 0.001"),
}


def _metrics() -> dict[str, object]:
    return {**vars(telemetry), **vars(of_pipelines)}


@cache
def series() -> dict[str, tuple[set[str], tuple[float, ...]]]:
    """Every series the services expose: its labels, and a histogram's bounds."""
    by_name: dict[str, tuple[set[str], tuple[float, ...]]] = {}
    for metric in _metrics().values():
        if isinstance(metric, MetricWrapperBase):
            bounds = tuple(getattr(metric, "_upper_bounds", ())) or tuple(
                metric._kwargs.get("buckets", ())
            )
            for suffix in _SUFFIXES[str(metric._type)]:
                by_name[metric._name + suffix] = (set(metric._labelnames), bounds)
    return by_name


@cache
def series_with_data() -> frozenset[str]:
    """Series that some service sets. A metric that is only defined has no series, and its alert
    never fires."""
    here = OPERATIONS.parents[1]
    sources = [
        f.read_text()
        for folder in ("gateway", "push", "worker", "pipelines", "tailrace")
        for f in (here / folder).rglob("*.py")
    ]
    names = set()
    for name, metric in _metrics().items():
        if isinstance(metric, MetricWrapperBase) and any(
            re.search(rf"\b{name}\.(?!_)", text) for text in sources
        ):
            names |= {metric._name + suffix for suffix in _SUFFIXES[str(metric._type)]}
    return frozenset(names)


def silent(expression: str) -> str:
    """A problem if the expression names a metric of this product that no service sets."""
    names = set(re.findall(r"\btailrace_\w+", re.sub(r'"[^"]*"', "", expression)))
    return next(
        (f"no code sets {name}" for name in sorted(names & series().keys() - series_with_data())),
        "",
    )


def expression_problem(expression: str) -> str:
    """Names, labels, buckets and brackets of one PromQL expression; not its meaning."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    if any(bare.count(a) != bare.count(b) for a, b in ("()", "[]", "{}")):
        return "brackets do not match"
    if bare.count(" by ") != len(re.findall(r" by \([a-z_, ]+\)", bare)):
        return "`by` without labels"
    outside = re.sub(
        r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring|group_left)\s*\([^)]*\)", " ", bare
    )
    metrics = [
        w
        for w in re.findall(r"[A-Za-z_:][\w:]*(?!\w*\()", outside)
        if not re.search(rf"\b{re.escape(w)}\s*\(", outside)
    ]
    metrics = [w for w in metrics if w not in {"by", "or", "and", "unless", "bool", "sum", "max"}]
    unknown = [w for w in metrics if w not in series() and not _FOREIGN.match(w)]
    if unknown or not metrics:
        return f"no service exposes {', '.join(unknown) or 'anything in it'}"
    return _label_problem(bare, metrics) or _bucket_problem(expression)


def _label_problem(bare: str, metrics: list[str]) -> str:
    labels = {label for w in metrics if w in series() for label in series()[w][0]} | _SCRAPED
    labels |= _OF_OTHERS if any(_FOREIGN.match(w) for w in metrics) else set()
    names = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", bare))
    names |= {
        label.strip()
        for group in re.findall(r"\bby\s*\(([^)]*)\)", bare)
        for label in group.split(",")
    }
    odd = sorted(names - labels)
    return f"no label {', '.join(odd)}" if odd else ""


def _bucket_problem(expression: str) -> str:
    """A quantile's threshold is a bucket bound; between two bounds Prometheus only interpolates."""
    quantile = re.search(r"(\w+)_bucket\[.*>\s*([\d.]+)\s*$", expression)
    if quantile and float(quantile[2]) not in series()[f"{quantile[1]}_bucket"][1]:
        return f"{quantile[2]} is not the bound of a bucket"
    return ""


def _alerts(m: Manifests) -> Iterator[tuple[Doc, Doc]]:
    for doc in m.kind("PrometheusRule"):
        for group in doc["spec"]["groups"]:
            for rule in group["rules"]:
                yield doc, rule


def scraped(m: Manifests) -> Iterator[Verdict]:
    """Each monitor finds pods that have its port, and each service is found."""
    ports = {
        w.name: (w.labels, {p["name"] for c in w.containers for p in c.get("ports", [])})
        for w in m.workloads()
    }
    ports |= {
        name: (labels, {"tcp-prometheus"} if name == "kafka-exporter" else set())
        for name, labels in STRIMZI_PODS.items()
    }
    scraped_pods: set[str] = set()
    for monitor in m.kind("PodMonitor"):
        targets = {
            name: has
            for name, (labels, has) in ports.items()
            if selects(monitor["spec"]["selector"], labels)
        }
        endpoint_ports = {e["port"] for e in monitor["spec"]["podMetricsEndpoints"]}
        lacking = sorted(name for name, has in targets.items() if not endpoint_ports <= has)
        scraped_pods |= targets.keys() - set(lacking)
        problem = (
            f"{', '.join(lacking)} has no port {', '.join(endpoint_ports)}"
            if lacking
            else ""
            if targets
            else "selects no pod"
        )
        yield Verdict(subject(monitor), problem)
    for name in ("gateway", "push", "worker", "archive", "kafka-exporter", *m.pipelines()):
        yield verdict_on(name, name in scraped_pods, "is not scraped")


def alerts(m: Manifests) -> Iterator[Verdict]:
    """Each alert has an expression over existing metrics, a severity, and a runbook heading in the
    operations document."""
    headings = _anchors()
    names: set[str] = set()
    for doc, rule in _alerts(m):
        name, notes = str(rule.get("alert", rule.get("record", ""))), rule.get("annotations", {})
        problem = expression_problem(rule["expr"]) or silent(rule["expr"])
        if not problem and rule.get("labels", {}).get("severity") not in {"warning", "critical"}:
            problem = "has no severity"
        if not problem and (not notes.get("summary") or notes.get("runbook") not in headings):
            problem = f"runbook {notes.get('runbook')} is no heading of docs/operations.md"
        if not problem and name in names:
            problem = "is there twice"
        names.add(name)
        yield Verdict(f"{subject(doc)} {name}", problem)


@cache
def _anchors() -> frozenset[str]:
    lines = OPERATIONS.read_text().splitlines() if OPERATIONS.exists() else []
    return frozenset(
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).strip().replace(" ", "-")
        for line in lines
        if line.startswith("#")
    )


def required_alerts(m: Manifests) -> Iterator[Verdict]:
    expressions = [rule["expr"] for _, rule in _alerts(m)]
    for what, words in REQUIRED_ALERTS.items():
        yield verdict_on(
            what, any(all(w in e for w in words) for e in expressions), "no alert for it"
        )


def triggers(m: Manifests) -> Iterator[Verdict]:
    """A trigger whose query has no series would scale to nothing."""
    for scaled in m.kind("ScaledObject"):
        for trigger in scaled["spec"]["triggers"]:
            if trigger["type"] == "prometheus":
                query = trigger["metadata"]["query"]
                yield Verdict(
                    f"{subject(scaled)} {trigger['name']}",
                    expression_problem(query) or silent(query),
                )


def _panels(dashboard: Any) -> Iterator[Any]:
    for panel in dashboard.get("panels", []):
        yield panel
        yield from _panels(panel)


def dashboards(m: Manifests) -> Iterator[Verdict]:
    for config in m.kind("ConfigMap"):
        if not config["metadata"].get("labels", {}).get("grafana_dashboard"):
            continue
        for file, text in config["data"].items():
            try:
                dashboard = json.loads(text)
            except json.JSONDecodeError as error:
                yield Verdict(file, f"is no JSON: {error}")
                continue
            ids = [p.get("id") for p in _panels(dashboard)]
            yield verdict_on(
                f"{file} ids",
                len(ids) == len(set(ids)) and dashboard.get("uid"),
                "panel ids or uid missing or doubled",
            )
            for panel in _panels(dashboard):
                for target in panel.get("targets", []):
                    expression = re.sub(r"\$__rate_interval", "5m", target["expr"])
                    yield Verdict(f"{file} {panel['title']}", expression_problem(expression))


CHECKS: dict[str, Check] = {
    "metrics are scraped": scraped,
    "alerts ask for what exists and say what to do": alerts,
    "alerts that were asked for": required_alerts,
    "autoscaler queries ask for what exists": triggers,
    "dashboards show what exists": dashboards,
}
