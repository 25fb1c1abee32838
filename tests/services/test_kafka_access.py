"""The Kafka users of a deployment, on a real broker with TLS, SCRAM and an authorizer: the rights
are the ones in k8s/base/users.yaml and k8s/overlays/pipelines, and the clients are the product's
own."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import ipaddress
import secrets
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiokafka
import aiokafka.admin
import aiokafka.errors
import pytest
from aiokafka.protocol.admin import CreateAclsRequest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from k8s.gate import render
from k8s.gate.manifests import Manifests
from pipelines import counts, definition, progress
from tailrace import log
from tailrace.delivery import delivery, log_clients
from tailrace.local import kafka_broker, ports
from tailrace.log import address as kafka_address
from tailrace.protocol import topics
from tests.support import waiting

pytestmark = pytest.mark.timeout(240)

SERVICES = ("gateway", "push", "worker", "operator")
# The broker ends the connections of one listener after this time, as a restart does.
REAUTH_MS = 3_000
DENIED_S = 2.0  # for how long a reader without rights gets nothing
_KINDS = {"topic": 2, "group": 3, "transactionalId": 5}
_OPERATIONS = {
    "Read": 3,
    "Write": 4,
    "Create": 5,
    "Delete": 6,
    "Alter": 7,
    "Describe": 8,
    "DescribeConfigs": 10,
}
_PATTERNS = {"literal": 3, "prefix": 4}
_ALLOW = 3


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuers: ec.EllipticCurvePrivateKey,
    *,
    ca: bool,
) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuers.public_key()), critical=False
        )
    )
    return builder.sign(issuers, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


class Guarded(kafka_broker.Broker):
    """Formatted with the deployment's users in it."""

    users: dict[str, str]

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._settings.write_text(
            kafka_broker.properties(self.port, self.controller_port, self._log_dir, self.extra)
        )
        adds = [
            f"--add-scram=SCRAM-SHA-512=[name={name},iterations=4096,password={password}]"
            for name, password in self.users.items()
        ]
        command = [
            "kafka.tools.StorageTool",
            "format",
            "-t",
            kafka_broker.cluster_id(),
            "-c",
            str(self._settings),
            "--standalone",
            *adds,
        ]
        subprocess.run(self.command(*command), check=True, capture_output=True, timeout=120)


@dataclass(frozen=True)
class Cluster:
    """`inside` is the plain listener of the operators; `port` the one of the deployment's
    clients; of `brief` too, on which no connection lasts."""

    inside: str
    port: int
    brief: int
    folder: Path
    kafka: Guarded

    def address(self, service: str, *, ca: str = "ca.crt", port: int = 0) -> str:
        """`TAILRACE_KAFKA` as the service's pods have it."""
        files = f"password_file={self.folder / service}&ca_file={self.folder / ca}"
        return f"sasl+ssl://tailrace-{service}@127.0.0.1:{port or self.port}?{files}"

    def change_password(self, service: str, password: str) -> None:
        """At the broker. The service's file has the former one."""
        command = self.kafka.command(
            "kafka.admin.ConfigCommand",
            *("--bootstrap-server", self.inside, "--alter", "--entity-type", "users"),
            *("--entity-name", f"tailrace-{service}"),
            *("--add-config", f"SCRAM-SHA-512=[iterations=4096,password={password}]"),
        )
        subprocess.run(command, check=True, capture_output=True, timeout=120)


def _settings(folder: Path, inside: int, port: int, brief: int, controller: int) -> dict[str, str]:
    named = {"INTERNAL": inside, "CLIENTS": port, "BRIEF": brief, "CONTROLLER": controller}
    listeners = ",".join(f"{name}://127.0.0.1:{number}" for name, number in named.items())
    return {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": (
            "INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENTS:SASL_SSL,BRIEF:SASL_SSL"
        ),
        "inter.broker.listener.name": "INTERNAL",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        **_of_clients("clients", folder),
        **_of_clients("brief", folder),
        "listener.name.brief.scram-sha-512.connections.max.reauth.ms": str(REAUTH_MS),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # Strimzi's operators come by a listener of their own; here it is the plain one on the
        # loopback.
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "false",
    }


