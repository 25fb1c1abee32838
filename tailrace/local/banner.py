"""The banner of `up`: addresses, a credential, and command lines to paste."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from tailrace.local import state

QUESTION = "Explain quantum entanglement."


def program() -> str:
    """The path of this command, relative to the working directory where that is possible."""
    found = Path(sys.executable).parent / "tailrace"
    with contextlib.suppress(ValueError):
        return str(found.relative_to(Path.cwd()))
    return str(found)


def lines(running: state.State, credential: str) -> list[str]:
    """The banner's lines for a deployment that is ready."""
    tailrace = program()
    body = json.dumps({"model": running.model, "input": QUESTION, "stream": True})
    headers = (
        f"-H 'Content-Type: application/json' -H \"Authorization: Bearer $({tailrace} token)\""
    )
    call = f'responses.create(model="{running.model}", input="{QUESTION}")'
    return [
        "",
        f"  Open        {running.url}",
        f"  API         {running.url}/v1      push  {' '.join(running.push_urls)}",
        f"  Credential  {credential}",
        f"              (one hour; a new one: {tailrace} token)",
        f"  curl        curl -N {running.url}/v1/responses {headers} -d '{body}'",
        f'  SDK         OpenAI(base_url="{running.url}/v1", api_key=CREDENTIAL).{call}',
        f"  Terminal    {tailrace} chat",
        "",
    ]
