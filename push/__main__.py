"""`python -m push`: the push service."""

from __future__ import annotations

import sys

from push import app, process, settings

if __name__ == "__main__":
    sys.exit(process.run("push", settings.read, app.serve))
