"""Debian's Firefox, so that Playwright can drive it over WebDriver BiDi.

Playwright's own Firefox is a patched one, from its maker's hosts. It drives an unpatched one too,
but sets the preferred colour scheme by a command that Debian's Firefox does not know yet. So
Playwright starts this program in Firefox's place. It starts Firefox, announces an address of its
own, and passes on all messages but that command. In the place of the command it sets Firefox's
preference for the colour scheme, which counts in all profiles of the browser.

    python -m tests.support.firefox_relay FIREFOX [OPTION …]
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any, Final

from websockets.asyncio import client, server

CHANNEL: Final = "moz-firefox"  # Playwright's name for an unpatched Firefox
_MOUSE: Final = 6  # Gecko's bits for a fine pointer that hovers; without a display it finds none
# Firefox asks its maker for settings at every start; in a closed network that only costs time.
PREFERENCES: Final[dict[str, str | float | bool]] = {
    "ui.primaryPointerCapabilities": _MOUSE,
    "ui.allPointerCapabilities": _MOUSE,
    "services.settings.server": "data:,#remote-settings-dummy/v1",
    "app.normandy.enabled": False,
    "nimbus.rollouts.enabled": False,
}
ROOT: Final = Path(__file__).resolve().parents[2]
_ANNOUNCED: Final = re.compile(r"(?<=WebDriver BiDi listening on )ws://\S+")
_SYSTEM_ACCESS: Final = "--remote-allow-system-access"  # preferences are not a page's to change
_UNKNOWN: Final = "emulation.setMediaFeaturesOverride"
_SCHEMES: Final = {"dark": 0, "light": 1}
_AS_THE_SYSTEM: Final = 2
_SET: Final = "Services.prefs.setIntPref('layout.css.prefers-color-scheme.content-override', {})"
_WINDOWS: Final = {"method": "browsingContext.getTree", "params": {"moz:scope": "chrome"}}


def launcher(folder: Path, firefox: str) -> Path:
    """A program for Playwright's `executable_path`, written into this folder."""
    program = folder / "firefox"
    command = shlex.join([sys.executable, "-m", __name__, firefox])
    program.write_text(f'#!/bin/sh\ncd {shlex.quote(str(ROOT))} && exec {command} "$@"\n')
    program.chmod(0o755)
    return program


class Relay:
    """Between Playwright, which connects once, and Firefox at this address."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._waiting: list[dict[str, Any]] = []  # commands until Firefox has named its window

    async def connected(self, playwright: server.ServerConnection) -> None:
        """Pass on messages until one of the two closes its connection."""
        path = playwright.request.path if playwright.request else ""
        async with client.connect(self._address + path, max_size=None) as firefox:
            both = [
                asyncio.create_task(self._asked(playwright, firefox)),
                asyncio.create_task(self._answered(firefox, playwright)),
            ]
            done, left = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in left:
                task.cancel()
            for task in done:
                task.result()  # what went wrong here is logged
        await playwright.close()

    async def _asked(
        self, playwright: server.ServerConnection, firefox: client.ClientConnection
    ) -> None:
        async for message in playwright:
            command = json.loads(message)
            if command["method"] != _UNKNOWN:
                await firefox.send(message)
                continue
            self._waiting.append(command)
            await firefox.send(json.dumps({"id": _own(command["id"]), **_WINDOWS}))

    async def _answered(
        self, firefox: client.ClientConnection, playwright: server.ServerConnection
    ) -> None:
        async for message in firefox:
            answer = json.loads(message)
            number = answer.get("id")
            asked = next((c for c in self._waiting if _own(c["id"]) == number), None)
            if asked is None:
                await playwright.send(message)
                continue
            self._waiting.remove(asked)
            window = answer["result"]["contexts"][0]["context"]
            await firefox.send(json.dumps(_preference(asked, window)))


def _own(number: int) -> int:
    """The number of the question that goes before a command; Playwright's are never so high."""
    return 2**40 + number


def _preference(command: dict[str, Any], window: str) -> dict[str, Any]:
    """The command in Firefox's words. Playwright takes its answer for that of the command."""
    wanted = command["params"]["features"].get("prefers-color-scheme")
    expression = _SET.format(_SCHEMES.get(wanted, _AS_THE_SYSTEM))
    params = {"expression": expression, "target": {"context": window}, "awaitPromise": False}
    return {"id": command["id"], "method": "script.evaluate", "params": params}


async def main(command: list[str]) -> int:
    """Run Firefox until it ends; returns its exit code."""
    firefox = await asyncio.create_subprocess_exec(
        *command, _SYSTEM_ACCESS, stderr=asyncio.subprocess.PIPE, limit=2**20
    )
    assert firefox.stderr
    listening: server.Server | None = None
    async for line in firefox.stderr:
        text = line.decode(errors="replace")
        if listening is None and (found := _ANNOUNCED.search(text)):
            relay = Relay(found[0])
            listening = await server.serve(relay.connected, "127.0.0.1", 0, max_size=None)
            port = next(iter(listening.sockets)).getsockname()[1]
            text = _ANNOUNCED.sub(f"ws://127.0.0.1:{port}", text)
        sys.stderr.write(text)
        sys.stderr.flush()
    return await firefox.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
