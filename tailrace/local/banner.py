"""What `up` says when the deployment can be used: addresses, and command lines to paste."""

from __future__ import annotations

import json

from tailrace.local import hints, paths, state

QUESTION = "Explain quantum entanglement."


def lines(running: state.State, data: paths.Data) -> list[str]:
    """Where the page, the API and the chat are."""
    return [
        f"page      {running.url}",
        f"API       {running.url}/v1 (its key: `{hints.command('token', data)}`)",
        f"terminal  {hints.command('chat', data)}",
    ]


def more_lines(running: state.State, data: paths.Data) -> list[str]:
    """The push services, and a question by curl and by the SDK."""
    body = json.dumps({"model": running.model, "input": QUESTION, "stream": True})
    key = f"$({hints.command('token', data)})"
    headers = f"-H 'Content-Type: application/json' -H \"Authorization: Bearer {key}\""
    call = f'responses.create(model="{running.model}", input="{QUESTION}")'
    return [
        f"push      {' '.join(running.push_urls)}",
        f"curl      curl -N {running.url}/v1/responses {headers} -d '{body}'",
        f'SDK       OpenAI(base_url="{running.url}/v1", api_key=KEY).{call}',
    ]
