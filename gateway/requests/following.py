"""After the append: opens the response's stream and starts the watchers of its pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.load import pool_choice
from gateway.load.hedging import Hedges
from gateway.requests import request_builder, rerouting, stages, stream_keeper
from gateway.responses import response_stream
from tailrace import telemetry
from tailrace.protocol import records

_INGRESS_SECONDS = telemetry.STAGE_SECONDS.labels(stage="ingress")


class Following:
    """Opens streams and starts the watchers.

    Attributes:
        rerouting: sends responses to other pools.
        hedges: offers responses whose first token is late.
    """

    def __init__(
        self,
        builder: request_builder.RequestBuilder,
        streams: stream_keeper.StreamKeeper,
        routes: pool_choice.Routes,
        watch: rerouting.Rerouting,
        hedges: Hedges,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._builder = builder
        self._streams = streams
        self._routes = routes
        self.rerouting = watch
        self.hedges = hedges
        self._spawn = spawn

    def follow(self, entry: stages.LogEntry) -> response_stream.ResponseStream:
        """The stream of a response whose request is in the log."""
        destination = entry.destination
        draft = destination.draft
        create, arrival = draft.decision.create, draft.decision.placement.arrival
        if destination.pool != create.pool:
            self._builder.discard(draft.partition, create, arrival.principal)
            self._builder.count_placement(
                destination.pool, draft.partition, create, arrival.principal
            )
        seconds = time.monotonic() - arrival.since
        telemetry.REQUESTS.labels(outcome="accepted").inc()
        if create.shortened_from:
            telemetry.ANSWERS_SHORTENED.labels(pool=create.pool).inc()
        telemetry.SUBMIT_SECONDS.observe(seconds)
        _INGRESS_SECONDS.observe(seconds)
        telemetry.log(
            telemetry.Action.RESPONSE_ACCEPTED,
            response=draft.request.rid,
            pool=destination.pool,
            priority=create.priority,
            partition=draft.partition,
        )
        self._watch(entry)
        return self._streams.open(
            draft.request,
            entry.subscription,
            principal=arrival.principal,
            partition=draft.partition,
            pool=destination.pool,
            awaited_since=arrival.since,
            charge=draft.charge,
        )

    def _watch(self, entry: stages.LogEntry) -> None:
        """Start the watchers. The request is in the topic of `home`, and `pool` answers it."""
        destination = entry.destination
        home, pool = destination.home, destination.pool
        create, request = destination.draft.decision.create, destination.draft.request
        subscription, partition = entry.subscription, destination.draft.partition
        others = [name for name in self._routes.others(create, request) if name != home]
        response = rerouting.WatchedResponse(
            subscription,
            at=home,
            others=others,
            requested_pool=create.pool,
            # Older readers show the text of another model in the item of the model before.
            continuers=list(others) if self._builder.records_version > records.VERSION else [],
            priority=create.priority,
            partition=partition,
            appended_ms=entry.appended_ms,
            patience_s=create.deadline_ms / 1000 / 2,
        )
        self.rerouting.add(request.rid, response)
        self.hedges.add(request, subscription, home, create.priority, partition)
        logged_request = records.decode_request(subscription.request)
        if pool != home and logged_request is not None:
            self._spawn(self.rerouting.send(logged_request, response, pool))
        elif pool != create.pool:
            rerouting.count_reroute(request.rid, create.pool, pool)
