"""Kafka: the cluster meets the log rule's requirements, and topics, users and the autoscaler agree
with tailrace/protocol/topics.py."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from k8s.gate import admin_page, analytics
from k8s.gate.manifests import Check, Doc, Manifests, Verdict, subject, verdict_on
from pipelines import definition
from tailrace.protocol import topics

# Lag may show that work exists, not how much: from this threshold on it requests one worker.
ONLY_ACTIVATES = 1_000_000
Grants = dict[tuple[str, str], set[str]]  # (resource type, name) -> operations
SERVICES: tuple[topics.Service, ...] = ("gateway", "push", "worker", "archive", "operator")
CLUSTER_CONFIG = {"auto.create.topics.enable": False, "unclean.leader.election.enable": False}
REPLICATED = (
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
)


def pools(m: Manifests) -> dict[str, Doc]:
    """The pools of this deployment, from the file that the gateway's settings name."""
    return (yaml.safe_load(pools_text(m)) or {}).get("pools") or {}


def pools_text(m: Manifests) -> str:
    """The file that the gateway's settings name; empty if no map that the gateway mounts has it."""
    workload = m.workload("gateway")
    path = m.settings("gateway").get("TAILRACE_POOLS") or ""
    folder, _, name = path.rpartition("/")
    if workload is None:
        return ""
    mounts = {v["name"] for v in workload.containers[0]["volumeMounts"] if v["mountPath"] == folder}
    for volume in workload.pod["volumes"]:
        if volume["name"] in mounts and "configMap" in volume:
            config_map = m.resource("ConfigMap", volume["configMap"]["name"])
            return str((config_map or {}).get("data", {}).get(name, ""))
    return ""


def _brokers(m: Manifests) -> int:
    return sum(
        p["spec"]["replicas"] for p in m.kind("KafkaNodePool") if "broker" in p["spec"]["roles"]
    )


def cluster_labels(m: Manifests) -> Iterator[Verdict]:
    names = {k["metadata"]["name"] for k in m.kind("Kafka")}
    for doc in m.kind("KafkaNodePool", "KafkaTopic", "KafkaUser"):
        label = doc["metadata"].get("labels", {}).get("strimzi.io/cluster")
        yield verdict_on(
            doc, label in names, f"belongs to cluster {label!r}, there is {sorted(names)}"
        )


def quorum(m: Manifests) -> Iterator[Verdict]:
    """An odd number of controllers with one metadata volume each, and a broker for each replica."""
    controllers = [p for p in m.kind("KafkaNodePool") if "controller" in p["spec"]["roles"]]
    voters = sum(p["spec"]["replicas"] for p in controllers)
    yield verdict_on(
        "controllers", voters % 2, f"{voters} controllers cannot form a majority safely"
    )
    for pool in controllers:
        metadata_volumes = [
            v for v in pool["spec"]["storage"]["volumes"] if v.get("kraftMetadata") == "shared"
        ]
        yield verdict_on(
            pool,
            len(metadata_volumes) == 1,
            f"{len(metadata_volumes)} volumes for the metadata log",
        )
    yield verdict_on("brokers", _brokers(m), "no broker")


def safe_log(m: Manifests) -> Iterator[Verdict]:
    """The settings that the log rule relies on (docs/log-rule.md, section 8)."""
    for kafka in m.kind("Kafka"):
        config = kafka["spec"]["kafka"]["config"]
        for key, required in CLUSTER_CONFIG.items():
            yield verdict_on(
                f"{subject(kafka)} {key}",
                config.get(key) is required,
                f"is {config.get(key)}, not {required}",
            )
        for key in REPLICATED:
            yield verdict_on(
                f"{subject(kafka)} {key}",
                config.get(key) == min(3, _brokers(m)),
                f"is {config.get(key)} with {_brokers(m)} brokers",
            )
        insync, factor = (
            config.get("min.insync.replicas"),
            config.get("default.replication.factor", 1),
        )
        yield verdict_on(
            f"{subject(kafka)} min.insync.replicas",
            insync == max(1, factor - 1),
            f"is {insync} of {factor}",
        )


