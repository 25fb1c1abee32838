"""`python -m gateway`."""

from __future__ import annotations

import sys

from gateway import app
from tailrace import settings
from tailrace.web import runner

if __name__ == "__main__":
    sys.exit(runner.run("gateway", settings.gateway, app.serve))
