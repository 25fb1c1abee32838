"""The needs of the page for administrators: rights, connections, variables, and a command that fits
its pod. Other checks import them, because the page is only in some overlays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from k8s.gate import analytics
from k8s.gate.images import load
from k8s.gate.manifests import Doc, Manifests, Verdict, Workload
from pipelines import definition
from pipelines.analytics.store import VARIABLE

NAME: Final = "admin-page"
PRINCIPAL: Final = "tailrace-admin-page"
PORT: Final = "8090"
# Created by hand where results exist: of a read-only user of ClickHouse.
SECRETS: Final = {"analytics-reader": {"password", "ca.crt"}}


def users(m: Manifests) -> set[str]:
    """The workload, if it exists."""
    return {NAME} if m.workload(NAME) is not None else set()


def variables(m: Manifests) -> set[str]:
    """The variables that it requires. No credential: a gateway identifies callers."""
    return {"TAILRACE_KAFKA", "TAILRACE_URL"} | ({VARIABLE} if _has_results(m) else set())


def secrets(m: Manifests) -> dict[str, set[str]]:
    """The Secrets that are created by hand for it, and their keys."""
    return SECRETS if users(m) and _has_results(m) else {}


def grants(m: Manifests) -> dict[str, dict[tuple[str, str], set[str]]]:
    """The rights of its principal: offsets and no records (docs/pipelines.md, What Kafka has to
    allow)."""
    workload = m.workload(NAME)
    if workload is None:
        return {}
    by_resource: dict[tuple[str, str], set[str]] = {}
    for pipeline in _pipelines(m, workload).values():
        by_resource |= {
            ("topic", pipeline.input.topic): {"Describe"},
            ("group", pipeline.group): {"Describe"},
        }
    return {PRINCIPAL: by_resource}


def edges(m: Manifests) -> set[tuple[str, str, str]]:
    """The connections that it needs, as in `network.INTENDED`."""
    if not users(m):
        return set()
    connections = {
        ("ns:ingress", NAME, PORT),
        (NAME, "gateway", "8000"),
        (NAME, "kafka", "9093"),
        (NAME, "ns:kube-system", "53"),
    }
    return connections | ({(NAME, "ns:clickhouse", "8443")} if _has_results(m) else set())


def deployment(m: Manifests) -> Iterator[Verdict]:
    """It listens where its Service sends, shows every pipeline that runs, and finds its files."""
    workload = m.workload(NAME)
    if workload is not None:
        yield Verdict(workload.subject, _problem(m, workload, workload.containers[0]))


def _has_results(m: Manifests) -> bool:
    return m.workload(analytics.STORE) is not None


def _pipelines(m: Manifests, workload: Workload) -> dict[str, definition.Pipeline]:
    """The pipelines of its command, by file. A file that is in no config map is skipped."""
    places = {v["name"]: v["mountPath"] for v in workload.containers[0]["volumeMounts"]}
    files = {}
    for volume in workload.pod["volumes"]:
        source = m.resource("ConfigMap", volume.get("configMap", {}).get("name", ""))
        for name, text in (source or {}).get("data", {}).items():
            files[f"{places.get(volume['name'])}/{name}"] = text
    command = workload.containers[0]["command"]
    return {each: definition.parse(files[each]) for each in command if each in files}


def _problem(m: Manifests, workload: Workload, container: Doc) -> str:
    command: list[str] = container["command"]
    pairs = [each[2:].partition("=") for each in command if each.startswith("--")]
    options = {name: value for name, _, value in pairs}
    pipelines = _pipelines(m, workload)
    files = [each for each in command if each.endswith(".yaml")]
    if missing := [each for each in files if each not in pipelines]:
        return f"{missing[0]} is in no config map that it mounts"
    running = {pipeline.name for pipeline in m.pipelines().values()}
    if {pipeline.name for pipeline in pipelines.values()} != running:
        return f"does not show the pipelines that run, {sorted(running)}"
    ports = {str(p["containerPort"]) for p in container["ports"] if p["name"] == "http"}
    if options.get("host") != "0.0.0.0" or {options.get("port")} != ports or ports != {PORT}:  # noqa: S104 - inside a pod, behind policies
        return f"listens on {options.get('host')}:{options.get('port')}, sent to {ports}"
    copies = {each.rest.split(" ")[-1] for image in load() for each in image.all("COPY")}
    if options.get("page") not in copies:
        return f"no image has a page at {options.get('page')}"
    return _store_problem(m, workload, container) if _has_results(m) else ""


def _store_problem(m: Manifests, workload: Workload, container: Doc) -> str:
    """It reads the database that the store fills, as another user."""
    store = m.workload(analytics.STORE)
    assert store is not None
    store_url, reader_url = (
        urlsplit(m.config(each, each.containers[0]).get(VARIABLE) or "")
        for each in (store, workload)
    )
    if (store_url.hostname, store_url.port, store_url.path) != (
        reader_url.hostname,
        reader_url.port,
        reader_url.path,
    ):
        return (
            f"reads {reader_url.hostname}{reader_url.path}, "
            f"the store fills {store_url.hostname}{store_url.path}"
        )
    if store_url.username == reader_url.username:
        return f"reads as {reader_url.username}, who may change results"
    return ""
