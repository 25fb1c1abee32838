"""Composition root of the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import fastapi
from starlette.routing import WebSocketRoute

from gateway.cache import Cache
from gateway.conversations import wiring as conversations_wiring
from gateway.files import files, uploads
from gateway.load import (
    breakers,
    canaries,
    hedging,
    placement,
    principal_counts,
    rate_limits,
    worker_registry,
)
from gateway.requests import (
    busy_turns,
    expiry,
    idempotency,
    idempotency_index,
    request_builder,
    request_writer,
    stream_keeper,
    token_counts,
    turns,
    withdrawals,
)
from gateway.requests import wiring as requests_wiring
from gateway.requests.submission import Submission
from gateway.responses import context, references, response_operations
from gateway.retrieval import wiring as retrieval_wiring
from gateway.routes import not_offered, page
from gateway.routes import wiring as routes_wiring
from gateway.sockets import endpoint
from tailrace import admin, log, settings, telemetry
from tailrace.archive import reader
from tailrace.auth.issuers import Issuers, load_issuers
from tailrace.delivery import delivery, feed, kept_bytes, log_clients, pool_topics, revocations
from tailrace.log import interfaces
from tailrace.protocol import seals, share_tokens, topics
from tailrace.store.queues import Queues
from tailrace.store.redis_store import RedisStore
from tailrace.store.tickets import Tickets
from tailrace.telemetry import gc_tuning
from tailrace.vectors import contract, milvus
from tailrace.web import (
    access,
    admitted,
    credential_timer,
    drain,
    error_mapping,
    listener,
    middleware,
    query_routes,
    runner,
    server,
    session_cookie,
    shares,
    write_deadline,
)


@dataclass(frozen=True, slots=True)
class Clients:
    """The network clients of a gateway.

    Attributes:
        redis_cache: holds data that may be evicted; None: `redis` does.
        delivery: reads the log for the delivery.
        key_offsets, key_replays: read the request topics for the index of idempotency keys.
        uploads: tails `llm.uploads`.
        vectors: the vector database, and the tails of `llm.vector_stores` and `llm.passages`; None:
            this deployment has none.
    """

    redis: RedisStore
    redis_cache: RedisStore | None
    writer: interfaces.RecordWriter
    delivery: log_clients.LogClients
    key_offsets: interfaces.OffsetQueries
    key_replays: interfaces.RangeReader
    uploads: interfaces.TailReader
    vectors: retrieval_wiring.Clients | None


def over_network(config: settings.GatewaySettings, layout: log.Layout) -> Clients:
    """Clients of Kafka, Redis and the vector database. They connect at their first use.

    Raises:
        settings.Misconfigured: a library is missing.
    """

    def whole(topic: str, purpose: str) -> interfaces.TailReader:
        return log.Reader(
            config.kafka,
            topic,
            wait_ms=log_clients.WHOLE_TOPIC_WAIT_MS,
            client_id=f"{config.name}-{purpose}",
        )

    vectors = None
    if config.vectors:
        try:
            database = milvus.open_database(config.vectors, config.name, layout.tag)
        except contract.NotInstalled as error:
            raise settings.Misconfigured(str(error)) from error
        vectors = (
            database,
            whole(topics.VECTOR_STORES, "vector-stores"),
            whole(topics.PASSAGES, "passages"),
        )
    return Clients(
        RedisStore(config.redis),
        RedisStore(config.redis_cache) if config.redis_cache else None,
        log.Writer(
            config.kafka,
            client_id=config.name,
            deadline_s=request_writer.APPEND_DEADLINE_S,
        ),
        log_clients.over_kafka(config.kafka, config.name),
        log.Offsets(config.kafka, client_id=f"{config.name}-keys-offsets"),
        log.Replays(config.kafka, client_id=f"{config.name}-keys"),
        whole(topics.UPLOADS, "uploads"),
        vectors,
    )


class Gateway:
    """All parts of one process, wired.

    Attributes:
        _group: owns every background task; set while `run` runs.
    """

    def __init__(
        self,
        config: settings.GatewaySettings,
        issuers: Issuers,
        layout: log.Layout,
        clients: Clients,
        clock: Callable[[], float] = time.time,
        later: credential_timer.Later = credential_timer.on_loop,
    ) -> None:
        """`clock`, in seconds since the epoch, and `later`: for credentials and their expiry."""
        self._config = config
        self._group: asyncio.TaskGroup | None = None
        self.draining = drain.Draining()
        self.checks = write_deadline.DeadlineChecks()
        self.redis = clients.redis
        cache = Cache(self.redis, clients.redis_cache)
        self.redis_cache = clients.redis_cache
        self.pools = settings.CurrentPools(
            config.pools,
            admit=lambda added: pool_topics.check(clients.delivery.offsets, added),
        )
        self.workers = worker_registry.WorkerRegistry(cache, self.pools)
        self.token_counts = token_counts.TokenCounts(self.pools, self.workers)
        self.delivery = delivery.Delivery(
            clients.delivery,
            layout=layout,
            pools=self.pools.ever,
            preferred=placement.preferred_partitions(
                layout.partitions, int.from_bytes(os.urandom(2), "big")
            ),
            request_bytes=kept_bytes.KeptBytes(config.limits.kept_bytes_per_principal),
            archive=reader.open_reader(config.archive),
            queues=Queues(self.redis),
        )
        self.writer = clients.writer
        self.idempotency_index = idempotency_index.IdempotencyIndex(
            clients.key_offsets, clients.key_replays
        )
        self.key_sets = access.key_sets(issuers)
        self.revocations = revocations.Revocations(
            clients.delivery.revocations, clients.delivery.offsets
        )
        keys = config.session_keys
        sessions = session_cookie.SessionCookies(
            keys[0] if keys else os.urandom(session_cookie.MIN_KEY_BYTES)
        )
        tickets = Tickets(self.redis)
        seal_keys = seals.Keys(keys) if keys else None
        gate = access.Access(
            self.key_sets,
            tickets,
            self.revocations,
            admitted.Admitted(self.revocations),
            shares.OpenConnections(config.limits),
            shares.Rates(config.limits),
            config.origins,
            clock,
            sessions,
            later,
        )
        prompt_files = files.Files(
            self.writer,
            clients.delivery.replays,
            clients.delivery.offsets,
            self.delivery.archived,
        )
        self.uploads = uploads.Uploads(
            layout.tag,
            clients.uploads,
            clients.delivery.offsets,
            clients.delivery.replays,
            self.writer,
            prompt_files,
        )
        operations = response_operations.ResponseOperations(
            self.delivery, self.writer, cache, prompt_files
        )
        rates = rate_limits.RateLimiter(cache, config.limits, self.spawn)
        streams = stream_keeper.StreamKeeper(
            self.delivery,
            operations,
            cache,
            self.spawn,
            config.cancel_grace_s,
            gate.admitted,
            rates.settle,
        )
        withdrawing = withdrawals.Withdrawals(operations, self.spawn)
        self.expiry = expiry.Expiry(self.delivery, operations)
        self.counts = principal_counts.PrincipalCounts(
            cache, streams.running, f"{config.name}/{os.urandom(4).hex()}"
        )
        resolver = context.Resolver(self.delivery, cache, layout.partitions)
        reference_resolver = references.References(self.delivery, seal_keys, self.uploads)
        self.conversations = conversations_wiring.conversations_of(
            *(
                layout.tag,
                self.delivery,
                clients.delivery,
                self.writer,
                operations,
                reference_resolver,
            ),
            share_tokens.Tokens(keys) if keys else None,
        )
        conversations = self.conversations
        self.breakers = breakers.Breakers(
            self.pools,
            self.workers,
            cache,
            f"{config.name}/{os.urandom(4).hex()}",
        )
        self.canaries = canaries.Canaries(self.pools, self.workers, cache)
        self.retrieval: retrieval_wiring.Retrieval | None = None
        if clients.vectors is not None:
            self.retrieval = retrieval_wiring.retrieval_of(
                *(clients.vectors, config, layout.tag, clients.delivery.offsets, self.writer),
                *(self.pools, self.uploads, withdrawing, lambda: self.submission, gate.clock),
            )
        builder = request_builder.RequestBuilder(
            self.delivery,
            cache,
            streams.running,
            self.workers,
            layout.partitions,
            config.records_version,
            seal_keys,
            uploads=self.uploads,
            search=self.retrieval.searcher if self.retrieval is not None else None,
            canaries=self.canaries,
            affinity=bool(config.prefix_affinity),
        )
        self.submission: Submission = requests_wiring.submission_of(
            requests_wiring.Parts(
                pools=self.pools,
                limits=config.limits,
                builder=builder,
                writer=request_writer.RequestWriter(self.delivery, self.writer),
                rates=rates,
                keys=idempotency.Idempotency(
                    cache, self.idempotency_index, streams, operations, withdrawing, self.spawn
                ),
                streams=streams,
                workers=self.workers,
                counts=self.counts,
                permit=gate.permit,
                withdrawals=withdrawing,
                files=prompt_files,
                turns=turns.Turns(
                    conversations.registry, conversations.items, self.delivery, resolver
                ),
                busy=busy_turns.BusyTurns(self.delivery, operations),
                tokens=self.token_counts,
                breakers=self.breakers,
                canaries=self.canaries,
                hedges=hedging.Hedges(self.pools, cache),
                spawn=self.spawn,
            )
        )
        self.sockets = endpoint.Sockets(
            config,
            self.pools,
            gate,
            self.submission,
            operations,
            self.draining,
            self.checks,
            self.spawn,
            self.delivery.kept,
        )
        reading = clients.delivery
        self.feeds = feed.Feeds(layout.tag, reading.feeds, reading.offsets, reading.replays)
        self.queries = query_routes.QueryRoutes(
            self.delivery, gate, self.draining, self.checks, self.feeds
        )
        self.routes = routes_wiring.table_of(
            routes_wiring.Parts(
                config=config,
                pools=self.pools,
                gate=gate,
                submission=self.submission,
                withdrawals=withdrawing,
                operations=operations,
                references=reference_resolver,
                conversations=self.conversations,
                retrieval=self.retrieval,
                files=prompt_files,
                uploads=self.uploads,
                rates=rates,
                delivery=self.delivery,
                writer=self.writer,
                revocations=self.revocations,
                sessions=sessions,
                tickets=tickets,
                redis=self.redis,
                workers=self.workers,
                breakers=self.breakers,
                canaries=self.canaries,
                tails=(clients.uploads, *(clients.vectors[1:] if clients.vectors else ())),
                draining=self.draining,
                checks=self.checks,
                seal_keys=seal_keys,
                version=_version(),
            )
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run in the background. A failure is logged and ends nothing else."""
        if self._group is None:
            work.close()
            return
        # RuntimeError: the group is closing. The process ends, and the log has all that matters.
        with contextlib.suppress(RuntimeError):
            self._group.create_task(_log_failure(work))

    def application(self) -> fastapi.FastAPI:
        app = fastapi.FastAPI(
            title="Tailrace",
            version=_version(),
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            exception_handlers={**error_mapping.HANDLERS},
        )
        app.include_router(self.routes.router())
        app.router.routes.append(WebSocketRoute("/v1/responses", self.sockets.serve))
        app.router.routes.extend(self.queries.routes())
        app.router.routes.extend(not_offered.routes())
        if self._config.page is not None:
            app.router.routes.extend(page.Page(self._config.page, self._config.push_urls).routes())
        telemetry.instrument(app)
        return app

    async def run(
        self, listening_socket: socket.socket, stop: asyncio.Event, hurry: asyncio.Event
    ) -> None:
        """Serve on `listening_socket` until `stop`, then drain; `hurry` ends the drain.

        Raises:
            settings.Misconfigured: the admin address is taken.
        """
        config = self._config
        application = self.queries.in_front_of(self.routes.create.in_front_of(self.application()))
        http_server = server.make(
            middleware.OuterMiddleware(application, config.origins),
            config,
            ws_max_bytes=config.max_ws_bytes,
            drain_s=drain.CLOSE_S,
        )
        parts: list[runner.Part] = [
            *(self.delivery, self.revocations, self.writer, self.workers, self.counts),
            *(self.key_sets, self.uploads, self.feeds, self.token_counts, self.pools),
            *(self.breakers, self.canaries, self.submission.following.rerouting, self.expiry),
            *(self.submission.following.hedges, *(self.retrieval.parts if self.retrieval else ())),
        ]
        if config.admin_port:
            parts.append(
                admin.AdminServer(config.host, config.admin_port, self.routes.health.readiness)
            )
        gc_tuning.freeze()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._group = tasks
                serving = tasks.create_task(http_server.serve(sockets=[listening_socket]))
                background = [tasks.create_task(part.run()) for part in parts]
                ingesting = (
                    [tasks.create_task(self.retrieval.ingestion.run())] if self.retrieval else []
                )
                telemetry.log(
                    telemetry.Action.SERVICE_STARTED,
                    port=config.port,
                    preferred=list(self.delivery.preferred),
                )
                await stop.wait()
                for task in ingesting:  # another gateway continues it, and no drain waits for it
                    task.cancel()
                    await asyncio.wait([task])
                await self._drain(hurry)
                http_server.should_exit = True
                await serving
                await self.writer.stop()
                for task in background:
                    task.cancel()
                await self.delivery.stop()
                await self.idempotency_index.stop()
                raise _Stop
        except* _Stop:
            pass
        finally:
            self._group = None
            self.token_counts.close()
            await self.redis.aclose()
            if self.redis_cache is not None:
                await self.redis_cache.aclose()
            telemetry.log(telemetry.Action.SERVICE_STOPPED)

    async def _drain(self, hurry: asyncio.Event) -> None:
        """Turn readiness off and give load balancers time to notice; then refuse new requests; then
        give running responses a bounded time; then close all sockets, so that clients reconnect
        elsewhere."""
        telemetry.log(
            telemetry.Action.DRAIN_STARTED,
            sockets=len(self.sockets),
            running=len(self.submission.streams.running),
        )
        self.submission.intake.leaving = True
        await _until(hurry, self._config.accept_s)
        self.submission.intake.refusing = True
        self.sockets.leave()
        await drain.until_zero(
            lambda: 0 if hurry.is_set() else self.submission.streams.active_streams,
            self._config.drain_s,
        )
        self.draining.begin()
        await drain.until_zero(lambda: len(self.sockets) + len(self.queries.sockets), drain.CLOSE_S)


class _Stop(Exception):
    """Ends the task group in order."""


async def serve(config: settings.GatewaySettings) -> None:
    """One gateway process.

    Raises:
        settings.Misconfigured, IssuersRefused: before it serves any client.
        Exception: a part failed for good, for example because the log was replaced. The process
            must be started again.
    """
    issuers = load_issuers(config.issuers)
    listening_socket = listener.bind(config.host, config.port)
    with contextlib.closing(listening_socket):
        layout = await runner.layout(config.kafka)
        await Gateway(config, issuers, layout, over_network(config, layout)).run(
            listening_socket, *runner.on_signals()
        )


async def _log_failure(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception as error:
        telemetry.log(telemetry.Action.TASK_FAILED, exc_info=error)


async def _until(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _version() -> str:
    try:
        return importlib.metadata.version("tailrace")
    except importlib.metadata.PackageNotFoundError:
        return "0"
