"""The gate can fail: each mistake is planted into good manifests, and the check that is there for
it has to find it."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from prometheus_client import Counter

from k8s import make_secrets, validate
from k8s.gate import observability, render, schema, sources, wiring
from k8s.gate.manifests import Doc, Manifests
from tailrace import telemetry
from tailrace.cli import record_keys
from tailrace.settings import table

ROOT = render.HERE.parent
BASE = render.HERE / "base"


class Planted(NamedTuple):
    """`check` has to be among those that complain; `words` stand in its complaint."""

    name: str
    check: str
    words: str
    plant: Callable[[Manifests], object]


@pytest.fixture(scope="module")
def base() -> Manifests:
    return render.render(BASE)


def doc(m: Manifests, kind: str, name: str) -> Doc:
    """By its name in the sources: generated names carry a hash."""
    found = [
        d
        for d in m.kind(kind)
        if d["metadata"]["name"] == name or d["metadata"]["name"].rpartition("-")[0] == name
    ]
    assert len(found) == 1, (kind, name, [d["metadata"]["name"] for d in found])
    return found[0]


def pod(m: Manifests, name: str) -> Doc:
    workload = m.workload(name)
    assert workload
    return workload.pod


def container(m: Manifests, name: str) -> Doc:
    first: Doc = pod(m, name)["containers"][0]
    return first


def config(m: Manifests, name: str) -> dict[str, str]:
    data: dict[str, str] = doc(m, "ConfigMap", name)["data"]
    return data


def spec(m: Manifests, kind: str, name: str) -> Any:
    return doc(m, kind, name)["spec"]


def listener(m: Manifests) -> Doc:
    first: Doc = spec(m, "Kafka", "kafka")["kafka"]["listeners"][0]
    return first


def acls(m: Manifests, service: str) -> list[Doc]:
    docs: list[Doc] = spec(m, "KafkaUser", f"tailrace-{service}")["authorization"]["acls"]
    return docs


def allow(name: str, direction: str, rule: Doc) -> Callable[[Manifests], None]:
    return lambda m: spec(m, "NetworkPolicy", name).setdefault(direction, []).append(rule)


def rules(m: Manifests, group: int) -> list[Doc]:
    docs: list[Doc] = spec(m, "PrometheusRule", "tailrace")["groups"][group]["rules"]
    return docs


def alert(m: Manifests, number: int) -> Doc:
    return rules(m, 0)[number]


def panel(m: Manifests, old: str, new: str) -> None:
    data = m.resource("ConfigMap", "dashboard-tailrace")["data"]  # type: ignore[index]
    data["tailrace.json"] = data["tailrace.json"].replace(old, new, 1)


ALERTS = "alerts ask for what exists and say what to do"
ANYWHERE = {"ipBlock": {"cidr": "0.0.0.0/0"}}
AS_ROOT = {"runAsNonRoot": False, "runAsUser": 0}

PLANTED = [
    # schemas
    Planted(
        "a misspelt field",
        "resources fit their schemas",
        "containerz",
        lambda m: pod(m, "gateway").update(containerz=[]),
    ),
    Planted(
        "a number where KEDA wants a string",
        "resources fit their schemas",
        "lagThreshold",
        lambda m: spec(m, "ScaledObject", "worker")["triggers"][0]["metadata"].update(
            lagThreshold=100
        ),
    ),
    Planted(
        "KEDA's default protocol version",
        "resources fit their schemas",
        "version",
        lambda m: spec(m, "ScaledObject", "worker")["triggers"][0]["metadata"].pop("version"),
    ),
    Planted(
        "a protocol version Kafka 4 dropped",
        "resources fit their schemas",
        "1.0.0",
        lambda m: spec(m, "ScaledObject", "worker")["triggers"][0]["metadata"].update(
            version="1.0.0"
        ),
    ),
    Planted(
        "a Kafka that Strimzi does not run yet",
        "resources fit their schemas",
        "4.4.0",
        lambda m: spec(m, "Kafka", "kafka")["kafka"].update(version="4.4.0"),
    ),
    Planted(
        "replicas where Strimzi 1 has none",
        "resources fit their schemas",
        "replicas",
        lambda m: spec(m, "Kafka", "kafka")["kafka"].update(replicas=3),
    ),
    Planted(
        "a kind without schema",
        "resources fit their schemas",
        "no schema",
        lambda m: m.docs.append(
            {
                "apiVersion": "example.com/v1",
                "kind": "Odd",
                "metadata": {"name": "odd", "namespace": "tailrace"},
            }
        ),
    ),
    # pods
    Planted(
        "a container as root",
        "pods are restricted",
        "push",
        lambda m: container(m, "push")["securityContext"].update(AS_ROOT),
    ),
    Planted(
        "a pod that may be root",
        "pods are restricted",
        "redis",
        lambda m: pod(m, "redis")["securityContext"].pop("runAsNonRoot"),
    ),
    Planted(
        "a writable root",
        "root file systems are read-only, /tmp is a tmpfs",
        "writable",
        lambda m: container(m, "gateway")["securityContext"].pop("readOnlyRootFilesystem"),
    ),
    Planted(
        "/tmp on disk",
        "root file systems are read-only, /tmp is a tmpfs",
        "no tmpfs",
        lambda m: pod(m, "gateway")["volumes"][0].update(emptyDir={"sizeLimit": "64Mi"}),
    ),
    Planted(
        "a capability added",
        "pods are restricted",
        "NET_ADMIN",
        lambda m: container(m, "worker")["securityContext"]["capabilities"].update(
            add=["NET_ADMIN"]
        ),
    ),
    Planted(
        "privileges to be gained",
        "pods are restricted",
        "gained",
        lambda m: container(m, "worker")["securityContext"].update(allowPrivilegeEscalation=True),
    ),
    Planted(
        "no seccomp",
        "pods are restricted",
        "Unconfined",
        lambda m: pod(m, "worker")["securityContext"].update(seccompProfile={"type": "Unconfined"}),
    ),
    Planted(
        "an account token",
        "no service-account token",
        "token",
        lambda m: pod(m, "gateway").pop("automountServiceAccountToken"),
    ),
    Planted(
        "no account of its own",
        "no service-account token",
        "no service account",
        lambda m: pod(m, "redis").pop("serviceAccountName"),
    ),
    Planted(
        "the host's network",
        "pods are restricted",
        "hostNetwork",
        lambda m: pod(m, "worker").update(hostNetwork=True),
    ),
    Planted(
        "no memory limit",
        "resources bounded",
        "limits.memory",
        lambda m: container(m, "push")["resources"]["limits"].pop("memory"),
    ),
    Planted(
        "a disk without bound",
        "resources bounded",
        "cache",
        lambda m: next(v for v in pod(m, "worker")["volumes"] if v["name"] == "cache").update(
            emptyDir={}
        ),
    ),
    Planted(
        "an image by tag",
        "images by digest",
        "service:1.0",
        lambda m: container(m, "gateway").update(image="tailrace/service:1.0"),
    ),
    Planted(
        "a volume without a mount",
        "volumes and mounts match",
        "redis-ca",
        lambda m: container(m, "push").update(
            volumeMounts=[
                v for v in container(m, "push")["volumeMounts"] if v["name"] != "redis-ca"
            ]
        ),
    ),
    Planted(
        "a probe on a port that is not there",
        "probes ask ports that exist",
        "health",
        lambda m: container(m, "gateway")["livenessProbe"]["httpGet"].update(port="health"),
    ),
    Planted(
        "readiness asked of clients' port",
        "probes ask ports that exist",
        "http",
        lambda m: container(m, "gateway")["readinessProbe"]["httpGet"].update(port="http"),
    ),
    Planted(
        "liveness that fails while a model loads",
        "probes ask ports that exist",
        "/ready",
        lambda m: container(m, "worker")["livenessProbe"]["httpGet"].update(path="/ready"),
    ),
    Planted(
        "a slow engine without startup probe",
        "probes ask ports that exist",
        "startupProbe",
        lambda m: container(m, "worker").pop("startupProbe"),
    ),
    Planted(
        "an admin port that stays closed",
        "probes ask ports that exist",
        "9001",
        lambda m: config(m, "common").update(TAILRACE_ADMIN_PORT="9001"),
    ),
    Planted(
        "a drain cut short",
        "time to drain",
        "75 s",
        lambda m: pod(m, "worker").pop("terminationGracePeriodSeconds"),
    ),
    Planted(
        "no pause before SIGTERM",
        "time to drain",
        "preStop",
        lambda m: container(m, "push").pop("lifecycle"),
    ),
    Planted(
        "spread by another service's label",
        "spread, with a disruption budget",
        "do not carry",
        lambda m: pod(m, "push")["topologySpreadConstraints"][0].update(
            labelSelector={"matchLabels": {"app.kubernetes.io/name": "gateway"}}
        ),
    ),
    Planted(
        "no disruption budget",
        "spread, with a disruption budget",
        "0 disruption",
        lambda m: m.docs.remove(doc(m, "PodDisruptionBudget", "worker")),
    ),
    Planted(
        "64 MiB of shared memory",
        "shared memory for the engine",
        "/dev/shm",
        lambda m: next(v for v in pod(m, "worker")["volumes"] if v["name"] == "shm").update(
            emptyDir={"sizeLimit": "4Gi"}
        ),
    ),
    Planted(
        "vLLM without a GPU",
        "GPU where the engine needs one",
        "no GPU",
        lambda m: container(m, "worker")["resources"]["limits"].pop("nvidia.com/gpu"),
    ),
    # Kafka
    Planted(
        "a node pool of another cluster",
        "Strimzi resources belong to the cluster",
        "'log'",
        lambda m: doc(m, "KafkaNodePool", "broker")["metadata"]["labels"].update(
            {"strimzi.io/cluster": "log"}
        ),
    ),
    Planted(
        "two controllers",
        "controllers and brokers",
        "2 controllers",
        lambda m: spec(m, "KafkaNodePool", "controller").update(replicas=2),
    ),
    Planted(
        "unclean elections",
        "broker settings of the log rule",
        "unclean",
        lambda m: spec(m, "Kafka", "kafka")["kafka"]["config"].update(
            {"unclean.leader.election.enable": True}
        ),
    ),
    Planted(
        "topics created by any client",
        "broker settings of the log rule",
        "auto.create",
        lambda m: spec(m, "Kafka", "kafka")["kafka"]["config"].pop("auto.create.topics.enable"),
    ),
    Planted(
        "acknowledged by one replica",
        "broker settings of the log rule",
        "min.insync",
        lambda m: spec(m, "Kafka", "kafka")["kafka"]["config"].update({"min.insync.replicas": 1}),
    ),
    Planted(
        "Kafka without TLS",
        "TLS, SCRAM, deny by default",
        "TLS",
        lambda m: listener(m).update(tls=False),
    ),
    Planted(
        "a listener outside",
        "TLS, SCRAM, deny by default",
        "nodeport",
        lambda m: listener(m).update(type="nodeport"),
    ),
    Planted(
        "a super user",
        "TLS, SCRAM, deny by default",
        "super",
        lambda m: spec(m, "Kafka", "kafka")["kafka"]["authorization"].update(
            superUsers=["tailrace-gateway"]
        ),
    ),
    Planted(
        "compaction of the tokens",
        "topics as in tailrace/protocol/topics.py",
        "cleanup.policy is compact",
        lambda m: spec(m, "KafkaTopic", "llm.tokens")["config"].update(
            {"cleanup.policy": "compact"}
        ),
    ),
    Planted(
        "a topic missing",
        "topics as in tailrace/protocol/topics.py",
        "not in the manifests",
        lambda m: m.docs.remove(doc(m, "KafkaTopic", "llm.dlq")),
    ),
    Planted(
        "an unknown topic",
        "topics as in tailrace/protocol/topics.py",
        "not in tailrace/protocol/topics.py",
        lambda m: doc(m, "KafkaTopic", "llm.usage")["metadata"].update(name="llm.usages"),
    ),
    Planted(
        "one replica",
        "topics as in tailrace/protocol/topics.py",
        "replicas",
        lambda m: spec(m, "KafkaTopic", "llm.tokens").update(replicas=1),
    ),
    Planted(
        "partitions that do not match",
        "requests and tokens co-partitioned",
        "12 partitions",
        lambda m: spec(m, "KafkaTopic", "llm.requests.default.batch").update(partitions=12),
    ),
    Planted(
        "push may write tokens",
        "ACLs as in tailrace/protocol/topics.py",
        "Read+Write",
        lambda m: acls(m, "push")[2]["operations"].append("Write"),
    ),
    Planted(
        "a worker without its group",
        "ACLs as in tailrace/protocol/topics.py",
        "tailrace.default",
        lambda m: acls(m, "worker").pop(),
    ),
    Planted(
        "rights by pattern",
        "ACLs as in tailrace/protocol/topics.py",
        "pattern",
        lambda m: acls(m, "gateway")[0]["resource"].update(name="llm.", patternType="prefix"),
    ),
    Planted(
        "a right to delete",
        "ACLs as in tailrace/protocol/topics.py",
        "Delete",
        lambda m: acls(m, "operator")[0]["operations"].append("Delete"),
    ),
    Planted(
        "an unknown principal",
        "ACLs as in tailrace/protocol/topics.py",
        "no service uses",
        lambda m: m.docs.append(
            {
                **copy.deepcopy(doc(m, "KafkaUser", "tailrace-push")),
                "metadata": {
                    "name": "tailrace-guest",
                    "namespace": "tailrace",
                    "labels": {"strimzi.io/cluster": "kafka"},
                },
            }
        ),
    ),
    Planted(
        "more workers than partitions",
        "autoscaler fits pool and partitions",
        "would idle",
        lambda m: spec(m, "ScaledObject", "worker").update(maxReplicaCount=25),
    ),
    Planted(
        "lag of another group",
        "autoscaler fits pool and partitions",
        "not the pool's group",
        lambda m: spec(m, "ScaledObject", "worker")["triggers"][0]["metadata"].update(
            consumerGroup="workers"
        ),
    ),
    Planted(
        "a class without a scaler",
        "autoscaler fits pool and partitions",
        "watches",
        lambda m: spec(m, "ScaledObject", "worker")["triggers"].pop(1),
    ),
    Planted(
        "a class whose backlog scales nothing",
        "autoscaler fits pool and partitions",
        "batch backlog",
        lambda m: spec(m, "ScaledObject", "worker")["triggers"].pop(3),
    ),
    Planted(
        "an autoscaler that counts all pools",
        "autoscaler fits pool and partitions",
        "counts other pools' work",
        lambda m: spec(m, "ScaledObject", "worker")["triggers"][-1]["metadata"].update(
            query='sum(tailrace_engine_running{namespace="tailrace"})'
        ),
    ),
    Planted(
        "lag that scales",
        "autoscaler fits pool and partitions",
        "may activate, not scale",
        lambda m: spec(m, "ScaledObject", "worker")["triggers"][0]["metadata"].update(
            lagThreshold="100"
        ),
    ),
    Planted(
        "a user without its password",
        "Kafka addresses and users",
        "password",
        lambda m: config(m, "push").update(TAILRACE_KAFKA=config(m, "gateway")["TAILRACE_KAFKA"]),
    ),
    Planted(
        "a plain address",
        "Kafka addresses and users",
        "not a listener",
        lambda m: config(m, "push").update(TAILRACE_KAFKA="kafka-kafka-bootstrap:9092"),
    ),
    # network
    Planted(
        "no default deny",
        "default deny",
        "denies",
        lambda m: m.docs.remove(doc(m, "NetworkPolicy", "default-deny")),
    ),
    Planted(
        "a worker on the internet",
        "network edges are the allowed ones",
        "worker → *",
        allow("worker", "egress", {"to": [ANYWHERE], "ports": [{"protocol": "TCP", "port": 443}]}),
    ),
    Planted(
        "a rule without peers",
        "network edges are the allowed ones",
        "worker → *:any",
        allow("worker", "egress", {}),
    ),
    Planted(
        "Redis calling out",
        "network edges are the allowed ones",
        "redis → ns:monitoring",
        allow(
            "redis",
            "egress",
            {
                "to": [
                    {
                        "namespaceSelector": {
                            "matchLabels": {"kubernetes.io/metadata.name": "monitoring"}
                        }
                    }
                ]
            },
        ),
    ),
    Planted(
        "metrics open to clients",
        "network edges are the allowed ones",
        "ns:ingress → gateway:9000",
        lambda m: spec(m, "NetworkPolicy", "gateway")["ingress"][0]["ports"].append(
            {"protocol": "TCP", "port": 9000}
        ),
    ),
    Planted(
        "a worker cut off from Redis",
        "network edges are the allowed ones",
        "worker → redis:6379 is needed",
        lambda m: spec(m, "NetworkPolicy", "worker")["egress"].pop(1),
    ),
    Planted(
        "push locked out by Redis",
        "network edges are the allowed ones",
        "push → redis:6379 is needed",
        lambda m: spec(m, "NetworkPolicy", "redis")["ingress"][0]["from"][0]["podSelector"][
            "matchExpressions"
        ][0]["values"].remove("push"),
    ),
    Planted(
        "Kafka open to all pods",
        "Kafka's listener lets in whom the policies do",
        "lets in",
        lambda m: listener(m).pop("networkPolicyPeers"),
    ),
    # wiring
    Planted(
        "a variable without a reader",
        "variables are those of the process contract",
        "TAILRACE_MODLE",
        lambda m: config(m, "worker").update(TAILRACE_MODLE="x"),
    ),
    Planted(
        "a variable forgotten",
        "variables are those of the process contract",
        "missing TAILRACE_ISSUERS",
        lambda m: config(m, "gateway").pop("TAILRACE_ISSUERS"),
    ),
    Planted(
        "a development credential",
        "variables are those of the process contract",
        "TAILRACE_DEV_CREDENTIAL",
        lambda m: config(m, "gateway").update(TAILRACE_DEV_CREDENTIAL="/tmp/c"),
    ),
    Planted(
        "a secret without a source",
        "secrets, settings and claims exist",
        "nothing makes",
        lambda m: container(m, "worker")["env"][1]["valueFrom"]["secretKeyRef"].update(
            name="redis"
        ),
    ),
    Planted(
        "a key the secret lacks",
        "secrets, settings and claims exist",
        "no key",
        lambda m: container(m, "worker")["env"][1]["valueFrom"]["secretKeyRef"].update(key="uri"),
    ),
    Planted(
        "a trigger's key missing",
        "secrets, settings and claims exist",
        "no key user",
        lambda m: spec(m, "TriggerAuthentication", "kafka")["secretTargetRef"][0].update(
            key="user"
        ),
    ),
    Planted(
        "a claim that is not there",
        "secrets, settings and claims exist",
        "does not exist",
        lambda m: m.docs.remove(doc(m, "PersistentVolumeClaim", "models")),
    ),
    Planted(
        "a Job in the way of the next version",
        "jobs can be applied again",
        "stays for 86400 s",
        lambda m: spec(m, "Job", "log-incarnation").update(ttlSecondsAfterFinished=86400),
    ),
    Planted(
        "a secret without a reader",
        "no secret or setting is idle",
        "redis-push",
        lambda m: container(m, "push")["env"].pop(2),
    ),
    Planted(
        "a password in a setting",
        "no secrets in the manifests",
        "a password in",
        lambda m: config(m, "push").update(
            TAILRACE_KAFKA="sasl+ssl://tailrace-push:hunter2@kafka-kafka-bootstrap:9093"
        ),
    ),
    Planted(
        "a Secret rendered",
        "no secrets in the manifests",
        "a secret in",
        lambda m: m.docs.append(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "s", "namespace": "tailrace"},
                "stringData": {"a": "b"},
            }
        ),
    ),
    Planted(
        "a service without pods",
        "services reach their pods",
        "0 workloads",
        lambda m: spec(m, "Service", "push")["selector"].update(
            {"app.kubernetes.io/name": "pusher"}
        ),
    ),
    Planted(
        "a service port without container port",
        "services reach their pods",
        "no port",
        lambda m: spec(m, "Service", "push")["ports"][0].update(targetPort="web"),
    ),
    Planted(
        "listening on the loopback",
        "services listen where they are sent to",
        "127.0.0.1",
        lambda m: config(m, "common").update(TAILRACE_HOST="127.0.0.1"),
    ),
    Planted(
        "a host without TLS",
        "ingress routes and certificates",
        "without TLS",
        lambda m: spec(m, "Ingress", "tailrace")["tls"][0]["hosts"].pop(),
    ),
    Planted(
        "a route to nowhere",
        "ingress routes and certificates",
        "no port",
        lambda m: spec(m, "Ingress", "tailrace")["rules"][1]["http"]["paths"][0]["backend"][
            "service"
        ].update(name="pusher"),
    ),
    Planted(
        "a push address without a service",
        "public addresses and origins",
        "does not lead to push",
        lambda m: config(m, "gateway").update(TAILRACE_PUSH_URL="https://ws.tailrace.example.com"),
    ),
    Planted(
        "any origin",
        "public addresses and origins",
        "ORIGINS",
        lambda m: config(m, "push").update(TAILRACE_ORIGINS="*"),
    ),
    Planted(
        "a pool without requests",
        "pool and model",
        "small",
        lambda m: config(m, "worker").update(TAILRACE_POOL="small"),
    ),
    Planted(
        "a model the pool lacks",
        "pool and model",
        "llama",
        lambda m: config(m, "worker").update(TAILRACE_MODEL_NAME="llama"),
    ),
    Planted(
        "two autoscalers",
        "one autoscaler each",
        "scaled by",
        lambda m: spec(m, "HorizontalPodAutoscaler", "push")["scaleTargetRef"].update(
            name="gateway"
        ),
    ),
    Planted(
        "a number against the autoscaler",
        "one autoscaler each",
        "replicas",
        lambda m: spec(m, "Deployment", "worker").update(replicas=2),
    ),
    Planted(
        "a lax namespace",
        "namespace and pod security",
        "baseline",
        lambda m: doc(m, "Namespace", "tailrace")["metadata"]["labels"].update(
            {"pod-security.kubernetes.io/enforce": "baseline"}
        ),
    ),
    # observability
    Planted(
        "a monitor for a port that is not there",
        "metrics are scraped",
        "no port metrics",
        lambda m: spec(m, "PodMonitor", "tailrace")["podMetricsEndpoints"][0].update(
            port="metrics"
        ),
    ),
    Planted(
        "a service that is not scraped",
        "metrics are scraped",
        "worker is not scraped",
        lambda m: spec(m, "PodMonitor", "tailrace")["selector"]["matchExpressions"][0][
            "values"
        ].remove("worker"),
    ),
    Planted(
        "an alert over a metric that is not exposed",
        ALERTS,
        "tailrace_frist",
        lambda m: alert(m, 0).update(expr="tailrace_frist_token > 1"),
    ),
    Planted(
        "an alert over a label that is never set",
        ALERTS,
        "no label model",
        lambda m: alert(m, 2).update(expr='tailrace_requests_total{model="a"} > 1'),
    ),
    Planted(
        "a counter without its suffix",
        ALERTS,
        "tailrace_requests",
        lambda m: alert(m, 2).update(expr="rate(tailrace_requests[5m]) > 1"),
    ),
    Planted(
        "an alert over a metric that is never set",
        ALERTS,
        "no code sets tailrace_nothing_total",
        lambda m: alert(m, 2).update(expr="tailrace_nothing_total > 1"),
    ),
    Planted(
        "a quantile between two buckets",
        ALERTS,
        "0.3 is not",
        lambda m: alert(m, 0).update(expr=alert(m, 0)["expr"].replace("0.25", "0.3")),
    ),
    Planted(
        "brackets that do not match",
        ALERTS,
        "brackets",
        lambda m: alert(m, 0).update(expr="sum(rate(tailrace_requests_total[5m]) > 1"),
    ),
    Planted(
        "an alert without an action",
        ALERTS,
        "no heading",
        lambda m: alert(m, 0)["annotations"].update(runbook="call-somebody"),
    ),
    Planted("an alert without severity", ALERTS, "severity", lambda m: alert(m, 0).pop("labels")),
    Planted(
        "an alert that was asked for and is gone",
        "alerts that were asked for",
        "seconds of work ahead",
        lambda m: rules(m, 2).pop(2),
    ),
    Planted(
        "an autoscaler's query for nothing",
        "autoscaler queries ask for what exists",
        "vllm:num",
        lambda m: spec(m, "ScaledObject", "worker")["triggers"][2]["metadata"].update(
            query="sum(vllm:num_requests_running)"
        ),
    ),
    Planted(
        "a panel for nothing",
        "dashboards show what exists",
        "tailrace_tokens_sum",
        lambda m: panel(m, "tailrace_tokens_total", "tailrace_tokens_sum"),
    ),
    Planted(
        "a dashboard that is no JSON",
        "dashboards show what exists",
        "no JSON",
        lambda m: panel(m, "{", "["),
    ),
]


@pytest.fixture(autouse=True)
def _a_metric_that_is_only_defined(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(
        telemetry, "NOTHING", Counter("tailrace_nothing", "", registry=None), raising=False
    )
    observability.series.cache_clear()
    yield
    observability.series.cache_clear()


def problems(m: Manifests) -> list[tuple[str, str]]:
    return [(name, f"{v.subject} {v.problem}") for name, v in validate.examine(m) if v.problem]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
def test_a_planted_mistake_is_found(base: Manifests, planted: Planted) -> None:
    broken = copy.deepcopy(base)
    planted.plant(broken)
    found = problems(broken)
    assert [text for name, text in found if name == planted.check and planted.words in text], found


def test_every_check_is_shown_to_be_able_to_fail() -> None:
    assert {p.check for p in PLANTED} == validate.CHECKS.keys()


@pytest.mark.parametrize("target", render.targets(), ids=lambda p: p.name)
def test_what_is_in_the_tree_is_right(target: Path) -> None:
    assert problems(render.render(target)) == []


def test_an_empty_target_does_not_pass() -> None:
    assert len(problems(Manifests("base", []))) >= len(validate.CHECKS) - 1


def test_what_kustomize_refuses_is_reported(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: [nothing-here.yaml]\n")
    with pytest.raises(render.RenderError, match="nothing-here"):
        render.render(tmp_path)


def test_doubled_keys_are_refused(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: [doubled.yaml]\n")
    doubled = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  b: c\n  b: d\n"
    (tmp_path / "doubled.yaml").write_text(doubled)
    with pytest.raises(render.RenderError, match="already defined"):
        render.render(tmp_path)


def test_committed_secrets_are_seen() -> None:
    file = BASE / "new.yaml"
    assert sources.secret_free(file, "-----BEGIN EC PRIVATE KEY-----").problem
    assert sources.secret_free(file, "url: rediss://gateway:hunter2@redis:6379").problem
    assert not sources.secret_free(file, "url: rediss://gateway@redis:6379").problem


@pytest.mark.parametrize("service", ["gateway", "push", "worker", "archive"])
def test_the_gate_knows_exactly_the_variables_that_a_service_reads(service: str) -> None:
    known = wiring.REQUIRED[service] | wiring.OPTIONAL[service]
    forbidden = {row.name for row in table.VARIABLES if row.cluster is table.Cluster.FORBIDDEN}
    assert known | forbidden >= {row.name for row in table.read_by(service)}
    assert not known & forbidden


def test_secrets_made_by_hand_are_the_ones_the_manifests_want() -> None:
    numbers = iter(range(100))
    manifests = make_secrets.contents("{}", "{}", "a", lambda: f"password-{next(numbers)}")
    assert {name: tuple(data) for name, data in manifests.items()} == make_secrets.KEYS
    acl = manifests["redis-acl"]["users.acl"]
    for user in make_secrets.REDIS_USERS:
        password = urlsplit(manifests[f"redis-{user}"]["url"]).password
        assert f"user {user} on >{password} " in acl
    assert acl.startswith("user default off\n")


# From the command table of Redis 7.0. Those with `|` are subcommands.
OF_REDIS_7_0 = {
    *("del", "eval", "exists", "get", "getdel", "getex", "hdel", "hello", "hgetall", "hmget"),
    *("hset", "lindex", "llen", "lpop", "mget", "pexpire", "ping", "pttl", "rpush", "set", "time"),
    *("zadd", "zcard", "zpopmin", "zrem", "zremrangebyscore", "client|setname", "hlen"),
}


def test_redis_7_0_knows_every_command_of_the_acl() -> None:
    """A server does not start with an ACL file that names what it does not know."""
    acl = make_secrets.users_acl(dict.fromkeys(make_secrets.REDIS_USERS, "password"))
    assert set(re.findall(r"\+(\S+)", acl)) <= OF_REDIS_7_0


def test_make_secrets_prints_what_kubectl_takes(tmp_path: Path) -> None:
    issuers = tmp_path / "issuers.json"
    issuers.write_text('{"issuers": []}')
    keys = tmp_path / "keys.json"
    command = [sys.executable, "-m", "k8s.make_secrets", "--issuers", str(issuers)]
    archive = tmp_path / "archive"
    archive.write_text("postgresql://archive:secret@db/archive\n")
    command += ["--record-keys", str(keys), "--archive", str(archive)]
    keys.write_text("{}")
    assert subprocess.run(command, capture_output=True, check=False, cwd=ROOT).returncode != 0
    keys.unlink()
    record_keys.create(keys, accept_untagged=False, say=print)
    process = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    listed = json.loads(process.stdout)
    manifests = Manifests("secrets", listed["items"])
    assert [v for v in schema.valid(manifests) if v.problem] == []
    assert {
        d["metadata"]["name"]: tuple(d["stringData"]) for d in listed["items"]
    } == make_secrets.KEYS
