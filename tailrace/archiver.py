"""`python -m tailrace.archiver`: the process that folds the topics into the archive."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import Any

import uvloop

from tailrace import admin, log, settings, telemetry
from tailrace.archive import database, fold, follower
from tailrace.log.health import Health
from tailrace.protocol import topics

WAIT_MS = 500  # no client waits for the end of a fetch
# Under load the responses that end within this time are one transaction, which alone costs as much
# as 25 of them.
HISTORY_REST_S = 0.2


class Archiver:
    """All parts of one process, wired."""

    def __init__(self, config: settings.ArchiveSettings, layout: log.Layout) -> None:
        """Raises settings.Misconfigured: this SQLite cannot hold an archive."""
        self._config = config
        self.engine = database.engine(config.archive, create=True)
        if not database.searches(self.engine):
            raise settings.Misconfigured("SQLite of this Python lacks FTS5, which an archive needs")
        self.offsets = log.Offsets(config.kafka, client_id=f"{config.name}-offsets")
        self.replays = log.Replays(config.kafka, size=1, client_id=f"{config.name}-replays")
        self.writer = log.Writer(config.kafka, client_id=f"{config.name}-writer")
        readers = {
            topic: log.Reader(
                config.kafka,
                topic,
                wait_ms=WAIT_MS,
                rest_s=HISTORY_REST_S if topic == topics.HISTORY else 0.0,
                client_id=f"{config.name}-{topic}",
            )
            for topic in fold.TOPICS
        }
        self.follower = follower.Follower(
            self.engine, layout.incarnation, readers, self.offsets, self.replays, self.writer
        )
        self.health = Health(lambda: self.offsets.ends(topics.HISTORY, [0]))

    def readiness(self) -> dict[str, Any]:
        """The JSON of `/ready`: 200 when the topics are folded up to their ends at the start."""
        readers = self.follower.readers.values()
        kafka = self.health.answers and all(reader.answers for reader in readers)
        return {
            "ready": self.follower.ready and kafka,
            "kafka": kafka,
            "database": not self.follower.away,
            "detail": self.follower.away,
        }

    async def run(self, stop: asyncio.Event) -> None:
        """Fold until `stop`. The next start repeats an unfinished batch.

        Raises:
            settings.Misconfigured: the admin address is taken.
        """
        config = self._config
        parts: list[Any] = [self.follower, self.writer, self.health]
        if config.admin_port:
            parts.append(admin.AdminServer(config.host, config.admin_port, self.readiness))
        try:
            async with asyncio.TaskGroup() as tasks:
                background = [tasks.create_task(part.run()) for part in parts]
                telemetry.log(telemetry.Action.SERVICE_STARTED)
                await stop.wait()
                for task in background:
                    task.cancel()
        finally:
            stops = [reader.stop for reader in self.follower.readers.values()]
            for stop_client in (*stops, self.offsets.stop, self.replays.stop):
                with contextlib.suppress(Exception):
                    await stop_client()
            await self.engine.dispose()
            telemetry.log(telemetry.Action.SERVICE_STOPPED)


async def serve(config: settings.ArchiveSettings) -> None:
    """One process.

    Raises:
        settings.Misconfigured: before it folds anything.
        Exception: a part failed for good; the process must be restarted.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    def waiting(reason: str) -> None:
        telemetry.log(telemetry.Action.WAITING, reason=reason)

    layout = asyncio.ensure_future(log.wait_for_layout(lambda: log.layout(config.kafka), waiting))
    stop_wait = asyncio.ensure_future(stop.wait())
    await asyncio.wait((layout, stop_wait), return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        layout.cancel()
        return
    stop_wait.cancel()
    await Archiver(config, layout.result()).run(stop)


def main() -> int:
    """Run the process. Returns the exit code: 2 for a wrong setting, which is one line on
    stderr."""
    try:
        config = settings.archive()
        telemetry.setup("archive", config.name, config.otlp_endpoint)
        log.fold_complaints()
        log.use_public_api(bool(config.kafka_public_api))
        log.use_record_keys(config.record_keys, None)  # its tombstones are not signed
        uvloop.run(serve(config))
    except settings.Misconfigured as error:
        sys.stderr.write(f"archive: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
