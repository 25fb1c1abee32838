"""Moves what a consumer group has committed, while it has no member."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import aiokafka
import aiokafka.errors
from aiokafka.structs import OffsetAndMetadata

from tailrace.log import address, client_api, clients, deadlines, transactions
from tailrace.protocol import log_words


class GroupRuns(Exception):
    """The group has members, and only these may commit."""


async def move(
    bootstrap: str,
    group: str,
    offsets: Mapping[tuple[str, int], tuple[int, str]],
    *,
    transactional_ids: Iterable[str] = (),
) -> None:
    """Commit (next offset, metadata) by (topic, partition).

    `transactional_ids`: of producers that commit offsets of the group. They are fenced first: a
    member that was only paused is no longer in the group, and would commit a transaction that it
    had begun over these offsets. A running one acquires its id again.

    Raises:
        GroupRuns: nothing was committed.
        LogUnavailable: no answer.
    """
    for transactional_id in transactional_ids:
        fence = transactions.Transactions(bootstrap, transactional_id, client_id=group)
        await fence.start()
        await fence.stop()
    consumer = aiokafka.AIOKafkaConsumer(
        **address.options(bootstrap), group_id=group, enable_auto_commit=False
    )
    commits = {
        aiokafka.TopicPartition(topic, partition): OffsetAndMetadata(offset, metadata)
        for (topic, partition), (offset, metadata) in offsets.items()
    }
    try:
        await deadlines.start_client(consumer, clients.ANSWER_DEADLINE_S)
        consumer.assign(list(commits))
        await consumer.commit(commits)
    except (aiokafka.errors.CommitFailedError, aiokafka.errors.UnknownMemberIdError) as error:
        raise GroupRuns(group) from error
    except clients.CONNECTION_ERRORS as error:
        raise log_words.LogUnavailable(f"offsets of {group}: {type(error).__name__}") from error
    finally:
        await client_api.default().stop_consumer(consumer, 1.0)
