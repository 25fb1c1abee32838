"""What follows an append: the stream of the response, and who watches for its way elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.load import hedging, pool_choice
from gateway.requests import request_builder, rerouting, stages, stream_keeper
from gateway.responses import response_stream
from tailrace import telemetry
from tailrace.protocol import records

_INGRESS_SECONDS = telemetry.STAGE_SECONDS.labels(stage="ingress")


class Following:
    """Begins to follow responses.

    Attributes:
        rerouting: watches the responses submitted here.
        hedges: watches for their first tokens.
    """

    def __init__(
        self,
        builder: request_builder.RequestBuilder,
        streams: stream_keeper.StreamKeeper,
        routes: pool_choice.Routes,
        watch: rerouting.Rerouting,
        late: hedging.Hedges,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._builder = builder
        self._streams = streams
        self._routes = routes
        self.rerouting = watch
        self.hedges = late
        self._spawn = spawn

    def begun(self, appended: stages.Appended) -> response_stream.ResponseStream:
        """The stream of a response whose request is in the log."""
        routed = appended.routed
        built = routed.built
        create, asked = built.decided.create, built.decided.placed.asked
        if routed.pool != create.pool:
            self._builder.dropped(built.partition, create, asked.principal)
            self._builder.placed(routed.pool, built.partition, create, asked.principal)
        seconds = time.monotonic() - asked.since
        telemetry.REQUESTS.labels(outcome="accepted").inc()
        if create.shortened_from:
            telemetry.ANSWERS_SHORTENED.labels(pool=create.pool).inc()
        telemetry.SUBMIT_SECONDS.observe(seconds)
        _INGRESS_SECONDS.observe(seconds)
        telemetry.log(
            telemetry.Action.RESPONSE_ACCEPTED,
            response=built.request.rid,
            pool=routed.pool,
            priority=create.priority,
            partition=built.partition,
        )
        self._watch(appended)
        return self._streams.open(
            built.request,
            appended.subscription,
            principal=asked.principal,
            partition=built.partition,
            pool=routed.pool,
            awaited_since=asked.since,
            charge=built.charge,
        )

    def _watch(self, appended: stages.Appended) -> None:
        """Watch a response whose request is in the topic of `home`; `pool` is to answer it."""
        routed = appended.routed
        home, pool = routed.home, routed.pool
        create, request = routed.built.decided.create, routed.built.request
        subscription, partition = appended.subscription, routed.built.partition
        others = [name for name in self._routes.others(create, request) if name != home]
        watched = rerouting.Watched(
            subscription,
            at=home,
            others=others,
            asked=create.pool,
            # Older readers would show the text of another model in the item of the one before.
            continuers=list(others) if self._builder.records_version > records.VERSION else [],
            priority=create.priority,
            partition=partition,
            asked_ms=appended.asked_ms,
            patience_s=create.deadline_ms / 1000 / 2,
        )
        self.rerouting.add(request.rid, watched)
        self.hedges.add(request, subscription, home, create.priority, partition)
        written = records.decode_request(subscription.request)
        if pool != home and written is not None:
            self._spawn(self.rerouting.send(written, watched, pool))
        elif pool != create.pool:
            rerouting.moved(request.rid, create.pool, pool)
