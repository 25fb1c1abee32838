"""Three real brokers: one also the controller, so the other two may be killed. Three replicas of
everything, two of which must have a record."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tailrace import log as wire_log
from tailrace.local import kafka_broker, ports
from tests.support import local

REPLICAS = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "share.coordinator.state.topic.replication.factor": "3",
    "unclean.leader.election.enable": "false",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.wait.max.ms": "100",
    "leader.imbalance.check.interval.seconds": "5",
}


class Node(kafka_broker.Broker):
    """One member; formatted for a cluster that has a name already."""

    def __init__(self, cluster: str, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._cluster = cluster

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._settings.write_text(
            kafka_broker.properties(self.port, self.controller_port, self._log_dir, self.extra)
        )
        if (self._log_dir / "meta.properties").exists():
            return
        alone = (
            [] if self.extra and self.extra.get("process.roles") == "broker" else ["--standalone"]
        )
        command = self.command(
            "kafka.tools.StorageTool",
            "format",
            "-t",
            self._cluster,
            "-c",
            str(self._settings),
            *alone,
        )
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=kafka_broker.START_S
        )

    def segments(self, topic: str, partition: int) -> list[Path]:
        """Its files of one partition, oldest first."""
        return sorted((self._log_dir / f"{topic}-{partition}").glob("*.log"))


class Cluster:
    """`nodes[0]` is the controller; kill any other."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tailrace-cluster-"))
        self.links: dict[str, Any] = {}
        taken: set[int] = set()
        for _ in range(6):
            taken.add(ports.free_port(taken))
        chosen = sorted(taken)
        name, run = kafka_broker.cluster_id(), f"test-{secrets.token_hex(6)}"
        self.nodes: list[Node] = []
        for i in range(3):
            extra = {
                **local.QUICK_RETURN,
                **REPLICAS,
                "node.id": str(i + 1),
                "controller.quorum.bootstrap.servers": f"127.0.0.1:{chosen[3]}",
            }
            if i:
                plain = f"PLAINTEXT://127.0.0.1:{chosen[i]}"
                extra |= {
                    "process.roles": "broker",
                    "listeners": plain,
                    "advertised.listeners": plain,
                }
            folder = self.folder / f"node-{i + 1}"
            self.nodes.append(
                Node(
                    name,
                    folder,
                    chosen[i],
                    chosen[3 + i],
                    run=run,
                    log=self.folder / f"node-{i + 1}.log",
                    heap_mb=256,
                    extra=extra,
                )
            )

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def address(self, _name: str) -> str:
        return self.bootstrap

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait_ready()

    def apply_topics(self, pools: Iterable[str] = ("default",)) -> None:
        asyncio.run(
            wire_log.apply_topics(
                self.bootstrap,
                tuple(pools),
                partitions=local.PARTITIONS,
                replication=3,
                min_insync=2,
            )
        )

    def close(self) -> None:
        for node in reversed(self.nodes):
            node.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
