#!/bin/sh
# uvicorn 0.54.0 (websockets 15.0.1): a WebSocket handshake that the application refuses is an error in the log.
#
# The extension "Websocket Denial Response" lets an application answer a handshake with a status and
# a body. The protocol "websockets-sansio" sends both as they should be, and then logs that the
# application returned without completing the handshake. So whoever sends handshakes without a
# credential writes error lines.
#
# Output seen:
#   status 401, body b'who are you?'
#   logged: ERROR ASGI callable returned without completing handshake.
#
# Exits 0 while this is so, 1 when it has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install uvicorn==0.54.0 websockets==15.0.1
"$folder/venv/bin/python" - <<'END'
import asyncio
import logging
import socket
import sys

import uvicorn
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus


async def app(scope, receive, send):
    await receive()
    assert "websocket.http.response" in scope["extensions"]
    await send({"type": "websocket.http.response.start", "status": 401, "headers": []})
    await send({"type": "websocket.http.response.body", "body": b"who are you?"})


async def main():
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(f"{record.levelname} {record.getMessage()}")
    logging.getLogger("uvicorn.error").addHandler(handler)
    bound = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, ws="websockets-sansio", lifespan="off", log_config=None, log_level="warning"
    )
    server = uvicorn.Server(config)
    task = asyncio.ensure_future(server.serve(sockets=[bound]))
    while not server.started:
        await asyncio.sleep(0.05)
    try:
        async with connect(f"ws://127.0.0.1:{bound.getsockname()[1]}/"):
            pass
    except InvalidStatus as refused:
        response = refused.response
    print(f"status {response.status_code}, body {bytes(response.body)}")
    await asyncio.sleep(0.2)
    server.should_exit = True
    await task
    for line in lines:
        print("logged:", line)
    expected = ["ERROR ASGI callable returned without completing handshake."]
    return response.status_code == 401 and lines == expected


sys.exit(0 if asyncio.run(asyncio.wait_for(main(), 60)) else 1)
END
