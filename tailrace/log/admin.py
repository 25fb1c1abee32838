"""Administration: applies topics, and identifies the log."""

from __future__ import annotations

import asyncio
import functools
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import aiokafka
import aiokafka.admin
import aiokafka.errors
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tailrace.log import address, clients, compacted, moved_deletions
from tailrace.log.deadlines import start_client
from tailrace.protocol import ids, log_words, records, topics
from tailrace.retry import retry_until

_TOPIC_EXISTS = 36
_NOT_AUTHORIZED = 29
_TOPIC_SETTING = 1  # where a setting is from: it was given for this topic

# How long another process may take to name the log after it created the topics. Two names would be
# two logs, so it covers an append that the broker of a busy machine acknowledges late.
NAMING_TIMEOUT_S = 20.0
# How long brokers may take to know topics that the controller created.
METADATA_TIMEOUT_S = 60.0


class _NotYet(Exception):
    """The answer will change soon."""


class Layout(NamedTuple):
    """What a service must know of the log before it serves.

    Attributes:
        incarnation: names the log; a log that was removed and created again has another one.
        tag: the incarnation as response ids carry it.
        partitions: number of partitions of `llm.tokens` and of each request topic.
    """

    incarnation: str
    tag: bytes
    partitions: int


async def apply_topics(
    bootstrap: str,
    pools: Sequence[str],
    *,
    partitions: int = 8,
    replication: int = 1,
    min_insync: int = 1,
) -> list[str]:
    """Create the topics of `tailrace.protocol.topics` that are missing, and name the log's
    incarnation when `llm.tokens` is new. Copies deletions that an older version wrote, and removes
    the retention time of `llm.conversations` of an older version. Returns the new topics' names.

    The token topic is created first: a request partition needs its token partition for the answers
    (log rule P9).

    Raises:
        LogUnavailable: the broker refused; the message names topic and error.
    """
    admin = aiokafka.admin.AIOKafkaAdminClient(
        **address.options(bootstrap), request_timeout_ms=30_000
    )
    try:
        await admin.start()
        existing = set(await clients.retry_once(admin.list_topics))
        rows = sorted(topics.table(list(pools)), key=lambda t: t.name != topics.TOKENS)
        if topics.TOKENS in existing:  # a new pool's request topics must fit the log that is there
            description = await clients.retry_once(lambda: admin.describe_topics([topics.TOKENS]))
            partitions = len(description[0]["partitions"])
        created = []
        for row in rows:
            config = {
                **row.config,
                **({"min.insync.replicas": str(min_insync)} if min_insync > 1 else {}),
            }
            if row.name not in existing and await _create(
                admin, row.name, row.partitions or partitions, replication, config
            ):
                created.append(row.name)
        await _wait_until_known(admin, created)
        if topics.CONVERSATIONS in existing:
            await _remove_retention(admin, topics.CONVERSATIONS)
    except (
        aiokafka.errors.KafkaError,
        OSError,
        TimeoutError,
        AttributeError,
    ) as error:  # AttributeError: there is no controller (aiokafka 0.14)
        raise log_words.LogUnavailable(f"topics could not be applied: {error!r}") from error
    finally:
        await clients.close_admin(admin)
    if topics.TOKENS in created or await _wait_for_incarnation(bootstrap) is None:
        await _name_incarnation(bootstrap)
    await compacted.renew_signatures(bootstrap)
    if topics.CONVERSATIONS in existing:
        await moved_deletions.copy_deletions(bootstrap)
    return created


