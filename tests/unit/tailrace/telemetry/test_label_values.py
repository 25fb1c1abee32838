"""Every metric label value that a runbook, an alert or a dashboard names is set somewhere in code.

Runbooks once named the stages ingress, decode, push and egress, and no code set them.
"""

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

from prometheus_client.metrics import MetricWrapperBase

from pipelines import metrics
from tailrace import telemetry
from tailrace.auth.principal import Reason
from tailrace.protocol.fold import STATUS_OF_REASON, Ignored

ROOT = Path(__file__).parents[4]
# Values that code takes from a closed set of words, by metric and label.
FROM_WORDS = {
    ("IGNORED_RECORDS", "reason"): {reason.value for reason in Ignored},
    ("CREDENTIAL_REFUSALS", "reason"): {reason.value for reason in Reason},
    ("POOL_FAILURES", "reason"): {"failed", "late", "stalled"},
    ("ROWS", "outcome"): {"answered", "skipped", "dead", "found"},
    ("RESPONSES_ENDED", "status"): {*STATUS_OF_REASON.values(), "cancelled"},
}
# Words of the runbooks that are no label value: members of lines, of files, of Kubernetes.
OTHER_WORDS = {"action", "runbook", "issuers", "gpu_memory_utilization"}
OTHER_WORDS |= {"fallback", "pools", "no_worker"}
# Reasons of waits and dead letters (docs/pipelines.md), and members of a pipeline's file.
OTHER_WORDS |= {"schema", "unreadable", "rate_limit_exceeded", "concurrency", "max_output_tokens"}


@cache
def values_set() -> dict[tuple[str, str], set[str]]:
    """(metric, label) -> values, as the code of the services sets them."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for key, words in FROM_WORDS.items():
        found[key] |= words
    for package in ("gateway", "push", "worker", "pipelines", "tailrace"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    for key, value in _of_call(node):
                        found[key].add(value)
    return found


def _of_call(call: ast.Call) -> Iterator[tuple[tuple[str, str], str]]:
    match call:
        case ast.Call(
            func=ast.Attribute(
                attr="labels", value=ast.Attribute(attr=metric) | ast.Name(id=metric)
            )
        ):
            for keyword in call.keywords:
                for value in _texts(keyword.value):
                    yield (metric, str(keyword.arg)), value
        case ast.Call(func=ast.Attribute(attr="stage_seconds"), args=[ast.Constant(str(stage))]):
            yield ("STAGE_SECONDS", "stage"), stage


def _texts(node: ast.expr) -> set[str]:
    return {
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }


def _names() -> dict[str, str]:
    """Metric name as in an expression, without suffix -> constant in tailrace.telemetry."""
    return {
        family.name: name
        for name, metric in {**vars(telemetry), **vars(metrics)}.items()
        if isinstance(metric, MetricWrapperBase)
        for family in metric.describe()
    }


def _expressions() -> list[str]:
    alerts = (ROOT / "k8s/base/monitoring.yaml").read_text()
    found = re.findall(r"expr: (.+)", alerts)
    for path in (ROOT / "k8s/base/dashboards").glob("*.json"):
        found += re.findall(r'"expr": ("(?:[^"\\]|\\.)*")', path.read_text())
    return [json.loads(each) if each.startswith('"') else each for each in found]


def unset(expression: str) -> list[str]:
    """Label values of this product's metrics in `expression` that no code sets."""
    names, missing = _names(), []
    for series, selector in re.findall(r"\b(tailrace_\w+?)\{([^}]*)\}", expression):
        metric = names[re.sub(r"_(total|bucket|sum|count)\Z", "", series)]
        for label, value in re.findall(r'(\w+)\s*=~?\s*"([^"]*)"', selector):
            known = values_set()[metric, label]
            missing += [f"{series} {label}={v}" for v in value.split("|") if v not in known]
    return missing


def test_every_label_value_in_an_alert_or_a_dashboard_is_set() -> None:
    expressions = _expressions()
    assert len(expressions) > 20
    assert [problem for each in expressions for problem in unset(each)] == []


def test_every_word_of_a_runbook_is_a_word_of_the_code() -> None:
    document = (ROOT / "docs/operations.md").read_text()
    runbooks = re.split(r"(?m)^## ", document.partition("## Alerts")[2])[0]
    named = set(re.findall(r"`([a-z_]+)`", runbooks))
    assert len(named) > 10
    known = {action.value for action in telemetry.Action} | OTHER_WORDS
    known |= {name.removeprefix("tailrace_") for name in _names()}
    known |= {value for values in values_set().values() for value in values}
    assert named - known == set()


def test_every_stage_is_observed() -> None:
    assert values_set()["STAGE_SECONDS", "stage"] == set(get_args(telemetry.Stage))


def test_an_unset_value_is_named() -> None:
    assert unset('rate(tailrace_ignored_records_total{reason=~"gap|lost"}[1m])') == [
        "tailrace_ignored_records_total reason=lost"
    ]
