"""Requirements for every pod: security settings, limits, probes, spreading, and time to drain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from k8s.gate import analytics
from k8s.gate.manifests import (
    Check,
    Doc,
    Manifests,
    Verdict,
    Workload,
    selects,
    subject,
    verdict_on,
)

OURS = ("gateway", "push", "worker", "archive")
# Seconds between SIGTERM and SIGKILL at least (docs/operations.md, Draining).
GRACE_S = {"gateway": 45, "push": 60, "worker": 75}
PRE_STOP_S = 5
MARGIN_S = 5  # to flush, commit and exit after the drain's own deadline


def _containers(m: Manifests) -> Iterator[tuple[str, Workload, Doc]]:
    for workload in m.workloads():
        for container in workload.containers:
            yield f"{workload.subject}/{container['name']}", workload, container


def _effective(workload: Workload, container: Doc, field: str) -> Any:
    """A container's own security setting, else its pod's."""
    own: Doc = container.get("securityContext", {})
    pods: Doc = workload.pod.get("securityContext", {})
    return own.get(field, pods.get(field))


def restricted(m: Manifests) -> Iterator[Verdict]:
    """Each pod meets the level `restricted` of Pod Security, which the namespace enforces, and
    names its user."""
    for name, workload, container in _containers(m):
        yield Verdict(name, _restriction(workload, container))


def _restriction(workload: Workload, container: Doc) -> str:
    context = container.get("securityContext", {})
    user, flag = (_effective(workload, container, f) for f in ("runAsUser", "runAsNonRoot"))
    if flag is not True or not user:
        return f"may run as root (runAsNonRoot {flag}, runAsUser {user})"
    capabilities = context.get("capabilities", {})
    if capabilities.get("drop") != ["ALL"] or capabilities.get("add"):
        return f"capabilities are not all dropped: {capabilities}"
    if context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
        return "privileges can be gained"
    profile = (_effective(workload, container, "seccompProfile") or {}).get("type")
    if profile != "RuntimeDefault":
        return f"seccomp profile {profile}"
    shared = [k for k in ("hostNetwork", "hostPID", "hostIPC") if workload.pod.get(k)]
    shared += [f"hostPath {v['name']}" for v in workload.pod.get("volumes", []) if "hostPath" in v]
    shared += [f"host port {p['hostPort']}" for p in container.get("ports", []) if "hostPort" in p]
    return f"reaches into its host: {', '.join(shared)}" if shared else ""


def read_only_root(m: Manifests) -> Iterator[Verdict]:
    for name, workload, container in _containers(m):
        if container.get("securityContext", {}).get("readOnlyRootFilesystem") is not True:
            yield Verdict(name, "its root file system is writable")
            continue
        memory = {
            v["name"]
            for v in workload.pod.get("volumes", [])
            if v.get("emptyDir", {}).get("medium") == "Memory"
        }
        tmp = {v["name"] for v in container.get("volumeMounts", []) if v["mountPath"] == "/tmp"}  # noqa: S108 - a mount path in a pod
        yield verdict_on(name, tmp & memory, "has no tmpfs at /tmp")


def no_account_token(m: Manifests) -> Iterator[Verdict]:
    for workload in m.workloads():
        account = m.resource("ServiceAccount", workload.pod.get("serviceAccountName", "default"))
        if account is None:
            yield Verdict(workload.subject, "has no service account of its own")
        elif workload.name in analytics.deployments(m):
            problem = analytics.account_problem(m, workload.pod["serviceAccountName"])
            yield Verdict(workload.subject, problem)
        elif (
            workload.pod.get("automountServiceAccountToken") is not False
            or account.get("automountServiceAccountToken") is not False
        ):
            yield Verdict(workload.subject, "mounts a service account token")
        else:
            yield Verdict(workload.subject)


def bounded(m: Manifests) -> Iterator[Verdict]:
    for name, workload, container in _containers(m):
        resources = container.get("resources", {})
        missing = [
            f"{k}.{r}"
            for k in ("requests", "limits")
            for r in ("cpu", "memory")
            if r not in resources.get(k, {})
        ]
        disks = [
            v["name"]
            for v in workload.pod.get("volumes", [])
            if "emptyDir" in v and "sizeLimit" not in v["emptyDir"]
        ]
        yield verdict_on(name, not (missing or disks), f"unbounded: {', '.join(missing + disks)}")


def pinned_images(m: Manifests) -> Iterator[Verdict]:
    """By digest; the development overlay builds its own images and names them by tag."""
    for name, _, container in _containers(m):
        reference, _, digest = container["image"].partition("@")
        if m.target == "overlays/dev" and reference.startswith("tailrace/"):
            yield verdict_on(
                name,
                ":" in reference and not reference.endswith(":latest"),
                f"image {reference} has no tag",
            )
        else:
            has_digest = digest.startswith("sha256:") and len(digest) == 71
            yield verdict_on(
                name, has_digest, f"image {container['image']} is not pinned by digest"
            )


def mounts(m: Manifests) -> Iterator[Verdict]:
    for workload in m.workloads():
        volumes = {v["name"] for v in workload.pod.get("volumes", [])}
        volumes |= {
            t["metadata"]["name"] for t in workload.doc["spec"].get("volumeClaimTemplates", [])
        }
        mount_names = {v["name"] for c in workload.containers for v in c.get("volumeMounts", [])}
        odd = volumes ^ mount_names
        yield verdict_on(
            workload.subject, not odd, f"volumes and mounts do not match: {', '.join(sorted(odd))}"
        )


def probes(m: Manifests) -> Iterator[Verdict]:
    """Each probe asks a port that exists. Probes of the services ask the admin port, never the one
    that clients reach."""
    for name, workload, container in _containers(m):
        # The store has no port. Flink's operator probes the JobManager, which monitors the others.
        if workload.doc["kind"] == "Job" or workload.name in analytics.users(m):
            continue
        yield Verdict(name, _probe_problem(m, workload, container))


def _probe_problem(m: Manifests, workload: Workload, container: Doc) -> str:
    paths = {"readinessProbe": "/ready", "livenessProbe": "/health"}
    ports = {p["name"]: p["containerPort"] for p in container.get("ports", [])}
    for kind in ("startupProbe", *paths):
        probe = container.get(kind)
        if probe is None:
            if kind in paths or workload.name in OURS:
                return f"no {kind}"
            continue
        action = probe.get("httpGet") or probe.get("tcpSocket")
        if action and action["port"] not in ports:
            return f"{kind} asks port {action['port']!r}, which the container does not have"
        if workload.name in OURS:
            http_get = probe.get("httpGet", {})
            # A start is complete when the process answers; a worker's, when its model is loaded.
            if http_get.get("port") != "admin" or http_get.get("path") not in (
                {paths[kind]} if kind in paths else {"/health", "/ready"}
            ):
                return f"{kind} asks {http_get}"
    admin = m.config(workload, container).get("TAILRACE_ADMIN_PORT")
    if workload.name in OURS and str(ports.get("admin")) != admin:
        return f"admin port {ports.get('admin')}, but TAILRACE_ADMIN_PORT is {admin}"
    return ""


def drain(m: Manifests) -> Iterator[Verdict]:
    """The grace period covers the pause before SIGTERM and the longest drain after it."""
    for name, least in GRACE_S.items():
        workload = m.workload(name)
        if workload is None:
            yield Verdict(name, "is not there")
            continue
        settings, grace = m.settings(name), workload.pod.get("terminationGracePeriodSeconds", 30)
        pause = (
            workload.containers[0]
            .get("lifecycle", {})
            .get("preStop", {})
            .get("sleep", {})
            .get("seconds", 0)
        )
        taking = (
            pause
            + int(settings.get("TAILRACE_ACCEPT_MS") or 0) / 1000
            + int(settings.get("TAILRACE_DRAIN_S") or 0)
        )
        if name != "worker" and pause != PRE_STOP_S:
            yield Verdict(
                workload.subject,
                f"preStop sleeps {pause} s: load balancers still send after SIGTERM",
            )
        else:
            least_grace = max(least, taking + MARGIN_S)
            yield verdict_on(
                workload.subject,
                grace >= least_grace,
                f"is killed after {grace} s, needs {least_grace:.0f} s to drain",
            )


def spread(m: Manifests) -> Iterator[Verdict]:
    """Pods spread over zones and nodes, by selectors that match the pod itself. Each has one
    disruption budget."""
    for name in OURS:
        workload = m.workload(name)
        if workload is None:
            continue
        yield Verdict(workload.subject, _spread_problem(m, workload))


def _spread_problem(m: Manifests, workload: Workload) -> str:
    zones = [c["labelSelector"] for c in workload.pod.get("topologySpreadConstraints", [])]
    anti = workload.pod.get("affinity", {}).get("podAntiAffinity", {})
    terms = [
        t["podAffinityTerm"]
        for t in anti.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    ]
    terms += anti.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    selectors = zones + [t["labelSelector"] for t in terms]
    if not zones or not terms:
        return "is not spread over zones and nodes"
    if not all(selects(s, workload.labels) for s in selectors):
        return "is spread by labels that its pods do not carry"
    budgets = [
        subject(b)
        for b in m.kind("PodDisruptionBudget")
        if selects(b["spec"]["selector"], workload.labels)
    ]
    return "" if len(budgets) == 1 else f"has {len(budgets)} disruption budgets"


def shared_memory(m: Manifests) -> Iterator[Verdict]:
    workload = m.workload("worker")
    if workload is None:
        return
    memory = {
        v["name"]
        for v in workload.pod["volumes"]
        if v.get("emptyDir", {}).get("medium") == "Memory"
    }
    mount_names = {
        v["name"]
        for v in workload.containers[0]["volumeMounts"]
        if v["mountPath"] == "/dev/shm"  # noqa: S108 - a mount of the pod
    }
    yield verdict_on(
        workload.subject,
        mount_names & memory,
        "engine processes share 64 MiB: no memory volume at /dev/shm",
    )


def accelerator(m: Manifests) -> Iterator[Verdict]:
    """A pod that runs vLLM asks for a GPU, and only such a pod."""
    for name, workload, container in _containers(m):
        engine = m.config(workload, container).get("TAILRACE_ENGINE")
        gpus = [
            r
            for r in container.get("resources", {}).get("limits", {})
            if r.startswith("nvidia.com/")
        ]
        if (engine == "vllm") != bool(gpus):
            yield Verdict(name, f"engine {engine} with {gpus or 'no GPU'}")
        else:
            yield Verdict(name)


CHECKS: dict[str, Check] = {
    "pods are restricted": restricted,
    "root file systems are read-only, /tmp is a tmpfs": read_only_root,
    "no service-account token": no_account_token,
    "resources bounded": bounded,
    "images by digest": pinned_images,
    "volumes and mounts match": mounts,
    "probes ask ports that exist": probes,
    "time to drain": drain,
    "spread, with a disruption budget": spread,
    "shared memory for the engine": shared_memory,
    "GPU where the engine needs one": accelerator,
}
