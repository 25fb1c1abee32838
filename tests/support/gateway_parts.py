"""A gateway's parts over a log and a Redis in memory, and a worker that is told what to write."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway import cache
from gateway.conversations import conversations, erasure, items, turn_list
from gateway.files import files, uploads
from gateway.load import breakers, canaries, hedging, principal_counts, rate_limits, worker_registry
from gateway.parsing import command, responses_api
from gateway.requests import (
    busy_turns,
    idempotency,
    idempotency_index,
    request_builder,
    request_writer,
    search_port,
    stream_keeper,
    submission,
    token_counts,
    turns,
    wiring,
    withdrawals,
)
from gateway.responses import context, references, response_operations, response_stream
from tailrace import settings
from tailrace.archive import reader
from tailrace.auth.principal import Principal
from tailrace.delivery import delivery, kept_bytes, revocations
from tailrace.log import interfaces
from tailrace.protocol import errors, events, fold, ids, records, seals, topics
from tailrace.settings.shapes import Limits, Pool
from tailrace.web import admitted
from tests.support import memory_delivery, memory_log, memory_redis

ALICE = Principal("https://tests", "alice", None, frozenset(), 2_000_000_000)
BOB = Principal("https://tests", "bob", None, frozenset(), 2_000_000_000)
POOL = Pool("default", ("m",), 1000, 100)
CATALOG = settings.Catalog((POOL,))
POOLS = settings.CurrentPools(CATALOG)


def configuration(**more: str) -> settings.GatewaySettings:
    """Settings with one pool; the issuers' file is any file that exists."""
    return settings.gateway(
        {
            "TAILRACE_ISSUERS": __file__,
            "TAILRACE_POOLS": '{"default":{"models":["m"],"max_model_len":1000}}',
            **more,
        }
    )


def create(
    text: str | list[dict[str, Any]] = "hi", key: str | None = None, **fields: Any
) -> command.Create:
    """A parsed `POST /v1/responses`."""
    body = {"input": text, **fields}
    return command.with_key(responses_api.parse(body, CATALOG), key, body)


