#!/bin/sh
# uvicorn 0.54.0: an answer without a length is chunked for clients of HTTP/1.0, too.
#
# HTTP/1.0 has no chunks: such an answer ends with its connection. A client that takes the version
# at its word (an old proxy, `ab`) reads the sizes of the chunks as part of the text.
#
# Output seen, with httptools 0.8.0 and with h11 0.16.0:
#   httptools: HTTP/1.1 200 OK, body b'5\r\nhello\r\n0\r\n\r\n'
#   h11: HTTP/1.1 200 OK, body b'hello'
#
# Exits 0 while this is so, 1 when it has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install uvicorn==0.54.0 httptools==0.8.0 h11==0.16.0
"$folder/venv/bin/python" - <<'END'
import asyncio
import socket
import sys

import uvicorn


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello", "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def answer(http):
    bound = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, http=http, lifespan="off", log_config=None, log_level="warning")
    )
    task = asyncio.ensure_future(server.serve(sockets=[bound]))
    while not server.started:
        await asyncio.sleep(0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", bound.getsockname()[1])
    writer.write(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    server.should_exit = True
    await task
    print(f"{http}: {head.splitlines()[0].decode()}, body {body}")
    return body


async def main():
    return [await answer("httptools"), await answer("h11")]


bodies = asyncio.run(asyncio.wait_for(main(), 60))
sys.exit(0 if bodies == [b"5\r\nhello\r\n0\r\n\r\n", b"hello"] else 1)
END