async def create_topics(
    bootstrap: str, names: Sequence[str], *, partitions: int, replication: int = 1
) -> list[str]:
    """Create the missing topics among `names`, which are not the product's, with the broker's
    settings. Returns the new topics' names.

    Raises:
        LogUnavailable: the broker refused, or does not answer.
    """
    admin = aiokafka.admin.AIOKafkaAdminClient(
        **address.options(bootstrap), request_timeout_ms=30_000
    )
    try:
        await admin.start()
        existing = set(await clients.retry_once(admin.list_topics))
        created = [
            name
            for name in names
            if name not in existing and await _create(admin, name, partitions, replication, {})
        ]
        await _wait_until_known(admin, created)
        return created
    except (aiokafka.errors.KafkaError, OSError, TimeoutError, AttributeError) as error:
        raise log_words.LogUnavailable(f"topics could not be created: {error!r}") from error
    finally:
        await clients.close_admin(admin)


async def _create(
    admin: aiokafka.admin.AIOKafkaAdminClient,
    name: str,
    partitions: int,
    replication: int,
    config: dict[str, str],
) -> bool:
    """Whether this call created the topic. Of two that run at once only one may name the log's
    incarnation."""
    new = aiokafka.admin.NewTopic(name, partitions, replication, topic_configs=config)
    answer = await clients.retry_once(lambda: admin.create_topics([new]))
    for topic_error in answer.topic_errors:  # create_topics returns errors instead of raising them
        code, message = topic_error[1], topic_error[2] if len(topic_error) > 2 else ""
        if code not in (0, _TOPIC_EXISTS):
            raise log_words.LogUnavailable(f"topic {name}: error {code} {message or ''}".strip())
    return all(topic_error[1] == 0 for topic_error in answer.topic_errors)


async def _remove_retention(admin: aiokafka.admin.AIOKafkaAdminClient, name: str) -> None:
    """Give a topic that an older version created with a retention time the settings of the table.
    Other settings of an existing topic belong to its operator. If this user may not see them,
    another one manages the topics (`k8s/base/topics.yaml`)."""
    [row] = [row for row in topics.table(()) if row.name == name]
    resource = ConfigResource(ConfigResourceType.TOPIC, name)
    [answer] = await clients.retry_once(lambda: admin.describe_configs([resource]))
    [(code, message, _, _, entries)] = answer.resources
    if code == _NOT_AUTHORIZED:
        return
    if code:
        raise log_words.LogUnavailable(f"settings of {name}: error {code} {message or ''}".strip())
    settings = {entry[0]: entry[1] for entry in entries}
    if settings["cleanup.policy"] == row.config["cleanup.policy"]:
        return
    # All at once: settings that are missing here fall back to the broker's default.
    overrides = {entry[0]: entry[1] for entry in entries if entry[3] == _TOPIC_SETTING}
    overrides.pop("retention.ms", None)
    change = ConfigResource(ConfigResourceType.TOPIC, name, {**overrides, **row.config})
    [result] = await clients.retry_once(lambda: admin.alter_configs([change]))
    [(code, message, *_)] = result.resources
    if code:
        raise log_words.LogUnavailable(f"settings of {name}: error {code} {message or ''}".strip())


async def _wait_until_known(admin: aiokafka.admin.AIOKafkaAdminClient, names: list[str]) -> None:
    """Wait until brokers know these topics. Their metadata follows the controller's, on a busy
    machine by many seconds.

    Raises:
        LogUnavailable: they do not know them after `METADATA_TIMEOUT_S`.
    """
    unknown = list(names)
    try:
        async with asyncio.timeout(METADATA_TIMEOUT_S):
            while unknown:
                descriptions = await clients.retry_once(
                    functools.partial(admin.describe_topics, unknown)
                )
                unknown = [d["topic"] for d in descriptions if d["error_code"]]
                await asyncio.sleep(0.05 if unknown else 0)
    except TimeoutError as error:
        raise log_words.LogUnavailable(
            f"after {METADATA_TIMEOUT_S:g} s the broker still does not know {', '.join(unknown)}"
        ) from error


async def _name_incarnation(bootstrap: str) -> None:
    value = records.encode(records.Incarnation(uuid.uuid4().hex))
    await compacted.append(bootstrap, topics.META, [(b"incarnation", value)])


