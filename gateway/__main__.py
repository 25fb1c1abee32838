"""`python -m gateway`."""

from __future__ import annotations

import sys

import uvloop

from gateway import app, settings
from wire import credentials, telemetry


def main() -> int:
    """Exit code: 0 after a drain, 2 for a misconfiguration."""
    try:
        config = settings.read()
        telemetry.setup("gateway", config.name)
        uvloop.run(app.serve(config))
    except (settings.Misconfigured, credentials.IssuersRefused) as e:
        sys.stderr.write(f"gateway: {e}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
