"""The needs of the jobs of analytics and their store: topics, rights, connections, variables. Other
checks import them, because analytics is only in one overlay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from k8s.gate.manifests import Doc, Manifests, Verdict, subject
from pipelines.analytics import cluster, jobs, store
from tailrace.protocol import topics

STORE: Final = "analytics-store"
PRINCIPALS: Final = ("tailrace-analytics", "tailrace-analytics-store")
VARIABLES: Final = {"TAILRACE_KAFKA"}
STORE_VARIABLES: Final = {"TAILRACE_KAFKA", store.VARIABLE}
# Created by hand: the password of ClickHouse's user, and the CA of its certificate.
SECRETS: Final = {STORE: {"password", "ca.crt"}}
_PORTS: Final = (
    *("taskmanager.data.port", "taskmanager.rpc.port", "jobmanager.rpc.port", "blob.server.port"),
    "metrics.internal.query-service.port",
)
_OPENED: Final = {"6121", "6122", "6123", "6124", "6125"}
Grants = dict[tuple[str, str], set[str]]


def deployments(m: Manifests) -> dict[str, Doc]:
    """The deployments of Flink, by name."""
    return {doc["metadata"]["name"]: doc for doc in m.kind("FlinkDeployment")}


def arguments(deployment: Doc) -> dict[str, str]:
    """The variables of the SQL that a deployment's job gets (`Main.java`)."""
    assignments = [each[1:] for each in deployment["spec"]["job"]["args"] if each.startswith(":")]
    return {name: value for name, _, value in (each.partition("=") for each in assignments)}


def job(deployment: Doc) -> str:
    """The name of its job: that of the SQL file that is not the tables."""
    files = [each for each in deployment["spec"]["job"]["args"] if each.endswith(".sql")]
    return str(files[-1]).rpartition("/")[2].removesuffix(".sql") if files else ""


def results(m: Manifests) -> list[str]:
    """The topics of results that the jobs write."""
    return [
        result.topic(arguments(deployment).get("prefix", ""))
        for deployment in deployments(m).values()
        for result in jobs.JOBS.get(job(deployment), ())
    ]


def grants(m: Manifests) -> dict[str, Grants]:
    """The rights of each principal of analytics (docs/analytics.md, On Kubernetes)."""
    flink_deployments = deployments(m)
    if not flink_deployments:
        return {}
    # The same records, retained for a week and for a year.
    flink: Grants = {("topic", name): {"Read"} for name in (topics.USAGE, topics.AUDIT)}
    flink["cluster", ""] = {"Describe"}
    for deployment in flink_deployments.values():
        variables = arguments(deployment)
        prefix, answers = variables.get("prefix", ""), variables.get("answers")
        flink["group", f"{prefix}-usage"] = {"Read"}
        flink["transactionalId", f"{prefix}.*"] = {"Describe", "Write"}
        if answers:
            flink["topic", answers] = {"Read"}
            flink["group", f"{prefix}-answers"] = {"Read"}
    flink |= {("topic", name): {"Write"} for name in results(m)}
    reading: Grants = {("topic", name): {"Read"} for name in results(m)}
    return dict(zip(PRINCIPALS, (flink, reading), strict=True))


def edges(m: Manifests) -> set[tuple[str, str, str]]:
    """The connections that analytics needs, as in `network.INTENDED`."""
    names = deployments(m).keys()
    connections = {(name, peer, port) for name in names for peer in names for port in _OPENED}
    for name in names:
        # High availability. They read the answers of a pipeline, no prompts.
        connections |= {(name, "*", port) for port in ("443", "6443")}
        connections.add(("ns:flink-operator", name, "8081"))
    if m.workload(STORE) is not None:
        connections.add((STORE, "ns:clickhouse", "8443"))
    for name in users(m):
        connections |= {(name, "kafka", "9093"), (name, "ns:kube-system", "53")}
    return connections


def users(m: Manifests) -> set[str]:
    """The workloads of analytics. All of them use Kafka."""
    return {*deployments(m), *({STORE} if m.workload(STORE) is not None else ())}


def account_problem(m: Manifests, account: str) -> str:
    """An account whose token is mounted may touch config maps, and nothing else."""
    roles = {
        binding["roleRef"]["name"]
        for binding in m.kind("RoleBinding", "ClusterRoleBinding")
        if any(each["name"] == account for each in binding["subjects"])
    }
    if m.kind("ClusterRoleBinding"):
        return "has rights in every namespace"
    account_roles = [role for role in m.kind("Role") if role["metadata"]["name"] in roles]
    rules = [rule for role in account_roles for rule in role["rules"]]
    if any(rule["apiGroups"] != [""] or rule["resources"] != ["configmaps"] for rule in rules):
        return f"account {account} may touch more than config maps"
    return "" if rules else f"account {account} may not touch config maps"


def deployment(m: Manifests) -> Iterator[Verdict]:
    """A job exists, gets the same prefix as the store, can continue from its state, and uses the
    ports that the policies open."""
    for deployment in deployments(m).values():
        yield Verdict(subject(deployment), _problem(deployment))


def _problem(deployment: Doc) -> str:
    spec, name = deployment["spec"], job(deployment)
    config: dict[str, str] = spec["flinkConfiguration"]
    if name not in jobs.JOBS:
        return f"{name!r} is no job"
    if spec["mode"] != "standalone":
        return "makes pods itself, and so could mount every secret"
    mount_paths = [
        mount["mountPath"]
        for container in spec["podTemplate"]["spec"]["containers"]
        for mount in container["volumeMounts"]
    ]
    for key in (
        "execution.checkpointing.dir",
        "execution.checkpointing.savepoint-dir",
        "high-availability.storageDir",
    ):
        place = config.get(key, "")
        volume = str(PurePosixPath(urlsplit(place).path).parent)
        if not place or (place.startswith("file:") and volume not in mount_paths):
            return f"{key} is {place!r}, which no volume holds"
    if config.get("high-availability.type") != "kubernetes":
        return "a JobManager that is started again would not know its job"
    if {config.get(key) for key in _PORTS} != _OPENED:
        return "its ports are not those of the network policy"
    if config.get("high-availability.jobmanager.port") != config["jobmanager.rpc.port"]:
        return "the port of a JobManager with high availability is drawn"
    opens = config.get("env.java.opts.all", "").split()
    return "" if set(opens) == set(cluster.OPENS) else "opens other packages than the local Flink"
