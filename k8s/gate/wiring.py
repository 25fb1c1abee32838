"""References resolve: settings, secrets, services, hosts, scaling targets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from k8s import make_secrets
from k8s.gate import admin_page, analytics, kafka
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
from tailrace.settings import pools_file, table

# Only one of its processes folds at a time: more of them are not faster.
UNSCALED = {"archive"}
MAX_JOB_S = 60  # how long a Job that is done may stay


def _variables(service: str, cluster: table.Cluster) -> set[str]:
    return {row.name for row in table.read_by(service) if row.cluster is cluster}


# The process contract: the variables that a process reads, and those that it requires here.
REQUIRED: dict[str, set[str]] = {
    **{service: _variables(service, table.Cluster.REQUIRED) for service in table.SERVICES},
    "log-incarnation": {"TAILRACE_KAFKA", "TAILRACE_RECORD_KEYS"},
}
OPTIONAL: dict[str, set[str]] = {
    **{service: _variables(service, table.Cluster.OPTIONAL) for service in table.SERVICES},
    # It also reads the common settings of all services.
    table.ARCHIVE: _variables(table.ARCHIVE, table.Cluster.OPTIONAL) | {"TAILRACE_POOLS"},
    # The job reads the common settings of all services from the same ConfigMap.
    "log-incarnation": {
        "TAILRACE_HOST",
        "TAILRACE_ADMIN_PORT",
        "TAILRACE_POOLS",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    },
}
# Read by the engine's own libraries.
THIRD_PARTY = {
    "HF_HUB_OFFLINE",
    "VLLM_NO_USAGE_STATS",
    "VLLM_CACHE_ROOT",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
}


# Read by the command line of pipelines.
RUNNER: Final = {"TAILRACE_KAFKA", "TAILRACE_URL", "TAILRACE_CREDENTIAL_FILE"}


def variables(m: Manifests) -> Iterator[Verdict]:
    runners = m.pipelines()
    for workload in m.workloads():
        required = RUNNER if workload.name in runners else REQUIRED.get(workload.name, set())
        if workload.name in analytics.users(m):
            stores = workload.name == analytics.STORE
            required = analytics.STORE_VARIABLES if stores else analytics.VARIABLES
        if workload.name == admin_page.NAME:
            required = admin_page.variables(m)
        for container in workload.containers:
            env = m.config(workload, container)
            permitted_names = (
                required
                | OPTIONAL.get(workload.name, set())
                | (THIRD_PARTY if workload.name == "worker" else set())
            )
            unknown, missing = sorted(env.keys() - permitted_names), sorted(required - env.keys())
            empty = sorted(k for k, v in env.items() if v == "")
            problem = "; ".join(
                f"{what} {', '.join(names)}"
                for what, names in (("unknown", unknown), ("missing", missing), ("empty", empty))
                if names
            )
            yield Verdict(f"{workload.subject}/{container['name']}", problem)


def _volumes(workload: Workload) -> Iterator[tuple[str, str, set[str]]]:
    """(kind, name, keys) of what a pod mounts; no keys means all of them."""
    for volume in workload.pod.get("volumes", []):
        if "secret" in volume:
            source = volume["secret"]
            yield "Secret", source["secretName"], {i["key"] for i in source.get("items", [])}
        if "configMap" in volume:
            source = volume["configMap"]
            yield "ConfigMap", source["name"], {i["key"] for i in source.get("items", [])}
        if "persistentVolumeClaim" in volume:
            yield "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"], set()


def _environment(workload: Workload) -> Iterator[tuple[str, str, set[str]]]:
    for container in workload.containers:
        for source in container.get("envFrom", []):
            for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
                if field in source:
                    yield kind, source[field]["name"], set()
        for entry in container.get("env", []):
            for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
                if field in entry.get("valueFrom", {}):
                    source = entry["valueFrom"][field]
                    yield kind, source["name"], {source["key"]}


def _triggers(m: Manifests) -> Iterator[tuple[str, str, str, set[str]]]:
    for auth in m.kind("TriggerAuthentication"):
        for field, kind in (("secretTargetRef", "Secret"), ("configMapTargetRef", "ConfigMap")):
            for source in auth["spec"].get(field, []):
                yield subject(auth), kind, source["name"], {source["key"]}


def secret_keys(m: Manifests) -> dict[str, set[str]]:
    """Every Secret that will exist, with its keys: from Strimzi, cert-manager, or
    k8s/make_secrets.py."""
    keys_by_name = {name: set(keys) for name, keys in make_secrets.KEYS.items()}
    for name in m.pipelines():
        keys_by_name[f"{name}-credential"] = {"credential"}  # by hand, or by who renews it
    if m.workload(analytics.STORE) is not None:
        keys_by_name |= analytics.SECRETS
    keys_by_name |= admin_page.secrets(m)
    for user in m.kind("KafkaUser"):
        keys_by_name[user["metadata"]["name"]] = {"password", "sasl.jaas.config"}
    for cluster in m.kind("Kafka"):
        keys_by_name[f"{cluster['metadata']['name']}-cluster-ca-cert"] = {
            "ca.crt",
            "ca.p12",
            "ca.password",
        }
    for certificate in m.kind("Certificate"):
        keys_by_name[certificate["spec"]["secretName"]] = {"tls.crt", "tls.key", "ca.crt"}
    return keys_by_name


def _uses(m: Manifests) -> list[tuple[str, str, str, set[str]]]:
    uses = [(w.subject, *use) for w in m.workloads() for use in (*_volumes(w), *_environment(w))]
    return uses + list(_triggers(m))


def references(m: Manifests) -> Iterator[Verdict]:
    """Every Secret, ConfigMap and claim that is used exists, with the keys that are used."""
    secrets = secret_keys(m)
    configs = {c["metadata"]["name"]: set(c.get("data", {})) for c in m.kind("ConfigMap")}
    for user, kind, name, keys in _uses(m):
        if kind == "PersistentVolumeClaim":
            yield verdict_on(f"{user} → {kind}/{name}", m.resource(kind, name), "does not exist")
            continue
        there = (secrets if kind == "Secret" else configs).get(name)
        problem = (
            f"nothing makes {kind} {name}"
            if there is None
            else f"no key {', '.join(sorted(keys - there))}"
            if keys - there
            else ""
        )
        yield Verdict(f"{user} → {kind}/{name}", problem)


def nothing_idle(m: Manifests) -> Iterator[Verdict]:
    """Every Secret and ConfigMap is used. An unused Secret is a needless risk; an unused ConfigMap
    misleads."""
    used = {(kind, name) for _, kind, name, _ in _uses(m)}
    for name in make_secrets.KEYS:
        yield verdict_on(
            f"Secret/{name}", ("Secret", name) in used, "is made by hand and never read"
        )
    for config in m.kind("ConfigMap"):
        if config["metadata"].get("labels", {}).get("grafana_dashboard"):
            continue
        yield verdict_on(config, ("ConfigMap", config["metadata"]["name"]) in used, "is never read")


def no_secrets_inside(m: Manifests) -> Iterator[Verdict]:
    """No Secret is rendered, and nothing that looks like one stands in a ConfigMap or an
    environment."""
    for doc in m.docs:
        text = str(doc)
        if doc["kind"] == "Secret":
            yield Verdict(subject(doc), "a secret in the manifests")
        else:
            yield verdict_on(doc, "PRIVATE KEY" not in text, "a private key in the manifests")
    for workload in m.workloads():
        for container in workload.containers:
            env = m.config(workload, container)
            bare = [k for k, v in env.items() if v and urlsplit(v).password]
            yield verdict_on(
                f"{workload.subject}/{container['name']}",
                not bare,
                f"a password in {', '.join(bare)}",
            )


def services(m: Manifests) -> Iterator[Verdict]:
    for service in m.kind("Service"):
        selection = [
            w
            for w in m.workloads()
            if selects({"matchLabels": service["spec"]["selector"]}, w.labels)
        ]
        if len(selection) != 1:
            yield Verdict(subject(service), f"selects the pods of {len(selection)} workloads")
            continue
        ports = {p["name"] for c in selection[0].containers for p in c.get("ports", [])}
        missing = [
            str(p["targetPort"]) for p in service["spec"]["ports"] if p["targetPort"] not in ports
        ]
        yield verdict_on(service, not missing, f"no port {', '.join(missing)} at its pods")
    for workload in m.workloads():
        stateful = workload.doc["spec"].get("serviceName")
        if stateful:
            yield verdict_on(
                workload.subject, m.resource("Service", stateful), f"no Service {stateful}"
            )


def listening(m: Manifests) -> Iterator[Verdict]:
    """A service listens where its Service sends, and not on the loopback only. Flink uses the ports
    that the policies open."""
    yield from analytics.deployment(m)
    yield from admin_page.deployment(m)
    for name in ("gateway", "push"):
        workload = m.workload(name)
        if workload is None:
            continue
        settings = m.settings(name)
        port = next(
            (
                str(p["containerPort"])
                for p in workload.containers[0]["ports"]
                if p["name"] == "http"
            ),
            None,
        )
        fits = settings.get("TAILRACE_PORT") == port and settings.get("TAILRACE_HOST") == "0.0.0.0"  # noqa: S104 - inside a pod, behind policies
        yield verdict_on(
            workload.subject,
            fits,
            f"listens on {settings.get('TAILRACE_HOST')}:{settings.get('TAILRACE_PORT')}, "
            f"sent to {port}",
        )


def _routes(ingress: Doc) -> Iterator[tuple[str, str, str, str]]:
    """(host, path, service, port)."""
    for rule in ingress["spec"]["rules"]:
        for path in rule["http"]["paths"]:
            backend = path["backend"]["service"]
            yield rule["host"], path["path"], backend["name"], backend["port"]["name"]


def ingress(m: Manifests) -> Iterator[Verdict]:
    for doc in m.kind("Ingress"):
        hosts = {host for host, *_ in _routes(doc)}
        tls_hosts = {host for tls in doc["spec"].get("tls", []) for host in tls["hosts"]}
        yield verdict_on(
            f"{subject(doc)} TLS", hosts == tls_hosts, f"without TLS: {sorted(hosts - tls_hosts)}"
        )
        issuers = [
            a
            for a in doc["metadata"].get("annotations", {})
            if a in {"cert-manager.io/issuer", "cert-manager.io/cluster-issuer"}
        ]
        yield verdict_on(f"{subject(doc)} certificate", issuers, "no issuer makes its certificate")
        for host, path, name, port in _routes(doc):
            service = m.resource("Service", name)
            ports = {p["name"] for p in service["spec"]["ports"]} if service else set()
            yield verdict_on(
                f"{subject(doc)} {host}{path}", port in ports, f"no port {port} at Service {name}"
            )


def public_names(m: Manifests) -> Iterator[Verdict]:
    """The page's push address leads to push, and the services accept the page's origin."""
    routes = [r for doc in m.kind("Ingress") for r in _routes(doc)]
    pages = {host for host, path, name, _ in routes if path == "/" and name == "gateway"}
    watching = {
        host
        for host, path, name, _ in routes
        if path in {"/v1", "/v1/watch", "/"} and name == "push"
    }
    for url in (m.settings("gateway").get("TAILRACE_PUSH_URL") or "").split(","):
        parts = urlsplit(url)
        yield verdict_on(
            f"TAILRACE_PUSH_URL {url}",
            parts.scheme == "https" and parts.hostname in watching,
            "does not lead to push by TLS",
        )
    for name in ("gateway", "push"):
        origins = (m.settings(name).get("TAILRACE_ORIGINS") or "").split(",")
        fits = "*" not in origins and {f"https://{page}" for page in pages} <= set(origins)
        yield verdict_on(
            f"{name} TAILRACE_ORIGINS",
            fits and pages,
            f"is {origins}, the page is at {sorted(pages)}",
        )


def pools(m: Manifests) -> Iterator[Verdict]:
    """Workers serve a pool that the gateway knows, with a model that the pool has."""
    yield Verdict("file of pools", _wrong_pools(kafka.pools_text(m)))
    for service in (*table.POOLED, "log-incarnation"):  # the command checks every setting
        mount_paths = [
            mount["mountPath"]
            for workload in m.workloads()
            for container in workload.containers
            for mount in container.get("volumeMounts", [])
            if workload.name == service
        ]
        path = m.settings(service).get("TAILRACE_POOLS") or ""
        problem = "" if path.rpartition("/")[0] in mount_paths else f"does not mount {path}"
        yield Verdict(f"{service} file of pools", problem)
    by_name = kafka.pools(m)
    worker = m.settings("worker")
    pool, model = worker.get("TAILRACE_POOL"), worker.get("TAILRACE_MODEL_NAME")
    models = by_name.get(str(pool), {}).get("models", [])
    yield verdict_on("worker pool", pool in by_name, f"{pool} is not one of {sorted(by_name)}")
    yield verdict_on("worker model", model in models, f"{model} is not one of {models}")
    job = m.workload("log-incarnation")
    command = job.containers[0]["command"] if job else []
    pool_names = {after for word, after in itertools.pairwise(command) if word == "--pool"}
    yield verdict_on(
        "log-incarnation",
        pool_names == by_name.keys(),
        f"looks after the pools {sorted(pool_names)}, there are {sorted(by_name)}",
    )


def _wrong_pools(text: str) -> str:
    try:
        pools_file.decode(text.encode(), Path("pools.yaml"))
    except ValueError as error:
        return str(error)
    return ""


def jobs(m: Manifests) -> Iterator[Verdict]:
    """A finished Job is removed before the next version: its template cannot be changed, so
    `kubectl apply` of another image would be refused."""
    for job in m.kind("Job"):
        seconds = job["spec"].get("ttlSecondsAfterFinished", float("inf"))
        problem = "" if seconds <= MAX_JOB_S else f"stays for {seconds} s after its end"
        yield Verdict(job["metadata"]["name"], problem)


def scaling(m: Manifests) -> Iterator[Verdict]:
    """Every service is scaled by exactly one autoscaler, and its manifest sets no number of
    replicas."""
    targets: dict[str, list[str]] = {}
    for scaler in m.kind("HorizontalPodAutoscaler", "ScaledObject"):
        reference = scaler["spec"]["scaleTargetRef"]
        workload = m.resource(reference["kind"], reference["name"])
        targets.setdefault(reference["name"], []).append(subject(scaler))
        yield verdict_on(
            scaler, workload, f"scales {reference['kind']} {reference['name']}, which is not there"
        )
    for workload_doc in m.kind("Deployment"):
        exempt = UNSCALED | m.pipelines().keys() | analytics.users(m) | admin_page.users(m)
        if workload_doc["metadata"]["name"] in exempt:
            continue
        scalers = targets.get(workload_doc["metadata"]["name"], [])
        if len(scalers) != 1:
            yield Verdict(subject(workload_doc), f"is scaled by {scalers or 'nothing'}")
        else:
            yield verdict_on(
                workload_doc,
                "replicas" not in workload_doc["spec"],
                "fixes `replicas`, which its autoscaler owns",
            )


def namespaces(m: Manifests) -> Iterator[Verdict]:
    names = {n["metadata"]["name"] for n in m.kind("Namespace")}
    for doc in m.docs:
        if doc["kind"] == "Namespace":
            level = doc["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce")
            yield verdict_on(doc, level == "restricted", f"pod security is {level}")
        else:
            place = doc["metadata"].get("namespace")
            yield verdict_on(doc, place in names, f"in namespace {place}")


CHECKS: dict[str, Check] = {
    "variables are those of the process contract": variables,
    "secrets, settings and claims exist": references,
    "no secret or setting is idle": nothing_idle,
    "no secrets in the manifests": no_secrets_inside,
    "services reach their pods": services,
    "services listen where they are sent to": listening,
    "ingress routes and certificates": ingress,
    "public addresses and origins": public_names,
    "pool and model": pools,
    "jobs can be applied again": jobs,
    "one autoscaler each": scaling,
    "namespace and pod security": namespaces,
}
