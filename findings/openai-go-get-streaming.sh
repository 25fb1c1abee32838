#!/bin/sh
# openai-go 3.99.0: `Responses.GetStreaming` never says in the query that it wants a stream.
#
# `stream` is in a JSON body of the GET, and no content type comes with it; `starting_after` is in
# the query. If the server answers with the response as JSON, the loop ends without an event and
# without an error.
#
# Output seen:
#   GET /v1/responses/resp_1?starting_after=3
#   content type: None
#   body: {"stream":true}
#   events 0, error <nil>
#
# Exits 0 while this is so, 1 when it has changed. The SDK takes minutes to compile.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > main.go <<'END'
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
)

func main() {
	client := openai.NewClient(option.WithBaseURL(os.Args[1]), option.WithAPIKey("x"))
	from := responses.ResponseGetParams{StartingAfter: openai.Int(3)}
	stream := client.Responses.GetStreaming(context.Background(), "resp_1", from)
	events := 0
	for stream.Next() {
		events++
	}
	fmt.Printf("events %d, error %v\n", events, stream.Err())
}
END
go mod init probe 2> /dev/null
go get github.com/openai/openai-go/v3@v3.99.0 2> /dev/null
go build -o probe .
python3 - <<'END'
import http.server
import subprocess
import sys
import threading

lines = []


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        lines.append(f"GET {self.path}")
        lines.append(f"content type: {self.headers.get('content-type')}")
        lines.append(f"body: {body}")
        answer = b'{"id": "resp_1", "object": "response", "status": "completed", "output": []}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}/v1"
probe = subprocess.run(["./probe", base], capture_output=True, text=True, timeout=60)
lines += probe.stdout.splitlines()
print("\n".join(lines), probe.stderr)
expected = [
    "GET /v1/responses/resp_1?starting_after=3",
    "content type: None",
    'body: {"stream":true}',
    "events 0, error <nil>",
]
sys.exit(0 if lines == expected else 1)
END
