"""`python -m push`: the push service."""

from __future__ import annotations

import sys

from push import app
from tailrace import settings
from tailrace.web import runner

if __name__ == "__main__":
    sys.exit(runner.run("push", settings.push, app.serve))
