"""Rendered manifests as the checks see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipelines import definition

Doc = dict[str, Any]


class Verdict(NamedTuple):
    """The result of checking one object. `problem` is empty if it is right."""

    subject: str
    problem: str = ""


def verdict_on(what: str | Doc, fine: object, problem: str) -> Verdict:
    """The verdict on something that is right when `fine` is true. `what`: a resource, or a name."""
    return Verdict(what if isinstance(what, str) else subject(what), "" if fine else problem)


@dataclass(frozen=True)
class Workload:
    """A resource that makes pods. `pod` is the pod's spec, `labels` are those of its pods."""

    doc: Doc
    pod: Doc
    labels: dict[str, str]

    @property
    def name(self) -> str:
        return str(self.doc["metadata"]["name"])

    @property
    def containers(self) -> list[Doc]:
        """All containers, with the init containers."""
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def subject(self) -> str:
        return f"{self.doc['kind']}/{self.name}"


@dataclass(frozen=True)
class Manifests:
    """One rendered target (`base`, `overlays/gpu`, ...)."""

    target: str
    docs: list[Doc]

    def kind(self, *kinds: str) -> list[Doc]:
        return [d for d in self.docs if d["kind"] in kinds]

    def resource(self, kind: str, name: str) -> Doc | None:
        return next((d for d in self.kind(kind) if d["metadata"]["name"] == name), None)

    def workloads(self) -> list[Workload]:
        pod_makers = []
        for doc in self.kind("Deployment", "StatefulSet", "DaemonSet", "Job"):
            template = doc["spec"]["template"]
            pod_makers.append(
                Workload(doc, template["spec"], template["metadata"].get("labels", {}))
            )
        return pod_makers + [_of_flink(doc) for doc in self.kind("FlinkDeployment")]

    def workload(self, name: str) -> Workload | None:
        return next((w for w in self.workloads() if w.name == name), None)

    def config(self, workload: Workload, container: Doc) -> dict[str, str | None]:
        """A container's environment; None where the value comes from outside these manifests."""
        env: dict[str, str | None] = {}
        for source in container.get("envFrom", []):
            config_map = self.resource("ConfigMap", source.get("configMapRef", {}).get("name", ""))
            env |= config_map.get("data", {}) if config_map else {}
        for entry in container.get("env", []):
            env[entry["name"]] = entry.get("value")
        return env

    def settings(self, name: str) -> dict[str, str | None]:
        """The environment of a workload's only container; empty without a workload of that name."""
        workload = self.workload(name)
        return self.config(workload, workload.containers[0]) if workload else {}

    def pipelines(self) -> dict[str, definition.Pipeline]:
        """The pipelines of this deployment, by the name of the workload that runs them.

        Raises definition.Invalid: a file is not a pipeline.
        """
        by_workload = {}
        for workload in self.workloads():
            if workload.labels.get("app.kubernetes.io/component") != "pipeline":
                continue
            for volume in workload.pod["volumes"]:
                source = self.resource("ConfigMap", volume.get("configMap", {}).get("name", ""))
                if source is not None:
                    [text] = source["data"].values()
                    by_workload[workload.name] = definition.parse(text)
        return by_workload


def _of_flink(doc: Doc) -> Workload:
    """The pods that Flink's operator makes: its template, image and account, and the resources of
    the larger of both kinds."""
    spec = doc["spec"]
    template = spec["podTemplate"]
    most = max((spec["jobManager"], spec["taskManager"]), key=lambda kind: kind["resource"]["cpu"])
    [main] = template["spec"]["containers"]
    bounds = {"requests": most["resource"], "limits": most["resource"]}
    container = {"image": spec["image"], "resources": bounds, **main}
    pod = {
        **template["spec"],
        "serviceAccountName": spec["serviceAccount"],
        "containers": [container],
    }
    return Workload(doc, pod, template["metadata"]["labels"])


Check = Callable[[Manifests], Iterator[Verdict]]


def subject(doc: Mapping[str, Any]) -> str:
    return f"{doc['kind']}/{doc['metadata']['name']}"


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector (matchLabels, matchExpressions; empty selects all) selects a pod
    with these labels."""
    if any(labels.get(k) != v for k, v in selector.get("matchLabels", {}).items()):
        return False
    return all(_expression(e, labels) for e in selector.get("matchExpressions", []))


def _expression(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, operator, values = (
        labels.get(expression["key"]),
        expression["operator"],
        expression.get("values", []),
    )
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    return (value is not None) is (operator == "Exists")


# The pods that Strimzi creates for the cluster, by their labels. They are in no manifest here.
STRIMZI_PODS: dict[str, dict[str, str]] = {
    "kafka": {
        "app.kubernetes.io/name": "kafka",
        "strimzi.io/cluster": "kafka",
        "strimzi.io/name": "kafka-kafka",
        "strimzi.io/kind": "Kafka",
    },
    "kafka-exporter": {
        "app.kubernetes.io/name": "kafka-exporter",
        "strimzi.io/cluster": "kafka",
        "strimzi.io/name": "kafka-kafka-exporter",
    },
    "entity-operator": {
        "app.kubernetes.io/name": "entity-operator",
        "strimzi.io/cluster": "kafka",
        "strimzi.io/name": "kafka-entity-operator",
    },
}