def _of_clients(listener: str, folder: Path) -> dict[str, str]:
    return {
        f"listener.name.{listener}.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        f"listener.name.{listener}.ssl.keystore.type": "PEM",
        f"listener.name.{listener}.ssl.keystore.location": str(folder / "server.pem"),
        f"listener.name.{listener}.ssl.client.auth": "none",
    }


def _identities(folder: Path, users: dict[str, str]) -> None:
    authority, server, stranger = _key(), _key(), _key()
    private = server.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "ca.crt").write_bytes(_certificate("ca", authority, "ca", authority, ca=True))
    (folder / "other.crt").write_bytes(_certificate("other", stranger, "other", stranger, ca=True))
    (folder / "server.pem").write_bytes(
        private + _certificate("kafka", server, "ca", authority, ca=False)
    )
    for name, password in users.items():
        (folder / name.removeprefix("tailrace-")).write_text(password)


async def _grant(inside: str, manifests: Manifests) -> None:
    """What Strimzi's user operator does with the KafkaUsers."""
    client = aiokafka.AIOKafkaClient(bootstrap_servers=inside)
    await client.bootstrap()
    try:
        for user in manifests.kind("KafkaUser"):
            for acl in user["spec"]["authorization"]["acls"]:
                resource, principal = acl["resource"], f"User:{user['metadata']['name']}"
                kind, pattern = _KINDS[resource["type"]], _PATTERNS[resource["patternType"]]
                for operation in acl["operations"]:
                    request = CreateAclsRequest(
                        *(kind, resource["name"], pattern, principal, "*"),
                        *(_OPERATIONS[operation], _ALLOW),
                    )
                    # The admin client cannot make ACLs. Any broker passes them to the controller.
                    answer = await client.send(client.get_random_node(), request)
                    assert "error_code=0" in str(answer), answer
    finally:
        await client.close()


async def _make_topics(inside: str, names: list[str]) -> None:
    """What Strimzi's topic operator does; the incarnation is not its business."""
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=inside)
    await admin.start()
    try:
        await admin.create_topics([aiokafka.admin.NewTopic(name, 2, 1) for name in names])

        # A broker lists what its controller made a little later.
        async def listed() -> bool:
            return set(names) <= set(await admin.list_topics())

        await waiting.eventually(listed, "the topics are there")
    finally:
        await admin.close()


@pytest.fixture(scope="module")
def manifests() -> Manifests:
    return render.render(render.HERE / "overlays" / "pipelines")


@pytest.fixture(scope="module")
def pipeline(manifests: Manifests) -> definition.Pipeline:
    return manifests.pipelines()["pipeline-reviews"]


TABLE = topics.table(["default"])


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, manifests: Manifests, pipeline: definition.Pipeline
) -> Iterator[Cluster]:
    """A broker as Strimzi sets it up from the manifests, and the log named by the job."""
    folder = tmp_path_factory.mktemp("guarded")
    users = {u["metadata"]["name"]: secrets.token_hex(8) for u in manifests.kind("KafkaUser")}
    _identities(folder, users)
    port = ports.free_port()
    inside = ports.free_port({port})
    brief = ports.free_port({port, inside})
    controller = ports.free_port({port, inside, brief})
    extra = _settings(folder, inside, port, brief, controller)
    kafka = Guarded(
        folder / "kafka",
        port,
        controller,
        run=f"test-{secrets.token_hex(6)}",
        log=folder / "kafka.log",
        extra=extra,
    )
    kafka.users = users
    started = Cluster(f"127.0.0.1:{inside}", port, brief, folder, kafka)
    try:
        kafka.start()
        kafka.wait_ready(120)
        asyncio.run(_grant(started.inside, manifests))
        asyncio.run(
            _make_topics(started.inside, [row.name for row in TABLE if row.name != topics.META])
        )
        # The job runs too early once, as it will: one topic is missing, it may make none, and it
        # says so.
        with pytest.raises(log.LogUnavailable):
            asyncio.run(log.apply_topics(started.address("operator"), ["default"]))
        of_pipeline = [pipeline.input.topic, *pipeline.outputs]
        asyncio.run(_make_topics(started.inside, [topics.META, *of_pipeline]))
        assert asyncio.run(log.apply_topics(started.address("operator"), ["default"])) == []
        yield started
    finally:
        kafka.stop()


