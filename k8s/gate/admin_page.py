"""What the page for administrators needs: rights, connections, variables, and a command that fits
its pod. Other checks ask here, as the page is only in some overlays."""

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
# Made by hand, where there are results: of a user of ClickHouse that reads.
SECRETS: Final = {"analytics-reader": {"password", "ca.crt"}}


def users(m: Manifests) -> set[str]:
    """The workload, if it is there."""
    return {NAME} if m.workload(NAME) is not None else set()


def variables(m: Manifests) -> set[str]:
    """Those that it has to be given. Without credential: a gateway says who a caller is."""
    return {"TAILRACE_KAFKA", "TAILRACE_URL"} | ({VARIABLE} if _has_results(m) else set())


def secrets(m: Manifests) -> dict[str, set[str]]:
    """The Secrets that are made by hand for it, and their keys."""
    return SECRETS if users(m) and _has_results(m) else {}


def grants(m: Manifests) -> dict[str, dict[tuple[str, str], set[str]]]:
    """What its principal may do: see offsets and no records (docs/pipelines.md, What Kafka has to
    allow)."""
    workload = m.workload(NAME)
    if workload is None:
        return {}
    found: dict[tuple[str, str], set[str]] = {}
    for told in _shown(m, workload).values():
        found |= {("topic", told.input.topic): {"Describe"}, ("group", told.group): {"Describe"}}
    return {PRINCIPAL: found}


def edges(m: Manifests) -> set[tuple[str, str, str]]:
    """The connections that it needs, as in `network.ALLOWED`."""
    if not users(m):
        return set()
    found = {
        ("ns:ingress", NAME, PORT),
        (NAME, "gateway", "8000"),
        (NAME, "kafka", "9093"),
        (NAME, "ns:kube-system", "53"),
    }
    return found | ({(NAME, "ns:clickhouse", "8443")} if _has_results(m) else set())


def deployed(m: Manifests) -> Iterator[Verdict]:
    """It listens where its Service sends, shows every pipeline that runs, and finds its files."""
    workload = m.workload(NAME)
    if workload is not None:
        yield Verdict(workload.subject, _problem(m, workload, workload.containers[0]))


def _has_results(m: Manifests) -> bool:
    return m.workload(analytics.STORE) is not None


def _shown(m: Manifests, workload: Workload) -> dict[str, definition.Pipeline]:
    """The pipelines of its command, by the file. A file that no config map holds is left out."""
    places = {v["name"]: v["mountPath"] for v in workload.containers[0]["volumeMounts"]}
    files = {}
    for volume in workload.pod["volumes"]:
        source = m.named("ConfigMap", volume.get("configMap", {}).get("name", ""))
        for name, text in (source or {}).get("data", {}).items():
            files[f"{places.get(volume['name'])}/{name}"] = text
    told = workload.containers[0]["command"]
    return {each: definition.decoded(files[each]) for each in told if each in files}


def _problem(m: Manifests, workload: Workload, container: Doc) -> str:
    command: list[str] = container["command"]
    said = [each[2:].partition("=") for each in command if each.startswith("--")]
    options = {name: value for name, _, value in said}
    shown = _shown(m, workload)
    named = [each for each in command if each.endswith(".yaml")]
    if lost := [each for each in named if each not in shown]:
        return f"{lost[0]} is in no config map that it mounts"
    running = {told.name for told in m.pipelines().values()}
    if {told.name for told in shown.values()} != running:
        return f"does not show the pipelines that run, {sorted(running)}"
    ports = {str(p["containerPort"]) for p in container["ports"] if p["name"] == "http"}
    if options.get("host") != "0.0.0.0" or {options.get("port")} != ports or ports != {PORT}:  # noqa: S104 - inside a pod, behind policies
        return f"listens on {options.get('host')}:{options.get('port')}, sent to {ports}"
    copied = {each.rest.split(" ")[-1] for image in load() for each in image.all("COPY")}
    if options.get("page") not in copied:
        return f"no image has a page at {options.get('page')}"
    return _store_problem(m, workload, container) if _has_results(m) else ""


def _store_problem(m: Manifests, workload: Workload, container: Doc) -> str:
    """It reads the database that the store fills, as another user."""
    store = m.workload(analytics.STORE)
    assert store is not None
    filled, read = (
        urlsplit(m.config(each, each.containers[0]).get(VARIABLE) or "")
        for each in (store, workload)
    )
    if (filled.hostname, filled.port, filled.path) != (read.hostname, read.port, read.path):
        return f"reads {read.hostname}{read.path}, the store fills {filled.hostname}{filled.path}"
    if filled.username == read.username:
        return f"reads as {read.username}, who may change results"
    return ""
