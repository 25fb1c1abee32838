"""Writes `llm.activity`: starts and ends of responses, for the feeds of their owners."""

from __future__ import annotations

import asyncio

from tailrace import log
from tailrace.log import interfaces
from tailrace.protocol import activity, fold, records, topics
from worker.log.appends import append_surely


class ActivityWriter:
    """Writes the notices of one worker."""

    def __init__(self, writer: interfaces.RecordWriter) -> None:
        self._writer = writer
        self._appends: set[asyncio.Future[log.Appended]] = set()

    def write_start(self, request: records.Request) -> None:
        """This worker begins a response. Nothing waits for the append: the notice of the end makes
        up for a lost one."""
        notice = activity.start_notice(request)
        if notice is None:
            return
        append = asyncio.ensure_future(
            self._writer.append(
                topics.ACTIVITY,
                activity.partition(request.owner),
                request.rid,
                activity.encode(notice),
            )
        )
        self._appends.add(append)
        append.add_done_callback(self._done)

    async def write_end(self, request: records.Request, state: fold.Fold) -> None:
        """Write the notice of a response that is DONE."""
        assert state.ended is not None
        if state.first is not None and state.first.owner != request.owner:
            return  # a forged claim; no reader shows it
        notice = activity.end_notice(request, state.ended)
        if notice is not None:
            await append_surely(
                self._writer,
                topics.ACTIVITY,
                activity.partition(request.owner),
                request.rid,
                activity.encode(notice),
            )

    def _done(self, append: asyncio.Future[log.Appended]) -> None:
        self._appends.discard(append)
        if not append.cancelled():
            append.exception()
