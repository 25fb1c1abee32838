"""Tries each field and format of the API at the engine, before the worker joins its pool.

An engine's version and a pool's `engine_args` decide which sampling fields and formats it accepts.
An engine that refuses a field would do so after the request was accepted. A field that ends the
engine's process would stop one worker after another, with every such request. So a worker runs a
small request for each row of `engine_fields.TABLE`, restarts the engine where it ended, and does
not offer fields that were refused or fatal.

Refusals and ends count when they happened twice: an engine may end for another reason. If it ends
with a plain request, it has not started. A field that could not be tried within the deadline is
offered, as without trials.
"""

from __future__ import annotations

import asyncio
import enum
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

from tailrace import telemetry
from tailrace.protocol import engine_fields, records
from worker.engines import base
from worker.trials.trial_results import TrialResults, Verdict

ENDS: Final = 2  # ends, or refusals, that make a verdict
DEADLINE_S: Final = 60.0  # for all trials of a start, without the time in which engines load
# For one trial. The first use of some fields compiles code, which takes seconds on a CPU.
TRIAL_S: Final = 30.0
MAX_RESTARTS: Final = 6  # of the engine, within one start
LOCK_S: Final = 300.0  # longest wait for another worker, which may start its engine twice
REMOTE_AT_ONCE: Final = 4  # trials of an engine at a URL: it is not this worker's to end


class Outcome(enum.Enum):
    """The outcome of one trial."""

    TAKEN = enum.auto()
    REFUSED = enum.auto()
    UNKNOWN = enum.auto()  # it took too long, or failed for another reason


class FieldTrials:
    """The trials of one start.

    Attributes:
        results: the verdicts so far.
        undecided: names of fields without a verdict, after `run`.
        _until: no trial begins after this time.
        _restarts: how often the engine was started again.
    """

    def __init__(
        self,
        engine: base.Engine,
        results: TrialResults,
        *,
        deadline_s: float = DEADLINE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.results = results
        self.undecided: list[str] = []
        self._engine = engine
        self._clock = clock
        self._deadline_s = deadline_s
        self._until = 0.0
        self._restarts = 0

    async def run(self) -> None:
        """Try the fields without a verdict.

        Raises:
            base.EngineDead: the engine ended with a plain request, or did not start again.
        """
        if self._missing():
            async with self.results.lock(LOCK_S):
                if missing := self._missing():
                    self._until = self._clock() + self._deadline_s
                    await self._try_all(missing)
        self.undecided = [row.name for row in self._missing()]

    @property
    def not_offered(self) -> dict[str, Verdict]:
        """The fields that the engine does not accept, by name."""
        verdicts = self.results.verdicts
        names = [row.name for row in engine_fields.TABLE]
        return {
            n: verdicts[n] for n in names if verdicts.get(n, Verdict.TAKEN) is not Verdict.TAKEN
        }

    def _missing(self) -> list[engine_fields.EngineField]:
        """Rows without a verdict; without those that the engine's features do not have."""
        return [
            row
            for row in engine_fields.TABLE
            if row.name not in self.results.verdicts
            and base.lacking(engine_fields.trial(row), self._engine.features) is None
        ]

    async def _try_all(self, rows: Sequence[engine_fields.EngineField]) -> None:
        if await self._attempt(engine_fields.trial()) is not Outcome.TAKEN:
            return  # the cause is not a field
        at_once = REMOTE_AT_ONCE if isinstance(self._engine, base.Remote) else 1
        for at in range(0, len(rows), at_once):
            if self._clock() >= self._until or self._restarts >= MAX_RESTARTS:
                return
            await asyncio.gather(*map(self._try, rows[at : at + at_once]))

    async def _try(self, row: engine_fields.EngineField) -> None:
        """Try a field until there is a verdict, or it is clear that none is possible."""
        refusals, name = 0, row.name
        while self.results.ends.get(name, 0) < ENDS:
            self.results.begin(name)
            try:
                outcome = await self._attempt(engine_fields.trial(row))
            except base.EngineDead:
                await self._restart()
                continue
            except BaseException:  # this worker leaves
                self.results.end(name)
                raise
            self.results.end(name)
            refusals += outcome is Outcome.REFUSED
            if outcome is Outcome.TAKEN or refusals == ENDS:
                verdict = Verdict.REFUSED if refusals == ENDS else Verdict.TAKEN
                self.results.decide(name, verdict)
                return
            if outcome is Outcome.UNKNOWN:
                return
        self.results.decide(name, Verdict.FATAL)

    async def _attempt(self, request: records.Request) -> Outcome:
        """Run one request.

        Raises:
            base.EngineDead: the engine ended.
        """
        engine = self._engine
        try:
            async with asyncio.timeout(TRIAL_S):
                ids = await engine.encode(request)
                if engine.parser_name(request):
                    await engine.item_parser(request, ids)
                most = request.sampling.max_tokens
                job = base.GenerationInput(request, secrets.token_hex(16), ids, (), most)
                await engine.generate(job, lambda _step: True)
        except base.EngineDead:
            raise
        except Exception as error:
            if engine.dead.is_set():
                raise base.EngineDead("the engine ended in a trial") from error
            if isinstance(error, base.Busy):
                self._until = self._clock()  # it is busy enough without trials
            # A server at a URL that does not answer proves nothing about the field.
            passing = isinstance(error, TimeoutError | base.Busy) or (
                isinstance(engine, base.Remote) and type(error) is not base.Refused
            )
            return Outcome.UNKNOWN if passing else Outcome.REFUSED
        if engine.dead.is_set():
            raise base.EngineDead("the engine ended in a trial")
        return Outcome.TAKEN

    async def _restart(self) -> None:
        """Start the engine that ended again. The time does not count.

        Raises:
            base.EngineDead: it does not start, or ends with a plain request.
        """
        began = self._clock()
        self._restarts += 1
        telemetry.log(telemetry.Action.ENGINE_LOADING, because="it ended in a trial")
        await self._engine.shutdown()
        await self._engine.start()
        await self._attempt(engine_fields.trial())
        self._until += self._clock() - began
