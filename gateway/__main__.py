"""`python -m gateway`."""

from __future__ import annotations

import sys

from gateway import app, settings
from push import process

if __name__ == "__main__":
    sys.exit(process.run("gateway", settings.read, app.serve))
