"""`python -m worker`: one worker."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

import uvloop

from tailrace import log, settings, telemetry
from worker import app


def main() -> int:
    """Run one worker. Returns the exit code: 0 after a drain, 1 when the engine or the worker
    failed, 2 for a misconfiguration, also of the engine's arguments."""
    try:
        chosen = settings.worker()
        telemetry.setup("worker", chosen.name, chosen.otlp_endpoint)
        log.fold_complaints()
        log.use_public_api(bool(chosen.kafka_public_api))
        log.use_record_keys(chosen.record_keys, "worker")
        return uvloop.run(_run(chosen))
    except settings.Misconfigured as error:
        sys.stderr.write(f"worker: {error}\n")
        return 2
    except Exception as error:
        telemetry.log(telemetry.Action.TASK_FAILED, exc_info=error)
        return 1


async def _run(chosen: settings.WorkerSettings) -> int:
    worker = app.App(chosen)
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, worker.leave)
    return await worker.run()


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    os._exit(code)  # the engine's threads must not keep a drained process alive
