"""`python -m push`: the push service."""

from __future__ import annotations

import sys

from push import app
from tailrace.web import runner, settings

if __name__ == "__main__":
    sys.exit(runner.run("push", settings.read, app.serve))
