"""What every pod needs: security settings, limits, probes, spreading, and time to drain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from k8s.gate import analytics
from k8s.gate.manifests import Check, Doc, Manifests, Verdict, Workload, selects, subject

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


def non_root(m: Manifests) -> Iterator[Verdict]:
    for name, workload, container in _containers(m):
        user, flag = (
            _effective(workload, container, "runAsUser"),
            _effective(workload, container, "runAsNonRoot"),
        )
        yield Verdict(
            name,
            ""
            if flag is True and user
            else f"may run as root (runAsNonRoot {flag}, runAsUser {user})",
        )


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
        yield Verdict(name, "" if tmp & memory else "has no tmpfs at /tmp")


def no_privileges(m: Manifests) -> Iterator[Verdict]:
    for name, _, container in _containers(m):
        context = container.get("securityContext", {})
        capabilities = context.get("capabilities", {})
        if capabilities.get("drop") != ["ALL"] or capabilities.get("add"):
            yield Verdict(name, f"capabilities are not all dropped: {capabilities}")
        elif context.get("allowPrivilegeEscalation") is not False or context.get("privileged"):
            yield Verdict(name, "privileges can be gained")
        else:
            yield Verdict(name)


def seccomp(m: Manifests) -> Iterator[Verdict]:
    for name, workload, container in _containers(m):
        profile = (_effective(workload, container, "seccompProfile") or {}).get("type")
        yield Verdict(name, "" if profile == "RuntimeDefault" else f"seccomp profile {profile}")


def no_account_token(m: Manifests) -> Iterator[Verdict]:
    for workload in m.workloads():
        account = m.named("ServiceAccount", workload.pod.get("serviceAccountName", "default"))
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


def no_host(m: Manifests) -> Iterator[Verdict]:
    for workload in m.workloads():
        shared = [k for k in ("hostNetwork", "hostPID", "hostIPC") if workload.pod.get(k)]
        shared += [
            f"hostPath {v['hostPath']['path']}"
            for v in workload.pod.get("volumes", [])
            if "hostPath" in v
        ]
        shared += [
            f"host port {p['hostPort']}"
            for c in workload.containers
            for p in c.get("ports", [])
            if "hostPort" in p
        ]
        yield Verdict(
            workload.subject, f"reaches into its host: {', '.join(shared)}" if shared else ""
        )


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
        yield Verdict(name, f"unbounded: {', '.join(missing + disks)}" if missing or disks else "")


def pinned_images(m: Manifests) -> Iterator[Verdict]:
    """By digest; the development overlay builds its own images and names them by tag."""
    for name, _, container in _containers(m):
        reference, _, digest = container["image"].partition("@")
        if m.target == "overlays/dev" and reference.startswith("tailrace/"):
            yield Verdict(
                name,
                ""
                if ":" in reference and not reference.endswith(":latest")
                else f"image {reference} has no tag",
            )
        else:
            known = digest.startswith("sha256:") and len(digest) == 71
            yield Verdict(
                name, "" if known else f"image {container['image']} is not pinned by digest"
            )


def mounts(m: Manifests) -> Iterator[Verdict]:
    for workload in m.workloads():
        volumes = {v["name"] for v in workload.pod.get("volumes", [])}
        volumes |= {
            t["metadata"]["name"] for t in workload.doc["spec"].get("volumeClaimTemplates", [])
        }
        mounted = {v["name"] for c in workload.containers for v in c.get("volumeMounts", [])}
        odd = volumes ^ mounted
        yield Verdict(
            workload.subject,
            f"volumes and mounts do not match: {', '.join(sorted(odd))}" if odd else "",
        )


def probes(m: Manifests) -> Iterator[Verdict]:
    """Each probe asks a port that exists. Probes of the services ask the admin port, never the one
    that clients reach."""
    for name, workload, container in _containers(m):
        # The store has no port. Flink's operator asks the JobManager, which looks after the others.
        if workload.doc["kind"] == "Job" or workload.name in analytics.users(m):
            continue
        yield Verdict(name, _probe_problem(m, workload, container))


def _probe_problem(m: Manifests, workload: Workload, container: Doc) -> str:
    expected = {"readinessProbe": "/ready", "livenessProbe": "/health"}
    ports = {p["name"]: p["containerPort"] for p in container.get("ports", [])}
    for kind in ("startupProbe", *expected):
        probe = container.get(kind)
        if probe is None:
            if kind in expected or workload.name in OURS:
                return f"no {kind}"
            continue
        action = probe.get("httpGet") or probe.get("tcpSocket")
        if action and action["port"] not in ports:
            return f"{kind} asks port {action['port']!r}, which the container does not have"
        if workload.name in OURS:
            asked = probe.get("httpGet", {})
            # A start is over when the process answers; a worker's, when its model is loaded.
            if asked.get("port") != "admin" or asked.get("path") not in (
                {expected[kind]} if kind in expected else {"/health", "/ready"}
            ):
                return f"{kind} asks {asked}"
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
            needed = max(least, taking + MARGIN_S)
            yield Verdict(
                workload.subject,
                ""
                if grace >= needed
                else f"is killed after {grace} s, needs {needed:.0f} s to drain",
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
    mounted = {
        v["name"]
        for v in workload.containers[0]["volumeMounts"]
        if v["mountPath"] == "/dev/shm"  # noqa: S108 - a mount of the pod
    }
    yield Verdict(
        workload.subject,
        "" if mounted & memory else "engine processes share 64 MiB: no memory volume at /dev/shm",
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
    "pods run as non-root": non_root,
    "root file systems are read-only, /tmp is a tmpfs": read_only_root,
    "capabilities dropped, no privilege escalation": no_privileges,
    "seccomp RuntimeDefault": seccomp,
    "no service-account token": no_account_token,
    "nothing of the host": no_host,
    "resources bounded": bounded,
    "images by digest": pinned_images,
    "volumes and mounts match": mounts,
    "probes ask ports that exist": probes,
    "time to drain": drain,
    "spread, with a disruption budget": spread,
    "shared memory for the engine": shared_memory,
    "GPU where the engine needs one": accelerator,
}