@dataclass
class Parts:
    """What a composition root would wire.

    Attributes:
        tasks: background tasks that still run; failures are kept in `failed`.
    """

    broker: memory_log.MemoryLog
    redis: memory_redis.MemoryRedis
    delivery: delivery.Delivery
    writer: interfaces.RecordWriter
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    failed: list[BaseException] = field(default_factory=list)
    limits: Limits = field(default_factory=Limits)
    pools: tuple[Pool, ...] = (POOL,)
    seal_keys: seals.Keys | None = None
    cancel_grace_s: float = 0.0
    records_version: int = records.VERSION_2
    clock: Callable[[], float] = time.time
    searching: search_port.SearchPort | None = None

    def __post_init__(self) -> None:
        self.current = settings.CurrentPools(settings.Catalog(self.pools))
        self.revocations = revocations.Revocations(
            self.broker.reader(topics.REVOCATIONS), self.broker.offsets()
        )
        self.admitted = admitted.Admitted(self.revocations)
        self.cache = cache.Cache(self.redis)
        self.index = idempotency_index.IdempotencyIndex(
            self.broker.offsets(), self.broker.replays()
        )
        self.files = files.Files(
            self.writer, self.broker.replays(), self.broker.offsets(), self.delivery.archived
        )
        self.uploads = uploads.Uploads(
            self.broker.layout.tag,
            self.broker.reader(topics.UPLOADS),
            self.broker.offsets(),
            self.broker.replays(),
            self.writer,
            self.files,
        )
        self.operations = response_operations.ResponseOperations(
            self.delivery, self.writer, self.cache, self.files
        )
        self.rates = rate_limits.RateLimiter(self.cache, self.limits, self.spawn)
        self.streams = stream_keeper.StreamKeeper(
            self.delivery,
            self.operations,
            self.cache,
            self.spawn,
            self.cancel_grace_s,
            self.admitted,
            self.rates.settle,
        )
        self.counts = principal_counts.PrincipalCounts(self.cache, self.streams.running, "this")
        self.workers = worker_registry.WorkerRegistry(self.cache, self.current)
        self.canaries = canaries.Canaries(self.current, self.workers, self.cache)
        self.hedges = hedging.Hedges(self.current, self.cache)
        self.request_writer = request_writer.RequestWriter(self.delivery, self.writer)
        self.builder = request_builder.RequestBuilder(
            self.delivery,
            self.cache,
            self.streams.running,
            self.workers,
            self.broker.layout.partitions,
            self.records_version,
            self.seal_keys,
            uploads=self.uploads,
            search=self.searching,
            canaries=self.canaries,
        )
        self.breakers = breakers.Breakers(self.current, self.workers, self.cache, "this")
        self.withdrawals = withdrawals.Withdrawals(self.operations, self.spawn)
        self.keys = idempotency.Idempotency(
            self.cache, self.index, self.streams, self.operations, self.withdrawals, self.spawn
        )
        self.token_counts = token_counts.TokenCounts(POOLS, self.workers)
        self.references = references.References(self.delivery, self.seal_keys, self.uploads)
        self.conversations = conversations.Conversations(
            self.broker.layout.tag,
            self.delivery.archived,
            self.broker.offsets(),
            self.broker.replays(),
            self.writer,
        )
        self.items = items.Items(self.delivery, self.operations, self.references)
        self.conversation_turns = turn_list.ConversationTurns(
            self.delivery, self.operations, self.items
        )
        self.conversation_erasure = erasure.ConversationErasure(
            self.conversations, self.delivery, self.operations
        )
        self.turns = turns.Turns(
            self.conversations,
            self.items,
            self.delivery,
            context.Resolver(self.delivery, self.cache, self.broker.layout.partitions),
            self.clock,
        )
        self.submission = self.submission_with(self.keys)

    def submission_with(
        self, keys: idempotency.Idempotency, clock: Callable[[], float] = time.monotonic
    ) -> submission.Submission:
        """A submission over these parts with its own idempotency."""
        return wiring.submission_of(
            wiring.Parts(
                pools=self.current,
                limits=self.limits,
                builder=self.builder,
                writer=self.request_writer,
                rates=self.rates,
                keys=keys,
                streams=self.streams,
                workers=self.workers,
                counts=self.counts,
                permit=self.permit,
                withdrawals=self.withdrawals,
                files=self.files,
                turns=self.turns,
                busy=busy_turns.BusyTurns(self.delivery, self.operations),
                tokens=self.token_counts,
                breakers=self.breakers,
                canaries=self.canaries,
                hedges=self.hedges,
                spawn=self.spawn,
            ),
            clock,
        )

    def permit(self, principal: Principal) -> None:
        """As `Access.permit`, for a caller who has been let in."""
        if self.revocations.refuses(principal):
            raise errors.invalid_api_key()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed.append(error)

    async def settled(self) -> None:
        """Wait for the background tasks that run now."""
        await asyncio.wait_for(asyncio.gather(*self.tasks, return_exceptions=True), 5)

    def requests(self) -> list[records.Request]:
        """The request records in the log, in the order of arrival."""
        topic = topics.requests("default", "interactive")
        found = [records.decode_request(r.value) for r in self.broker.appended if r.topic == topic]
        return [request for request in found if request is not None]

    def tokens(self, kind: type[records.TokenRecord]) -> list[records.TokenRecord]:
        """The records of one kind in `llm.tokens`."""
        found = [
            records.token_of(r.key, r.value)
            for r in self.broker.appended
            if r.topic == topics.TOKENS
        ]
        return [record for record in found if isinstance(record, kind)]

    def answer(self, rid: str, *texts: str, end: bool = True, reason: str = "stop") -> None:
        """What a worker would write about the request `rid`."""
        request = next(r for r in self.requests() if r.rid == rid)
        put_answer(self.broker, request, *texts, end=end, reason=reason)


def revoke(known: revocations.Revocations, principal: Principal) -> None:
    """What the fold does with a revocation of this subject's credentials."""
    record = records.Revoked(
        "0" * 16, principal.issuer, principal.issued_at, subject=principal.subject
    )
    known.known.apply(record, 0.0)
    known.on_revoked()