async def _wait_for_incarnation(bootstrap: str) -> str | None:
    """The incarnation, or None. Waits a moment for another process that created the topics and is
    about to name it."""

    async def read_incarnation() -> str:
        if (incarnation := await _incarnation(bootstrap)) is None:
            raise _NotYet
        return incarnation

    try:
        return await retry_until(
            read_incarnation, on=_NotYet, pause_s=clients.RETRY_S, deadline_s=NAMING_TIMEOUT_S
        )
    except _NotYet:
        return None


async def _incarnation(bootstrap: str) -> str | None:
    compacted_topic = await compacted.latest(bootstrap, topics.META)
    entry = compacted_topic.by_key.get(b"incarnation")
    record = records.decode_meta(entry.value) if entry is not None else None
    if record is None and compacted_topic.forged_count:
        # Not a log without a name: another one would make every response of it unreadable.
        raise log_words.LogUnavailable(
            "the log's incarnation record has no good tag: let the key file accept untagged "
            'records and run `tailrace topics apply` once (docs/operations.md, "Record keys")'
        )
    return record.id if record is not None else None


async def _describe(bootstrap: str, deadline_s: float) -> dict[str, dict[str, Any]]:
    """The two topics that every log has, by name, as the broker describes them."""
    admin = aiokafka.admin.AIOKafkaAdminClient(**address.options(bootstrap))
    # An attempt that begins just before the deadline needs time to connect, too.
    deadline_s = max(deadline_s, clients.RETRY_S)
    try:
        await start_client(admin, deadline_s)
        async with asyncio.timeout(deadline_s):
            descriptions = await clients.retry_once(
                lambda: admin.describe_topics([topics.TOKENS, topics.META])
            )
            return {d["topic"]: d for d in descriptions}
    finally:
        await clients.close_admin(admin)


async def layout(bootstrap: str) -> Layout:
    """Which log this is.

    Raises:
        LogUnavailable: the broker does not answer, or the topics are missing: `tailrace topics
            apply` creates them.
    """
    give_up = time.monotonic() + clients.ANSWER_DEADLINE_S
    try:
        # A broker that has just started, or was paused for long, may name no broker in its answer.
        descriptions = await retry_until(
            lambda: _describe(bootstrap, give_up - time.monotonic()),
            on=aiokafka.errors.NodeNotReadyError,
            pause_s=clients.RETRY_S,
            deadline_s=clients.ANSWER_DEADLINE_S,
        )
    except aiokafka.errors.NodeNotReadyError as error:
        raise log_words.LogUnavailable(f"Kafka at {bootstrap}: no broker of it is ready") from error
    except clients.CONNECTION_ERRORS as error:
        raise log_words.LogUnavailable(f"Kafka at {bootstrap}: {type(error).__name__}") from error
    counts = {name: len(d["partitions"]) for name, d in descriptions.items() if not d["error_code"]}
    if not counts.get(topics.TOKENS) or not counts.get(topics.META):
        raise log_words.LogUnavailable("the topics do not exist: run `tailrace topics apply`")
    incarnation = await _incarnation(bootstrap)
    if incarnation is None:
        raise log_words.LogUnavailable(
            "the log has no incarnation record: run `tailrace topics apply`"
        )
    return Layout(incarnation, ids.incarnation_tag(incarnation), counts[topics.TOKENS])


async def wait_for_layout(
    read_layout: Callable[[], Awaitable[Layout]], waiting: Callable[[str], None]
) -> Layout:
    """Which log this is; waits for a broker that is starting and for topics that are being applied.
    `waiting` is called with each new reason to wait."""
    last_reason = ""

    def failed(error: Exception) -> None:
        nonlocal last_reason
        if str(error) != last_reason:
            last_reason = str(error)
            waiting(last_reason)

    return await retry_until(
        read_layout,
        on=log_words.LogUnavailable,
        pause_s=clients.RETRY_S,
        failed=failed,
    )
