#!/bin/sh
# Java 17's HttpClient and websockets 15.0.1: no WebSocket is opened between them.
#
# The client sends "Content-Length: 0" with every handshake. The library takes any length for a body
# and refuses the handshake. A server with it must leave the header out. A JDK is needed: the probe
# is a source file. It tries twice.
#
# Output seen:
#   refused ['did not receive a valid HTTP request', 'unsupported request body', …]
#
# Exits 0 while this is so, 1 when it has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install websockets==15.0.1
cat > "$folder/Probe.java" <<'END'
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.WebSocket;
import java.util.concurrent.ExecutionException;

class Probe {
    public static void main(String[] arguments) throws Exception {
        try {
            HttpClient.newHttpClient()
                    .newWebSocketBuilder()
                    .buildAsync(URI.create(arguments[0]), new WebSocket.Listener() {})
                    .get();
            System.out.println("open");
        } catch (ExecutionException refused) {
            System.out.println("refused");
        }
        System.exit(0);
    }
}
END
"$folder/venv/bin/python" - "$folder/Probe.java" <<'END'
import asyncio
import logging
import sys

from websockets.asyncio.server import serve

reasons = []


class Reasons(logging.Handler):
    def emit(self, record):
        error = record.exc_info[1] if record.exc_info else None
        while error is not None:
            reasons.append(str(error))
            error = error.__cause__


async def main():
    logging.getLogger("websockets.server").addHandler(Reasons())
    async with serve(lambda connection: asyncio.sleep(0), "127.0.0.1", 0) as server:
        address = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        command = ("java", sys.argv[1], address)
        probe = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        said, _ = await asyncio.wait_for(probe.communicate(), 300)
    print(said.decode().strip(), reasons)
    return said.strip() == b"refused" and "unsupported request body" in reasons


sys.exit(0 if asyncio.run(main()) else 1)
END
