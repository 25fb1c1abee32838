"""curl: an offer of HTTP/2, bodies in every coding that is accepted, HEAD, and a stream."""

from __future__ import annotations

import gzip
import json
import subprocess
import zlib
from dataclasses import dataclass, field
from typing import Any

import brotli
import zstandard
from scenarios import BASE, KEY, MODEL, check, main, scenario, version

SAY: Any = {"model": MODEL, "input": "hello there"}
QUOTED = "“hello there”"  # in the answer
CODINGS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


@dataclass
class Answer:
    status: int
    protocol: str
    body: bytes
    headers: dict[str, list[str]] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        check(self.status == 200, self)
        (message,) = self.json["output"]
        return str(message["content"][0]["text"])


def curl(path: str, *options: str, data: bytes | None = None) -> Answer:
    """`data`: sent as JSON. Headers are in lower case. curl must end well."""
    written = "%{stderr}%{http_code} %{http_version}\\n%{header_json}"
    command = ["curl", "--silent", "--show-error", "--max-time", "90", "--write-out", written]
    command += ["--oauth2-bearer", KEY, *options]
    if data is not None:
        command += ["--header", "Content-Type: application/json", "--data-binary", "@-"]
    done = subprocess.run([*command, BASE + path], input=data, capture_output=True, check=False)
    check(done.returncode == 0, done)
    line, _, headers = done.stderr.decode().partition("\n")
    status, protocol = line.split()
    return Answer(int(status), protocol, done.stdout, json.loads(headers))


def encoded(body: Any, coding: str = "") -> bytes:
    data = json.dumps(body).encode()
    return CODINGS[coding](data) if coding else data


def events(body: bytes) -> list[Any]:
    return [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]


@scenario
def an_offer_of_http2_with_a_body() -> str:
    """It is not taken, and the body is read (RFC 9110, 7.8)."""
    answer = curl("/responses", "--http2", data=encoded(SAY))
    check(QUOTED in answer.text, answer)
    check(answer.protocol == "1.1", answer)
    return answer.text


@scenario
def an_offer_of_http2_with_a_conversation() -> str:
    """What was sent is kept: a body that is lost would make an empty conversation."""
    items = [{"type": "message", "role": "user", "content": "hello"}]
    sent = encoded({"metadata": {"topic": "rain"}, "items": items})
    made = curl("/conversations", "--http2", data=sent).json
    check(made["metadata"] == {"topic": "rain"}, made)
    kept = curl(f"/conversations/{made['id']}/items", "--http2").json["data"]
    check([item["content"][0]["text"] for item in kept] == ["hello"], kept)
    gone = curl(f"/conversations/{made['id']}", "--http2", "--request", "DELETE").json
    check(gone["deleted"] is True, gone)
    return str(gone["object"])


@scenario
def an_offer_of_http2_with_a_stream() -> str:
    answer = curl("/responses", "--http2", "--no-buffer", data=encoded({**SAY, "stream": True}))
    check(answer.headers["content-type"][0].startswith("text/event-stream"), answer.headers)
    seen = events(answer.body)
    check([e["sequence_number"] for e in seen] == list(range(len(seen))), seen)
    text = "".join(e["delta"] for e in seen if e["type"] == "response.output_text.delta")
    check(QUOTED in text, text)
    check(seen[-1]["type"] == "response.completed", seen[-1])
    return f"{len(seen)} events"


@scenario
def an_offer_of_http2_without_a_credential() -> str:
    """It does not pass by what refuses a request."""
    answer = curl("/responses", "--http2", "--oauth2-bearer", "none", data=encoded(SAY))
    check(answer.status == 401, answer)
    return str(answer.json["error"]["code"])


def _with_coding(coding: str) -> str:
    sent = encoded({**SAY, "metadata": {"long": "x" * 400}}, coding)
    header = ("--header", f"Content-Encoding: {coding}")
    for options in ((), ("--http2",), ("--header", "Transfer-Encoding: chunked")):
        answer = curl("/responses", *header, *options, data=sent)
        check(QUOTED in answer.text, answer)
    return f"{len(sent)} bytes"


@scenario
def a_body_in_gzip() -> str:
    return _with_coding("gzip")


@scenario
def a_body_in_deflate() -> str:
    return _with_coding("deflate")


@scenario
def a_body_in_br() -> str:
    return _with_coding("br")


@scenario
def a_body_in_zstd() -> str:
    return _with_coding("zstd")


@scenario
def a_body_in_a_coding_that_is_not_accepted() -> str:
    answer = curl("/responses", "--header", "Content-Encoding: compress", data=encoded(SAY))
    check(answer.status == 415, answer)
    accepted = answer.headers["accept-encoding"][0]
    check({each.strip() for each in accepted.split(",")} >= set(CODINGS), accepted)
    return accepted


@scenario
def a_body_that_is_not_in_its_coding() -> str:
    answer = curl("/responses", "--header", "Content-Encoding: gzip", data=encoded(SAY, "zstd"))
    check(answer.status == 400, answer)
    return str(answer.json["error"]["message"])


@scenario
def head_where_get_is() -> str:
    """The same status and no body, which curl would wait for."""
    made = curl("/responses", data=encoded(SAY)).json["id"]
    for path in ("/models", f"/models/{MODEL}", f"/responses/{made}", "/files"):
        got, head = curl(path), curl(path, "--head")
        check(head.status == got.status == 200, path, head, got)
        check(head.headers["content-type"] == got.headers["content-type"], path, head, got)
    check(curl("/responses/resp_0", "--head").status == curl("/responses/resp_0").status, "404")
    check(curl("/embeddings", "--head").status == 405, "HEAD of what is only posted")
    return str(head.headers["content-type"][0])


@scenario
def a_method_that_is_not_there() -> str:
    answer = curl("/responses", "--request", "PUT", data=b"{}")
    check(answer.status == 405, answer)
    check("POST" in answer.headers["allow"][0], answer.headers)
    return answer.headers["allow"][0]


@scenario
def a_body_after_expect_continue() -> str:
    """curl asks first whether it may send it."""
    sent = encoded(
        {**SAY, "input": [{"role": "user", "content": t} for t in ("x" * 12_000, "hello there")]}
    )
    answer = curl("/responses", "--http2", "--header", "Expect: 100-continue", data=sent)
    check(QUOTED in answer.text, answer)
    return f"{len(sent)} bytes"


version(subprocess.check_output(["curl", "--version"], text=True).partition(" (")[0])
main()