def guarded(m: Manifests) -> Iterator[Verdict]:
    """TLS, SCRAM-SHA-512, deny by default, no super users, and a listener that is not open to the
    whole cluster."""
    for kafka in m.kind("Kafka"):
        spec = kafka["spec"]["kafka"]
        for listener in spec["listeners"]:
            name = f"{subject(kafka)} listener {listener['name']}"
            if (
                listener.get("tls") is not True
                or listener.get("authentication", {}).get("type") != "scram-sha-512"
            ):
                yield Verdict(name, "clients are not asked for TLS and SCRAM-SHA-512")
            elif listener["type"] != "internal":
                yield Verdict(name, f"is reachable from outside ({listener['type']})")
            else:
                yield verdict_on(
                    name,
                    listener.get("networkPolicyPeers"),
                    "Strimzi's policy lets every pod of the cluster in",
                )
        authorization = spec["authorization"]
        fine = authorization == {"type": "simple"}
        yield verdict_on(
            f"{subject(kafka)} authorization",
            fine,
            f"is {authorization}: simple, without super users",
        )
    for user in m.kind("KafkaUser"):
        kind = user["spec"]["authentication"]["type"]
        yield verdict_on(
            user, kind == "scram-sha-512", f"authenticates by {kind}, the listener wants SCRAM"
        )


def topic_table(m: Manifests) -> Iterator[Verdict]:
    """Every topic of tailrace/protocol/topics.py with its settings, none besides, and enough
    replicas."""
    rows = {row.name: row for row in topics.table(sorted(pools(m)))}
    manifest_topics = {topic_name(t): t for t in m.kind("KafkaTopic")}
    pipeline_topics = {
        name
        for pipeline in m.pipelines().values()
        for name in (pipeline.input.topic, *pipeline.outputs)
    }
    for name in sorted(pipeline_topics):
        yield Verdict(name, _copies_problem(m, manifest_topics.pop(name, None), "a pipeline"))
    for name in analytics.results(m):
        topic = manifest_topics.pop(name, None)
        problem = _copies_problem(m, topic, "analytics")
        if topic is not None and topic["spec"]["config"].get("cleanup.policy") != "compact":
            problem = "is not compacted, and forgets results"
        yield Verdict(name, problem)
    for name in sorted(rows.keys() | manifest_topics.keys()):
        if name not in manifest_topics or name not in rows:
            yield Verdict(
                name,
                "is not in the manifests"
                if name in rows
                else "is not in tailrace/protocol/topics.py",
            )
        else:
            yield Verdict(name, _topic_problem(m, rows[name], manifest_topics[name]["spec"]))


def topic_name(topic: Doc) -> str:
    return str(topic["spec"].get("topicName") or topic["metadata"]["name"])


def _copies_problem(m: Manifests, topic: Doc | None, who: str) -> str:
    if topic is None:
        return f"{who} needs it, and it is not in the manifests"
    replicas, insync = topic["spec"]["replicas"], topic["spec"]["config"]["min.insync.replicas"]
    if replicas != min(3, _brokers(m)) or insync != str(max(1, replicas - 1)):
        return f"{replicas} replicas on {_brokers(m)} brokers, min.insync.replicas {insync}"
    return ""


def _topic_problem(m: Manifests, row: topics.Topic, spec: Doc) -> str:
    config, replicas = dict(spec["config"]), spec["replicas"]
    insync = config.pop("min.insync.replicas", None)
    if config != row.config:
        odd = sorted(
            k for k in config.keys() | row.config.keys() if config.get(k) != row.config.get(k)
        )
        return "settings differ from tailrace/protocol/topics.py: " + ", ".join(
            f"{k} is {config.get(k)}, not {row.config.get(k)}" for k in odd
        )
    if row.partitions and spec["partitions"] != row.partitions:
        return (
            f"has {spec['partitions']} partitions, tailrace/protocol/topics.py says "
            f"{row.partitions}"
        )
    if replicas != min(3, _brokers(m)):
        return f"{replicas} replicas on {_brokers(m)} brokers"
    return (
        ""
        if insync == str(max(1, replicas - 1))
        else f"min.insync.replicas is {insync} of {replicas}"
    )


def copartitioned(m: Manifests) -> Iterator[Verdict]:
    """Request topics and llm.tokens have one partition count (log rule P1)."""
    rows = {row.name for row in topics.table(sorted(pools(m))) if row.partitions == 0}
    counts = {
        topic_name(t): t["spec"]["partitions"]
        for t in m.kind("KafkaTopic")
        if topic_name(t) in rows
    }
    for name, count in counts.items():
        yield verdict_on(
            name,
            count == counts.get(topics.TOKENS),
            f"has {count} partitions, {topics.TOKENS} has {counts.get(topics.TOKENS)}",
        )