def put_answer(
    broker: memory_log.MemoryLog,
    request: records.Request,
    *texts: str,
    end: bool = True,
    error: tuple[str, str] | None = None,
    dropped: int = 0,
    served: str = "",
    reason: str = "stop",
    answer_of: str = "",
) -> None:
    """What a worker would write: CLAIM, a TOK for each text, and END. `error`: it failed.
    `dropped`: so many messages were left out. `served`: another model answers. `answer_of`: it is
    that response's answer again."""
    rid, partition = request.rid, ids.parse(request.rid).partition
    topic = topics.requests("default", "interactive")
    claim = records.Claim(
        *(rid, "own", None, request.owner, "w/1", topic, 0, "rev", "tok"),
        echo=request.echo,
        dropped=dropped,
        served=served,
        answer_of=answer_of,
    )
    broker.put_record(topics.TOKENS, partition, claim, rid)
    digest = fold.H0
    for i, text in enumerate(texts):
        tok = records.Tok(rid, "own", i, [i], text, digest)
        broker.put_record(topics.TOKENS, partition, tok, rid)
        digest = fold.roll(digest, [i])
    if end:
        usage = records.Usage(1, len(texts))
        reason = reason if error is None else "failed"
        ended = records.End(rid, "own", len(texts), reason, digest, usage=usage, error=error)
        broker.put_record(topics.TOKENS, partition, ended, rid)


def put_vectors(
    broker: memory_log.MemoryLog,
    request: records.Request,
    *vectors: bytes,
    error: tuple[str, str] | None = None,
) -> None:
    """What a worker would write about embeddings: CLAIM and END."""
    rid, partition = request.rid, ids.parse(request.rid).partition
    topic = topics.requests("default", "interactive")
    claim = records.Claim(
        rid, "own", None, request.owner, "w/1", topic, 0, "rev", "tok", 3, request.echo
    )
    broker.put_record(topics.TOKENS, partition, claim, rid)
    reason = "failed" if error else "stop"
    usage = records.Usage(input_tokens=3)
    ended = records.End(rid, "own", 0, reason, fold.H0, usage=usage, error=error, vectors=vectors)
    broker.put_record(topics.TOKENS, partition, ended, rid)


def put_items(
    broker: memory_log.MemoryLog, request: records.Request, *pieces: tuple[records.MarkKind, str]
) -> None:
    """What a worker with a parser would write: CLAIM, a TOK for each item, and END. Calls are of
    the tool `f`."""
    rid, partition = request.rid, ids.parse(request.rid).partition
    topic = topics.requests("default", "interactive")
    claim = records.Claim(
        rid,
        "own",
        None,
        request.owner,
        "w/1",
        topic,
        0,
        "rev",
        "tok",
        echo=request.echo,
        parser="toy",
    )
    written: list[records.TokenRecord] = [claim]
    digest, calls = fold.H0, 0
    for i, (kind, text) in enumerate(pieces):
        mark = records.Mark(0, 0, kind)
        if kind in ("c", "x"):
            mark = records.Mark(0, 0, kind, "f", ids.call_id(rid, calls))
            calls += 1
        written.append(records.Tok(rid, "own", i, [i], text, digest, marks=(mark,)))
        digest = fold.roll(digest, [i])
    usage = records.Usage(1, len(pieces))
    written.append(records.End(rid, "own", len(pieces), "stop", digest, usage=usage))
    for record in written:
        broker.put_record(topics.TOKENS, partition, record, rid)


@contextlib.asynccontextmanager
async def running(
    broker: memory_log.MemoryLog | None = None,
    redis: memory_redis.MemoryRedis | None = None,
    kept: kept_bytes.KeptBytes | None = None,
    archive: reader.Reader | None = None,
    preferred: Sequence[int] = (0,),
    **more: Any,
) -> AsyncIterator[Parts]:
    """The parts of one gateway; its delivery is ready inside."""
    broker = broker or memory_log.MemoryLog("one", 1)
    made = memory_delivery.over(broker, preferred=preferred, kept=kept, archive=archive)
    more.setdefault("writer", broker.writer())
    async with memory_delivery.running(made):
        parts = Parts(broker, redis or memory_redis.MemoryRedis(), made, **more)
        try:
            yield parts
            await parts.settled()
            assert not parts.failed
        finally:
            for task in parts.tasks:
                task.cancel()
            await parts.index.stop()


async def all_events(stream: response_stream.ResponseStream) -> list[events.Event]:
    """All events of a stream, up to its end."""
    found: list[events.Event] = []
    async with asyncio.timeout(5):
        while batch := await stream.next_events():
            found += batch
    return found
