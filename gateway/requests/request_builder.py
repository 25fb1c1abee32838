"""Builds a request record from a checked command: history, partition, id, echo."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from gateway.cache import Cache
from gateway.files import passage_prompt
from gateway.files.uploads import Uploads
from gateway.load import admission, backlog, placement, pool_workers, worker_registry
from gateway.load.canaries import Canaries
from gateway.parsing import command, conversation, images, sampling
from gateway.requests import forks, requirements, search_port
from gateway.responses import context, references
from gateway.responses.memory import ResponseMemory
from tailrace import telemetry
from tailrace.auth.principal import Principal
from tailrace.delivery import delivery
from tailrace.protocol import equal_requests, errors, events, ids, records, seals, topics
from tailrace.web import access

_NO_TEXT: Final = (
    "The response '{}' has no text that could be continued without an 'input': its answer is "
    "complete, is not plain text, or ends with a call or with reasoning."
)


class RequestBuilder:
    """Builds request records.

    Attributes:
        _turn: counts placements, so that equally loaded partitions alternate.
    """

    def __init__(
        self,
        deliver: delivery.Delivery,
        cache: Cache,
        running: admission.Running,
        workers: worker_registry.WorkerRegistry,
        partitions: int,
        records_version: int = records.VERSION_2,
        seal_keys: seals.Keys | None = None,
        *,
        uploads: Uploads,
        search: search_port.SearchPort | None = None,
        canaries: Canaries | None = None,
        affinity: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`records_version`: the newest that may be written. `seal_keys`: None to seal nothing.
        `search`: None where there are no vector stores. `canaries`: None without shares of
        revisions. `affinity`: whether placement uses the workers' prefix caches."""
        self._delivery = deliver
        self._cache = cache
        self._running = running
        self._workers = workers
        self._partitions = partitions
        self._all_partitions = frozenset(range(partitions))
        self._records_version = records_version
        self._seal_keys = seal_keys
        self._clock = clock
        self._references = references.References(deliver, seal_keys, uploads)
        self._resolver = context.Resolver(deliver, cache, partitions)
        self._search = search
        self._turn = itertools.count()
        self._canaries = canaries
        self._affinity = affinity

    async def before(
        self,
        create: command.Create,
        principal: Principal,
        memory: ResponseMemory | None = None,
    ) -> context.History:
        """The history of a request outside conversations. Raises like `build`."""
        owner = access.owner_of(principal)
        return await self._resolver.resolve(create.previous, owner, memory)

    async def build(
        self,
        create: command.Create,
        principal: Principal,
        memory: ResponseMemory | None = None,
        before: context.History | None = None,
    ) -> tuple[records.Request, int]:
        """The request record and its partition.

        Args:
            memory: the connection's memory of the previous response.
            before: its history, if known; always set for a turn of a conversation.

        Raises:
            errors.ApiError: the previous response cannot be continued, the fork's source does not
                exist or has fewer tokens, there is no input, an item of it cannot be resolved,
                calls and outputs of tools do not match, files cannot be searched, or the deployment
                lacks a feature.
            busy.Busy: the previous response is still running.
            log.LogUnavailable
        """
        owner = access.owner_of(principal)
        if create.embed is not None:
            return await self._embeddings(create, principal, owner)
        if create.fork is not None:
            return await self._fork(create, create.fork, principal, owner)
        history = before or await self._resolver.resolve(create.previous, owner, memory)
        with_references = await self._references.resolve(create, owner)
        past = context.last_turns(history.messages)
        # A warm-up is not an answer: a request without input after it answers the warm-up's input.
        continues = None if create.turn else context.is_open(past)
        if continues is False and create.generate and create.previous is not None:
            raise errors.invalid_value("previous_response_id", _NO_TEXT.format(create.previous))
        open_calls: set[str] = set()
        if create.previous is not None or before is not None or with_references is not create:
            create = with_references
            open_calls = conversation.check_calls(create.turn, past, complete=create.generate)
        if create.generate:  # a turn after a warm-up may still answer them
            past = context.without_open_calls(past, open_calls)
        if continues:
            _check_continuation(create)
        head = (
            [{"role": "system", "content": create.instructions}]
            if create.instructions is not None
            else []
        )
        messages = [*head, *past, *create.input]
        if not messages:
            raise errors.missing_required_parameter("input")
        images.check_count(messages, "input")
        search_echo: dict[str, Any] = {}
        if create.search is not None and self._search is not None:
            prompt = await self._search.prompt(create, create.search, messages, principal)
            if prompt is not None:
                messages, search_echo = prompt.messages, passage_prompt.echo_member(prompt.search)
        prefix = (
            placement.prefix(owner.cache_scope, create.model, messages) if create.cached else []
        )
        request = records.Request(
            rid="",
            owner=owner,
            model=create.model,
            messages=messages,
            sampling=create.sampling,
            echo={},
            input=create.items,
            previous=create.previous,
            store=create.store,
            generate=create.generate,
            ttl_ms=create.deadline_ms,
            idempotency_key=key_digest(create.idempotency_key),
            prefix=prefix,
            body_digest=create.body_digest,
            choice=create.choice,
            conversation=create.conversation,
            cached_answers=create.cached_answers,
            **self._extension(create),
            continue_final=bool(continues),
        )
        partition = await self._place(create, principal, history, request, messages)
        rid = await self._delivery.mint(partition)
        echo = {**self._echo(rid, create, owner), **search_echo}
        request = msgspec.structs.replace(request, rid=rid, echo=echo)
        return self._continuable(create, request), partition

    async def _embeddings(
        self, create: command.Create, principal: Principal, owner: records.Owner
    ) -> tuple[records.Request, int]:
        """Like `build`. The request has no messages and cannot be continued."""
        request = records.Request(
            rid="",
            owner=owner,
            model=create.model,
            messages=[],
            sampling=create.sampling,
            echo={},
            store=False,
            ttl_ms=create.deadline_ms,
            idempotency_key=key_digest(create.idempotency_key),
            body_digest=create.body_digest,
            embed=create.embed,
        )
        partition = await self._place(create, principal, context.NO_HISTORY, request)
        rid = await self._delivery.mint(partition)
        echo = events.embeddings_echo(rid, int(self._clock()), create.model, create.metadata)
        return msgspec.structs.replace(request, rid=rid, echo=echo), partition

    async def _fork(
        self,
        create: command.Create,
        fork: records.Fork,
        principal: Principal,
        owner: records.Owner,
    ) -> tuple[records.Request, int]:
        """Like `build`. The prompt is copied from the source's record, so that this record is
        complete; all else is as the client says now."""
        fork_source = await forks.source(self._delivery, fork, create.model, owner, self._clock())
        source = fork_source.request
        if source.format is not None:
            what = "the format of the response that is forked"
            sampling.check_beside_format(create.sampling, what)
        prefix = (
            placement.prefix(owner.cache_scope, create.model, source.messages)
            if create.cached
            else []
        )
        history = context.History([], ids.parse(fork.rid).partition)
        request = records.Request(
            rid="",
            owner=owner,
            model=create.model,
            sampling=create.sampling,
            echo={},
            store=create.store,
            ttl_ms=create.deadline_ms,
            idempotency_key=key_digest(create.idempotency_key),
            prefix=prefix,
            body_digest=create.body_digest,
            fork=fork_source.fork,
            conversation=create.conversation,
            **forks.prompt(source),
        )
        partition = await self._place(create, principal, history, request, source.messages)
        rid = await self._delivery.mint(partition)
        echo = {**self._echo(rid, create, owner), **forks.echo(fork_source)}
        request = msgspec.structs.replace(request, rid=rid, echo=echo)
        return self._continuable(create, request), partition

    @property
    def records_version(self) -> int:
        """The newest version of records that may be written."""
        return self._records_version

    def continues(self, pool: str) -> bool:
        """Whether answers of a pool can be continued by their text."""
        if self._records_version < records.VERSION_2:  # older readers show the marker
            return False
        return requirements.continues(self._workers.workers(pool))

    def _continuable(self, create: command.Create, request: records.Request) -> records.Request:
        """The request. Its echo tells whether an incomplete answer can be continued."""
        if not continuable(request) or not self.continues(create.pool):
            return request
        return msgspec.structs.replace(request, echo={**request.echo, events.CONTINUE: True})

    def _extension(self, create: command.Create) -> dict[str, Any]:
        """Members of version 2, if used: a plain request keeps its bytes."""
        members: dict[str, Any] = {}
        if create.tools.prompt:
            members = {
                "tools": list(create.tools.prompt),
                "tool_choice": create.tools.choice,
                "parallel_tool_calls": create.tools.parallel,
                "max_tool_calls": create.tools.max_calls,
            }
        if create.raw:
            members["raw"] = True
        if create.truncate:
            members["truncate"] = True
        if create.format is not None:
            members["format"] = create.format.engine
        if create.reasoning is not None and self._records_version >= records.VERSION_2:
            members["reasoning"] = create.reasoning.engine  # a hint, which an old reader may miss
        return members

    async def _place(
        self,
        create: command.Create,
        principal: Principal,
        history: context.History,
        request: records.Request,
        messages: Sequence[dict[str, Any]] = (),
    ) -> int:
        """The partition of a request without an id, at a worker that has the features it needs.

        Raises:
            errors.ApiError: no worker has them.
        """
        key_partition, workers = None, self._workers.workers(create.pool)
        if create.idempotency_key is not None:
            key_partition = self.partition_of_key(principal, create.idempotency_key)
            own = [worker for worker in workers if key_partition in backlog.partitions_of(worker)]
            workers = own or workers
        capable = requirements.check(create, request, newest=self._records_version, workers=workers)
        partition = key_partition
        if partition is None:
            among = self._workers.partitions(create.pool)
            if len(capable) < len(workers):
                among = worker_registry.served_partitions(capable)
            partition = await self._partition(create, principal, history, request, messages, among)
        self.count_placement(create.pool, partition, create, principal)
        return partition

    async def _partition(
        self,
        create: command.Create,
        principal: Principal,
        history: context.History,
        request: records.Request,
        messages: Sequence[dict[str, Any]],
        among: frozenset[int],
    ) -> int:
        """`among`: partitions of capable workers."""
        if self._canaries is not None:
            scope = access.owner_of(principal).cache_scope
            revision_partitions = self._canaries.partitions(create.pool, scope, messages)
            among = among & revision_partitions or among or revision_partitions
        place = await self._place_by_workers(
            create, principal, request.prefix, history.partition, among
        )
        if place is None:
            return placement.choose(
                self._delivery.preferred,
                self._partitions,
                self._running.count_on,
                sticky=history.partition,
                turn=next(self._turn),
                ready_partitions=among,
            )
        telemetry.PREFIX_LOOKUPS.labels(outcome=place.outcome).inc()
        telemetry.EXPECTED_CACHED.inc(place.cached)
        return place.partition

    async def _place_by_workers(
        self,
        create: command.Create,
        principal: Principal,
        prefix: Sequence[str],
        sticky: int | None,
        among: frozenset[int],
    ) -> placement.Place | None:
        """The place by the workers' heartbeats; None without heartbeats."""
        if not self._affinity:
            return None
        pool, tokens = create.pool, dict[str, int]()
        if not self._workers.workers(pool):
            return None
        if prefix:
            names = [worker.incarnation for worker in self._workers.backlog(pool).ready]
            tokens = await self._cache.prefix_tokens(pool, prefix, names)
        work = self._workers.backlog(pool)
        each = work.each or float(create.sampling.max_tokens)
        candidates = self._all_partitions & among
        workers = pool_workers.candidates(work, candidates, create.priority, principal.key, each)
        if not workers:
            return None
        return placement.place(
            workers,
            self._delivery.preferred,
            self._running.count_on,
            cached=tokens,
            each=each,
            sticky=sticky,
            turn=next(self._turn),
        )

    def count_placement(
        self, pool: str, partition: int, create: command.Create, principal: Principal
    ) -> None:
        """Count a request for a partition until the heartbeats of the pool's workers may include
        it."""
        work, rank = self._workers.backlog(pool), topics.CLASSES.index(create.priority)
        for worker in work.serving(partition):
            work.placements.add(worker.incarnation, principal.key, rank)

    def discard(self, partition: int, create: command.Create, principal: Principal) -> None:
        """Undo `count_placement`: the request is not written."""
        work, rank = self._workers.backlog(create.pool), topics.CLASSES.index(create.priority)
        for worker in work.serving(partition):
            work.placements.remove(worker.incarnation, principal.key, rank)

    def wait_s(self, pool: str, create: command.Create, principal: str) -> float | None:
        """Estimated seconds until a pool starts a request of a principal, by its key; None:
        unknown."""
        key = create.idempotency_key
        partition = (
            None if key is None else placement.partition_of_key(principal, key, self._partitions)
        )
        return self._workers.backlog(pool).wait_s(create.priority, principal, partition)

    async def has_answer(self, create: command.Create, request: records.Request) -> bool:
        """Whether the pool has a cached answer to this request (log rule §24)."""
        digest = equal_requests.digest(request)
        most = request.sampling.max_tokens
        return digest is not None and await self._cache.has_answer(create.pool, digest, most)

    def partition_of_key(self, principal: Principal, key: str) -> int:
        """The partition of all requests of a principal with this idempotency key."""
        return placement.partition_of_key(principal.key, key, self._partitions)

    def _echo(self, rid: str, create: command.Create, owner: records.Owner) -> dict[str, Any]:
        echo = events.echo(
            rid,
            int(self._clock()),
            create.model,
            instructions=create.instructions,
            previous_response_id=create.previous,
            max_output_tokens=create.max_output_tokens,
            temperature=create.sampling.temperature,
            top_p=create.sampling.top_p,
            presence_penalty=create.sampling.presence_penalty,
            frequency_penalty=create.sampling.frequency_penalty,
            store=create.store,
            background=create.background,
            metadata=create.metadata,
            user=create.user,
            safety_identifier=create.safety_identifier,
            prompt_cache_key=create.prompt_cache_key,
        )
        echo |= create.echo
        if self._canaries is not None and self._canaries.reports_revision(create.pool):
            echo[events.REVISION] = None
        if create.conversation is not None:
            echo["conversation"] = {"id": create.conversation}
        if (
            create.sealed
            and self._seal_keys is not None
            and self._records_version >= records.VERSION_2  # older readers would show it
        ):
            echo[seals.MEMBER] = self._seal_keys.for_response(rid, owner).echo_member
        return {**echo, "service_tier": "flex"} if create.priority == "batch" else echo


def continuable(request: records.Request) -> bool:
    """Whether the text of an answer can be continued: not under a format, and only a message."""
    return request.generate and request.format is None and not request.raw


def _check_continuation(create: command.Create) -> None:
    """Check that an answer may be continued with text. Raises ApiError: 400 naming the field."""
    if create.format is not None:
        raise errors.invalid_value(
            create.format.param, "The text of an answer cannot be continued with a format."
        )
    if create.tools.choice.mode == "required":
        raise errors.invalid_value(
            "tool_choice", "The text of an answer cannot be continued if a call is required."
        )


def key_digest(key: str | None) -> str | None:
    """A client's key in the form of the log: a digest, because the key may be private."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest() if key is not None else None