def acls(m: Manifests) -> Iterator[Verdict]:
    """Each principal may do what tailrace/protocol/topics.py gives it, and nothing more."""
    required = {f"tailrace-{service}": _grants(m, service) for service in SERVICES}
    required["tailrace-keda"] = _scaler_grants(m)
    required |= {
        f"tailrace-{name}": _pipeline_grants(pipeline) for name, pipeline in m.pipelines().items()
    }
    required |= analytics.grants(m) | admin_page.grants(m)
    users = {u["metadata"]["name"]: u for u in m.kind("KafkaUser")}
    for name in sorted(required.keys() | users.keys()):
        if name not in users or name not in required:
            yield Verdict(
                f"KafkaUser/{name}",
                "is missing" if name in required else "is a principal that no service uses",
            )
            continue
        granted, problem = _user_grants(users[name])
        if not problem and granted != required[name]:
            odd = sorted(
                r
                for r in granted.keys() | required[name].keys()
                if granted.get(r) != required[name].get(r)
            )
            problem = "; ".join(
                f"{kind} {n}: has {_ops(granted, (kind, n))}, "
                f"needs {_ops(required[name], (kind, n))}"
                for kind, n in odd
            )
        yield Verdict(f"KafkaUser/{name}", problem)


def _ops(grants: Grants, resource: tuple[str, str]) -> str:
    return "+".join(sorted(grants.get(resource, ()))) or "nothing"


def _grants(m: Manifests, service: topics.Service) -> Grants:
    """The service's column of the matrix. Read and Write imply Describe; group membership takes
    Read on the group."""
    grants: Grants = {}
    for row in topics.table(sorted(pools(m))):
        operations = {
            op for op, who in (("Read", row.readers), ("Write", row.writers)) if service in who
        }
        if operations:
            grants["topic", row.name] = operations
    # A worker is a member of its pool's group. Delivery asks for the group's committed offsets
    # (tailrace/delivery/look_up.py): Describe, no membership.
    on_group = {"worker": {"Read"}, "gateway": {"Describe"}, "push": {"Describe"}}.get(service)
    if on_group:
        grants |= {("group", topics.group(pool)): on_group for pool in pools(m)}
    return grants


def _pipeline_grants(pipeline: definition.Pipeline) -> Grants:
    """docs/pipelines.md, What Kafka has to allow. A runner reads its own outputs."""
    grants: Grants = {("topic", topic): {"Read", "Write"} for topic in pipeline.outputs}
    if pipeline.alert is not None:
        grants["topic", pipeline.alert.topic] = {"Write"}
    return grants | {
        ("topic", pipeline.input.topic): {"Read"},
        ("group", pipeline.group): {"Read"},
        ("transactionalId", f"{pipeline.group}.*"): {"Describe", "Write"},
    }


def _scaler_grants(m: Manifests) -> Grants:
    """Reading the lag needs only Describe on topics and groups, not Read."""
    grants: Grants = {
        ("topic", topics.requests(pool, c)): {"Describe"}
        for pool in pools(m)
        for c in topics.CLASSES
    }
    return grants | {("group", topics.group(pool)): {"Describe"} for pool in pools(m)}


def _user_grants(user: Doc) -> tuple[Grants, str]:
    grants: Grants = {}
    for acl in user["spec"]["authorization"]["acls"]:
        resource = acl["resource"]
        kind, name = resource["type"], resource.get("name", "")
        if kind == "cluster":
            grants[kind, name] = set(acl["operations"])
            continue
        # A producer's id ends with the number of a partition, and partitions may be added.
        ours = kind == "transactionalId" and name.startswith(("tailrace.pipelines.", "analytics."))
        if ours and name.endswith(".") and resource["patternType"] == "prefix":
            grants[kind, f"{name}*"] = set(acl["operations"])
            continue
        if resource["patternType"] != "literal" or "*" in resource["name"]:
            return {}, f"a pattern ({resource['name']}) covers what is not known yet"
        grants.setdefault((resource["type"], resource["name"]), set()).update(acl["operations"])
    return grants, ""


