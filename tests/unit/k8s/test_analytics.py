"""The overlay with Flink's jobs, the store of results, and their place on the page for
administrators: what the gate does not let pass."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from k8s import validate
from k8s.gate import analytics, render
from k8s.gate.manifests import Doc, Manifests
from pipelines.analytics import jobs, programs

Break = Callable[[Manifests], object]


@pytest.fixture(scope="module")
def rendered() -> Manifests:
    return render.render(render.HERE / "overlays" / "analytics")


def named(m: Manifests, kind: str, name: str) -> Doc:
    doc = m.resource(kind, name)
    assert doc is not None
    return doc


def usage(m: Manifests) -> Doc:
    spec: Doc = named(m, "FlinkDeployment", "analytics-usage")["spec"]
    return spec


def config(m: Manifests) -> dict[str, str]:
    settings: dict[str, str] = usage(m)["flinkConfiguration"]
    return settings


def template(m: Manifests) -> Any:
    return usage(m)["podTemplate"]["spec"]


def arguments(m: Manifests, old: str, new: str) -> None:
    spec = usage(m)["job"]
    assert old in spec["args"]
    spec["args"] = [new if each == old else each for each in spec["args"]]


def acls(m: Manifests) -> list[Doc]:
    docs: list[Doc] = named(m, "KafkaUser", "tailrace-analytics")["spec"]["authorization"]["acls"]
    return docs


def of(m: Manifests, kind: str, name: str | None) -> Doc:
    return next(
        acl
        for acl in acls(m)
        if (acl["resource"]["type"], acl["resource"].get("name")) == (kind, name)
    )


def page(m: Manifests) -> Doc:
    workload = m.workload("admin-page")
    assert workload is not None
    return workload.containers[0]


def page_store(m: Manifests) -> Doc:
    [entry] = [each for each in page(m)["env"] if each["name"] == "TAILRACE_ANALYTICS_STORE"]
    found: Doc = entry
    return found


def reads(m: Manifests, old: str, new: str) -> None:
    entry = page_store(m)
    assert old in entry["value"]
    entry["value"] = entry["value"].replace(old, new)


BREAKS: dict[str, tuple[Break, str]] = {
    "a misspelt field": (lambda m: usage(m)["job"].update(jarUri="x"), "jarUri"),
    "a number as a setting": (lambda m: config(m).update({"rest.port": 8081}), "not of type"),  # type: ignore[dict-item]
    "a misspelt field of the pod": (lambda m: template(m).update(volumez=[]), "volumez"),
    "a name with an underscore": (
        lambda m: named(m, "KafkaTopic", "analytics.usage-minutes")["metadata"].update(
            name="analytics.usage_minutes"
        ),
        "is no name of a resource",
    ),
    "a job that is none": (
        lambda m: arguments(m, "/opt/flink/sql/usage.sql", "/opt/flink/sql/use.sql"),
        "'use' is no job",
    ),
    "another prefix": (
        lambda m: arguments(m, ":prefix=analytics", ":prefix=figures"),
        "figures.usage_minutes: analytics needs it",
    ),
    "an image by tag": (lambda m: usage(m).update(image="analytics:1"), "not pinned by digest"),
    "Flink as root": (
        lambda m: template(m)["securityContext"].update(runAsUser=0, runAsNonRoot=False),
        "may run as root",
    ),
    "Flink makes pods": (lambda m: usage(m).update(mode="native"), "makes pods itself"),
    "a role for pods": (
        lambda m: named(m, "Role", "analytics")["rules"].append(
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
        ),
        "may touch more than config maps",
    ),
    "no role": (
        lambda m: m.docs.remove(named(m, "RoleBinding", "analytics")),
        "may not touch config maps",
    ),
    "no high availability": (
        lambda m: config(m).pop("high-availability.type"),
        "would not know its job",
    ),
    "checkpoints in the pod": (
        lambda m: config(m).update(
            {"execution.checkpointing.dir": "file:///elsewhere/checkpoints"}
        ),
        "which no volume holds",
    ),
    "a port that is drawn": (
        lambda m: config(m).update({"taskmanager.data.port": "0"}),
        "not those of the network policy",
    ),
    "a port that is drawn for high availability": (
        lambda m: config(m).pop("high-availability.jobmanager.port"),
        "is drawn",
    ),
    "without the password of its user": (
        lambda m: template(m)["volumes"][4]["secret"].update(secretName="issuers"),
        "connects as tailrace-analytics without that user's password",
    ),
    "it may write what it reads": (
        lambda m: of(m, "topic", "llm.usage")["operations"].append("Write"),
        "topic llm.usage: has Read+Write, needs Read",
    ),
    "without its transactional ids": (
        lambda m: acls(m).remove(of(m, "transactionalId", "analytics.")),
        "transactionalId analytics.*: has nothing",
    ),
    "it may change the cluster": (
        lambda m: of(m, "cluster", None)["operations"].append("Alter"),
        "has Alter+Describe",
    ),
    "the store may write results": (
        lambda m: named(m, "KafkaUser", "tailrace-analytics-store")["spec"]["authorization"][
            "acls"
        ][0]["operations"].append("Write"),
        "has Read+Write, needs Read",
    ),
    "results that are forgotten": (
        lambda m: named(m, "KafkaTopic", "analytics.sessions")["spec"]["config"].update(
            {"cleanup.policy": "delete"}
        ),
        "forgets results",
    ),
    "no way to Kafka": (
        lambda m: m.docs.remove(named(m, "NetworkPolicy", "kafka-from-analytics")),
        "is needed and closed",
    ),
    "the store may go anywhere": (
        lambda m: named(m, "NetworkPolicy", "analytics-store")["spec"]["egress"][0].pop("to"),
        "is open and should not be",
    ),
    "a setting that nothing reads": (
        lambda m: template(m)["containers"][0]["env"].append({"name": "X", "value": "1"}),
        "unknown X",
    ),
    "the page may change results": (
        lambda m: reads(m, "tailrace-reader@", "tailrace@"),
        "reads as tailrace, who may change results",
    ),
    "the page reads another database": (
        lambda m: reads(m, ":8443/tailrace", ":8443/other"),
        "reads clickhouse.clickhouse/other, the store fills clickhouse.clickhouse/tailrace",
    ),
    "the page has no store": (
        lambda m: page(m)["env"].remove(page_store(m)),
        "missing TAILRACE_ANALYTICS_STORE",
    ),
    "the page with a Secret that nothing makes": (
        lambda m: next(
            volume
            for volume in m.workload("admin-page").pod["volumes"]  # type: ignore[union-attr]
            if volume["name"] == "clickhouse"
        )["secret"].update(secretName="clickhouse-reader"),
        "nothing makes Secret clickhouse-reader",
    ),
    "no way from the page to ClickHouse": (
        lambda m: m.docs.remove(named(m, "NetworkPolicy", "admin-page-to-clickhouse")),
        "is needed and closed",
    ),
    "a volume that is not there": (
        lambda m: m.docs.remove(named(m, "PersistentVolumeClaim", "analytics-state")),
        "does not exist",
    ),
}


@pytest.mark.parametrize("name", list(BREAKS))
def test_a_planted_break_is_seen(name: str, rendered: Manifests) -> None:
    broken = copy.deepcopy(rendered)
    plant, words = BREAKS[name]
    plant(broken)
    found = [f"{v.subject}: {v.problem}" for _, v in validate.examine(broken) if v.problem]
    assert any(words in problem for problem in found), found


def test_every_job_is_deployed_once(rendered: Manifests) -> None:
    deployed = [analytics.job(each) for each in analytics.deployments(rendered).values()]
    assert sorted(deployed) == sorted(jobs.JOBS)


def test_jobs_and_store_have_one_prefix(rendered: Manifests) -> None:
    store = rendered.workload(analytics.STORE)
    assert store is not None
    said = {each["prefix"] for each in map(analytics.arguments, rendered.kind("FlinkDeployment"))}
    assert store.containers[0]["command"][-1] == f"--prefix={said.pop()}"
    assert not said


@pytest.mark.parametrize("name", jobs.JOBS)
def test_a_job_gets_every_variable_of_its_sql(name: str, rendered: Manifests) -> None:
    """A file with a variable that has no value is refused when the job starts."""
    sql = programs.HERE / "sql"
    text = "".join((sql / f"{each}.sql").read_text() for each in (jobs.TABLES, name))
    given = analytics.arguments(named(rendered, "FlinkDeployment", f"analytics-{name}"))
    assert set(re.findall(r"\$\{(\w+)\}", text)) == {*given, "kafka"}


def test_the_image_has_the_flink_that_the_checksums_name() -> None:
    text = (render.HERE.parent / "docker" / "analytics.Dockerfile").read_text()
    assert f"flink:{programs.FLINK}-java17@" in text
    [connector] = [jar for jar in programs.locked_sums() if "connector-kafka" in jar]
    assert f"/jars/{connector} " in text