@contextlib.asynccontextmanager
async def writer(address: str) -> AsyncIterator[aiokafka.AIOKafkaProducer]:
    producer = aiokafka.AIOKafkaProducer(
        **kafka_address.options(address), acks="all"
    )  # not idempotent: push may not even begin to be
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def writable(address: str, names: list[str]) -> set[str]:
    """Which of these topics it may write."""
    async with writer(address) as producer:

        async def may(topic: str) -> bool:
            try:
                await producer.send_and_wait(topic, b"{}", key=b"probe", partition=0)
            except (
                aiokafka.errors.TopicAuthorizationFailedError,
                aiokafka.errors.UnknownTopicOrPartitionError,
            ):
                return False
            return True

        answers = await asyncio.gather(*map(may, names))
    return {name for name, may_write in zip(names, answers, strict=True) if may_write}


async def readable(address: str, names: list[str], expected: set[str]) -> set[str]:
    """Which of these topics, of which each has a record, it may read. It waits for the `expected`
    ones, and then whether there are others."""
    consumer = aiokafka.AIOKafkaConsumer(
        **kafka_address.options(address), enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await consumer.start()
    found: set[str] = set()

    async def read(wanted: set[str]) -> None:
        while not wanted or not wanted <= found:
            with contextlib.suppress(aiokafka.errors.TopicAuthorizationFailedError):
                found.update(tp.topic for tp in await consumer.getmany(timeout_ms=200))

    try:
        consumer.assign([aiokafka.TopicPartition(name, 0) for name in names])
        if expected:
            await asyncio.wait_for(read(expected), 60)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(read(set()), DENIED_S)
    finally:
        await consumer.stop()
    return found


NAMES = [row.name for row in TABLE]


async def test_each_service_writes_what_the_table_gives_it(cluster: Cluster) -> None:
    found = await asyncio.gather(*(writable(cluster.address(each), NAMES) for each in SERVICES))
    for service, names in zip(SERVICES, found, strict=True):
        assert names == {row.name for row in TABLE if service in row.writers}, service


async def test_each_service_reads_what_the_table_gives_it(cluster: Cluster) -> None:
    assert await writable(cluster.inside, NAMES) == set(NAMES)
    readers: dict[str, set[str]] = {
        service: {row.name for row in TABLE if service in row.readers}
        for service in (*SERVICES, "keda")
    }
    found = await asyncio.gather(
        *(readable(cluster.address(each), NAMES, names) for each, names in readers.items())
    )
    assert dict(zip(readers, found, strict=True)) == readers


@pytest.mark.parametrize("service", ["gateway", "push", "worker"])
async def test_each_service_finds_out_which_log_it_is(cluster: Cluster, service: str) -> None:
    layout = await log.layout(cluster.address(service))
    assert (layout.partitions, len(layout.tag)) == (2, 4)


@pytest.mark.parametrize("service", ["gateway", "worker"])
async def test_the_products_writer_and_reader_work_by_these_rights(
    cluster: Cluster, service: str
) -> None:
    """Its producer is idempotent, which takes a right of its own in older brokers."""
    own, reader = (
        log.Writer(cluster.address(service)),
        log.Reader(cluster.address("push"), topics.TOKENS),
    )
    running = asyncio.ensure_future(own.run())
    try:
        appended = await asyncio.wait_for(own.append(topics.TOKENS, 1, "k", b"{}"), 30)
        reader.follow(1, appended.offset)
        batch = await asyncio.wait_for(anext(_batches(reader)), 30)
        assert (batch[0].offset, batch[0].value) == (appended.offset, b"{}")
    finally:
        await own.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await reader.stop()


async def _batches(reader: log.Reader) -> AsyncIterator[list[log.Record]]:
    while True:
        if batch := await reader.poll():
            yield batch


async def test_a_worker_works_in_its_group_and_delivery_sees_how_far_it_is(
    cluster: Cluster,
) -> None:
    topic, group = topics.requests("default", "interactive"), topics.group("default")
    consumer = aiokafka.AIOKafkaConsumer(
        topic,
        **kafka_address.options(cluster.address("worker")),
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    async with writer(cluster.address("gateway")) as producer:
        await producer.send_and_wait(topic, b"{}", key=b"k", partition=0)
    await consumer.start()
    try:
        record = await asyncio.wait_for(consumer.getone(), 30)
        await consumer.commit({aiokafka.TopicPartition(topic, record.partition): record.offset + 1})
    finally:
        await consumer.stop()
    for service in ("gateway", "push"):
        offsets = log.Offsets(cluster.address(service))
        try:
            assert (await offsets.committed(group))[topic, record.partition][0] == record.offset + 1
        finally:
            await offsets.stop()


@pytest.mark.parametrize("service", ["gateway", "push", "keda"])
async def test_nobody_else_joins_the_workers_group(cluster: Cluster, service: str) -> None:
    topic = topics.requests("default", "interactive")
    consumer = aiokafka.AIOKafkaConsumer(
        topic, **kafka_address.options(cluster.address(service)), group_id=topics.group("default")
    )
    with pytest.raises((aiokafka.errors.GroupAuthorizationFailedError, TimeoutError)):
        await asyncio.wait_for(consumer.start(), 5)
    await consumer.stop()


async def test_the_autoscaler_sees_the_lag(cluster: Cluster) -> None:
    offsets = log.Offsets(cluster.address("keda"))
    try:
        assert await offsets.ends(topics.requests("default", "batch"), [0, 1])
        await offsets.committed(topics.group("default"))
    finally:
        await offsets.stop()


async def test_the_admin_page_sees_how_far_a_pipeline_is_and_no_record(
    cluster: Cluster, pipeline: definition.Pipeline
) -> None:
    """The runner's user commits, as a runner does; that of the page may only ask."""
    topic, page = pipeline.input.topic, cluster.address("admin-page")
    async with writer(cluster.inside) as producer:
        for each in [topic, topic, *pipeline.outputs]:
            await producer.send_and_wait(each, b"{}", partition=0)
    consumer = aiokafka.AIOKafkaConsumer(
        **kafka_address.options(cluster.address("pipeline-reviews")),
        group_id=pipeline.group,
        enable_auto_commit=False,  # which would write the position again, without the counts
    )
    await consumer.start()
    try:
        place = aiokafka.TopicPartition(topic, 0)
        consumer.assign([place])
        done = counts.Counts(read=1, answered=1).encode()
        await consumer.commit({place: aiokafka.structs.OffsetAndMetadata(1, done)})
    finally:
        await consumer.stop()
    offsets = log.Offsets(page)
    try:
        found = await progress.read(pipeline, offsets)
        assert (found.lag, found.done.answered) == (1, 1)
        # This tells a topic that is missing from a broker that is away.
        assert await offsets.existing([topic, *pipeline.outputs, topics.TOKENS]) == {topic}
    finally:
        await offsets.stop()
    both = [topic, pipeline.output.topic]
    assert await readable(page, both, set()) == set()
    assert await writable(page, both) == set()


@pytest.mark.parametrize("wrong", ["password", "user", "authority", "plain"])
async def test_nobody_comes_in_without_the_right_password_over_the_right_tls(
    cluster: Cluster, wrong: str
) -> None:
    (cluster.folder / "wrong").write_text("wrong")
    right = cluster.address("push")
    address = {
        "password": right.replace(
            f"password_file={cluster.folder / 'push'}", f"password_file={cluster.folder / 'wrong'}"
        ),
        "user": right.replace("tailrace-push@", "tailrace-guest@"),
        "authority": cluster.address("push", ca="other.crt"),
        "plain": f"127.0.0.1:{cluster.port}",
    }[wrong]
    client = aiokafka.AIOKafkaProducer(**kafka_address.options(address), request_timeout_ms=3000)
    with pytest.raises((aiokafka.errors.KafkaError, OSError, TimeoutError)):
        await asyncio.wait_for(client.start(), 10)
    await client.stop()


async def _ignored(_: set[tuple[str, int]]) -> None: ...


async def test_a_password_that_is_changed_under_way_makes_no_service_blind(
    cluster: Cluster,
) -> None:
    """aiokafka logs in again with the password that a client was made with. Refused, its consumer
    returned nothing and raised nothing, for ever, while the service said that it was ready."""
    address = cluster.address("worker", port=cluster.brief)
    asked = topics.requests("default", "interactive")
    member = log.GroupConsumer(
        address,
        topics.group("default"),
        [asked],
        session_timeout_ms=6_000,
        assigned=_ignored,
        revoked=_ignored,
        client_id="member",
    )
    own, offsets = log.Writer(address, deadline_s=5), log.Offsets(address)
    gateway = delivery.Delivery(
        log_clients.over_kafka(cluster.address("gateway", port=cluster.brief)),
        layout=await log.layout(address),
        pools=lambda: ["default"],
        preferred=[0],
    )
    reader = log.Reader(address, topics.TOKENS)
    reader.follow(1, (await offsets.ends(topics.TOKENS, [1]))[1])
    got: list[log.Record] = []

    async def read(poll: Callable[[], Awaitable[list[log.Record]]]) -> None:
        while True:
            try:
                got.extend(await poll())
            except log.LogUnavailable:
                await asyncio.sleep(0.1)

    def value(of: bytes) -> bool:
        return {r.topic for r in got if r.value == of} == {topics.TOKENS, asked}

    async def written(of: bytes) -> None:
        async with writer(cluster.inside) as producer:
            for topic in (topics.TOKENS, asked):
                await producer.send_and_wait(topic, of, key=b"k", partition=1)

    running = [
        asyncio.ensure_future(each)
        for each in (
            own.run(),
            gateway.run(),
            read(reader.poll),
            read(functools.partial(member.poll, 100)),
        )
    ]
    try:
        await written(b"before")
        await waiting.eventually(lambda: value(b"before"), "both read", within_s=90)
        await own.append(topics.TOKENS, 0, "k", b"{}")
        await waiting.eventually(lambda: gateway.answered, "the gateway is ready", within_s=90)
        for service in ("worker", "gateway"):
            await asyncio.to_thread(cluster.change_password, service, "another")
        await waiting.eventually(
            lambda: not (reader.answers or member.answers or gateway.answered),
            "they say that they get nothing",
            within_s=90,
        )
        for service in ("worker", "gateway"):
            (cluster.folder / service).write_text("another")
        await written(b"after")
        await waiting.eventually(lambda: value(b"after"), "both read again", within_s=60)
        await waiting.eventually(
            lambda: reader.answers and member.answers and gateway.answered,
            "they say that they get everything",
            within_s=60,
        )

        async def appended() -> bool:
            try:
                await own.append(topics.TOKENS, 0, "k", b"{}")
            except log.AppendFailed:
                return False
            return True

        await waiting.eventually(appended, "the writer writes again", within_s=60)
        assert await offsets.committed(topics.group("default")) is not None
    finally:
        await own.stop(1)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for client in (reader, member, offsets):
            await client.stop()