def autoscaler(m: Manifests) -> Iterator[Verdict]:
    """KEDA reads the lag of every request topic of the pool, which shows that work exists, and the
    backlog of each class, which shows how much. Its maximum is at most the number of partitions."""
    counts = {topic_name(t): t["spec"]["partitions"] for t in m.kind("KafkaTopic")}
    for scaled in m.kind("ScaledObject"):
        spec, pool = (
            scaled["spec"],
            m.settings(scaled["spec"]["scaleTargetRef"]["name"]).get("TAILRACE_POOL"),
        )
        lags = [t["metadata"] for t in spec["triggers"] if t["type"] == "kafka"]
        topics_in_triggers, pool_topics = (
            {t["topic"] for t in lags},
            {topics.requests(str(pool), c) for c in topics.CLASSES},
        )
        yield verdict_on(
            f"{subject(scaled)} topics",
            topics_in_triggers == pool_topics,
            f"watches {sorted(topics_in_triggers)}, the pool has {sorted(pool_topics)}",
        )
        queries = [t["metadata"]["query"] for t in spec["triggers"] if t["type"] == "prometheus"]
        for name in topics.CLASSES:
            words = f'kind="{name}"', "tailrace_backlog_tokens", "tailrace_drain_tokens_per_second"
            has_trigger = any(all(word in query for word in words) for query in queries)
            yield verdict_on(
                f"{subject(scaled)} {name} backlog", has_trigger, "no trigger asks for it"
            )
        # Each name of a metric is followed by the labels that choose its series.
        selectors = [part for query in queries for part in query.split("tailrace_")[1:]]
        own_selectors = [part for part in selectors if f'pool="{pool}"' in part.partition("}")[0]]
        yield verdict_on(
            f"{subject(scaled)} pool",
            own_selectors == selectors,
            "a query counts other pools' work",
        )
        for lag in lags:
            yield verdict_on(
                f"{subject(scaled)} {lag['topic']} threshold",
                int(lag["lagThreshold"]) >= ONLY_ACTIVATES,
                "lag counts finished requests; it may activate, not scale",
            )
            limit = counts.get(lag["topic"], 0)
            group_fits = lag["consumerGroup"] == topics.group(str(pool))
            yield verdict_on(
                f"{subject(scaled)} {lag['topic']} group",
                group_fits,
                f"{lag['consumerGroup']} is not the pool's group",
            )
            most = spec["maxReplicaCount"]
            yield verdict_on(
                f"{subject(scaled)} {lag['topic']} size",
                most <= limit,
                f"{most} workers for {limit} partitions: the rest would idle",
            )
        at_most = (
            spec["minReplicaCount"]
            <= spec.get("fallback", {}).get("replicas", spec["minReplicaCount"])
            <= spec["maxReplicaCount"]
        )
        yield verdict_on(f"{subject(scaled)} bounds", at_most, "fallback lies outside the bounds")


def bootstrap(m: Manifests) -> Iterator[Verdict]:
    """Each service's address of Kafka is a listener, and its user is the one whose password is
    mounted."""
    addresses = {
        f"{k['metadata']['name']}-kafka-bootstrap:{listener['port']}"
        for k in m.kind("Kafka")
        for listener in k["spec"]["kafka"]["listeners"]
    }
    for workload in m.workloads():
        for container in workload.containers:
            address = m.config(workload, container).get("TAILRACE_KAFKA")
            if address is None:
                continue
            scheme, _, rest = address.partition("://")
            user, _, rest = rest.partition("@")
            server = rest.partition("?")[0]
            secret_names = {v.get("secret", {}).get("secretName") for v in workload.pod["volumes"]}
            if scheme != "sasl+ssl" or server not in addresses:
                yield Verdict(
                    workload.subject,
                    f"{address} is not a listener of the cluster: {sorted(addresses)}",
                )
            else:
                yield verdict_on(
                    workload.subject,
                    user in secret_names,
                    f"connects as {user} without that user's password",
                )
    for scaled in m.kind("ScaledObject"):
        for trigger in (t["metadata"] for t in scaled["spec"]["triggers"] if t["type"] == "kafka"):
            host, _, port = trigger["bootstrapServers"].partition(":")
            is_listener = f"{host.removesuffix('.svc').partition('.')[0]}:{port}" in addresses
            is_secured = trigger.get("tls") == "enable" and trigger.get("sasl") == "scram_sha512"
            yield verdict_on(
                f"{subject(scaled)} {trigger['topic']}",
                is_listener and is_secured,
                f"asks {trigger['bootstrapServers']} without TLS and SCRAM",
            )


CHECKS: dict[str, Check] = {
    "Strimzi resources belong to the cluster": cluster_labels,
    "controllers and brokers": quorum,
    "broker settings of the log rule": safe_log,
    "TLS, SCRAM, deny by default": guarded,
    "topics as in tailrace/protocol/topics.py": topic_table,
    "requests and tokens co-partitioned": copartitioned,
    "ACLs as in tailrace/protocol/topics.py": acls,
    "autoscaler fits pool and partitions": autoscaler,
    "Kafka addresses and users": bootstrap,
}
