"""What a client with a good credential can do (security: attacks 10, 14, 15, 21, 22, 28)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from typing import Any

import httpx
import pytest
import websockets

from tailrace.protocol import records, topics
from tests.attacks import room
from tests.faults.stage import Service
from tests.support import pictures, waiting

ADDRESS = "127.0.0.5"  # no other attacker comes from there
SHORT_S = 4
LONG = {"input": "hi", "metadata": {"script_tokens": "4000", "script_pace_ms": "50"}}


def client(service: Service, headers: dict[str, str]) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=service.url,
        headers=headers,
        timeout=30,
        transport=httpx.AsyncHTTPTransport(local_address=ADDRESS),
    )


def socket(
    service: Service, path: str, headers: dict[str, str], *protocols: str, source: str = ADDRESS
) -> Any:
    return websockets.connect(
        f"ws://127.0.0.1:{service.port}{path}",
        additional_headers=headers,
        local_addr=(source, 0),
        compression=None,
        subprotocols=[websockets.Subprotocol(each) for each in protocols] or None,
    )


async def received(opened: Any, within_s: float = 20.0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await asyncio.wait_for(opened.recv(), within_s))
    return found


async def until_type(opened: Any, *kinds: str) -> dict[str, Any]:
    while (found := await received(opened))["type"] not in kinds:
        pass
    return found


async def background(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    answer = await http.post("/v1/responses", json={**body, "background": True})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def test_creates_that_wait_take_the_bytes_that_they_have(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    """Four sockets, 4 MB of creates on each, which take over twenty times that once decoded."""
    padding: list[Any] = [[]] * room.amount(30_000, 4_000)
    waits = json.dumps({"type": "response.create", "input": "hi", "metadata": padding})
    headers = deployment.headers("hoarder")
    with attack("16 MB of creates that wait", "4 MiB a socket, then 429; memory flat") as row:
        async with contextlib.AsyncExitStack() as stack:
            sockets = [
                await stack.enter_async_context(
                    socket(deployment.gateway(1), "/v1/responses", headers)
                )
                for _ in range(4)
            ]
            refused = 0
            for opened in sockets:
                await opened.send(json.dumps({"type": "response.create", **LONG}))
                await until_type(opened, "response.created")
                for _ in range(4 * 1024 * 1024 // len(waits) + 2):
                    await opened.send(waits)
                error = await until_type(opened, "error")
                refused += error["error"]["code"] == "rate_limit_exceeded"
                assert error["status"] == 429, error
            row.note = f"{refused} of 4 sockets were told 429"


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/watch"])
async def test_a_credential_ends_on_an_open_socket_unless_a_new_one_is_shown(
    deployment: room.Deployment, attack: room.Attacks, path: str
) -> None:
    service = deployment.gateway(1) if path == "/v1/responses" else deployment.push(1)
    ended, renewed = (
        "closed for a new credential",
        "a new credential of the same user keeps it open",
    )
    with attack(f"credential ends on {path}", f"{ended}; {renewed}"):
        opened_at = time.time()
        short = deployment.headers("brief", lifetime_s=SHORT_S)
        async with (
            socket(service, path, short, "tailrace.v1") as kept,
            socket(service, path, short, "tailrace.v1") as left,
        ):
            for each in (kept, left):
                assert (await received(each))["type"] == "auth_expiring"
            await left.send(json.dumps({"type": "auth", "credential": deployment.token("eve")}))
            assert (await received(left))["type"] == "auth_refused"
            await kept.send(json.dumps({"type": "auth", "credential": deployment.token("brief")}))
            assert (await received(kept))["type"] == "auth_renewed"
            await asyncio.wait_for(left.wait_closed(), SHORT_S + 10)
            assert left.close_code == (1012 if path == "/v1/responses" else 4003)
            assert time.time() >= opened_at + SHORT_S - 1
            await kept.send("{}")
            assert (await received(kept))["status"] == 400


async def test_a_stream_ends_with_its_credential(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    with attack("credential ends on a stream", "broken off without [DONE]; 401 afterwards"):
        async with client(deployment.gateway(1), deployment.headers("brief")) as http:
            rid = await background(http, LONG)
            for service in (deployment.gateway(1), deployment.push(1)):
                short = deployment.headers("brief", lifetime_s=SHORT_S)
                path, seen = f"/v1/responses/{rid}?stream=true", b""
                async with client(service, short) as late:
                    async with late.stream("GET", path) as answer:
                        with contextlib.suppress(httpx.RemoteProtocolError):
                            async for part in answer.aiter_raw():
                                seen += part
                    assert b"response.output_text.delta" in seen
                    assert b"[DONE]" not in seen
                    assert (await late.get(path)).status_code == 401
            await http.post(f"/v1/responses/{rid}/cancel")


async def test_an_item_of_somebody_else_is_as_unknown_as_an_unknown_one(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    with attack("item_reference to another user's item", "404 as for an unknown one") as row:
        async with (
            client(deployment.gateway(1), deployment.headers("alice-51")) as alice,
            client(deployment.gateway(2), deployment.headers("mallory-51")) as mallory,
        ):
            made = await alice.post("/v1/responses", json={"input": "hi"})
            name = made.json()["output"][0]["id"]
            unknown = name[:-4] + ("AAAA" if name[-4:] != "AAAA" else "BBBB")
            times: dict[str, list[float]] = {name: [], unknown: []}
            for _ in range(5):
                told = []
                for each in (name, unknown):
                    body = {"input": [{"type": "item_reference", "id": each}]}
                    began = time.perf_counter()
                    answer = await mallory.post("/v1/responses", json=body)
                    times[each].append(1000 * (time.perf_counter() - began))
                    told.append((answer.status_code, answer.text.replace(each, "")))
                assert told[0] == told[1]
                assert told[0][0] == 404
            body = {"input": [{"type": "item_reference", "id": name}]}
            assert (await alice.post("/v1/responses", json=body)).status_code == 200
            theirs, none = (f"{max(times[each]):.0f}" for each in (name, unknown))
            row.note = f"longest of 5: {theirs} ms, of an unknown one {none} ms"


async def test_a_file_of_somebody_else_is_as_unknown_as_an_unknown_one(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    with attack("another user's file", "404 or 400 as for an unknown one") as row:
        async with (
            client(deployment.gateway(1), deployment.headers("alice-52")) as alice,
            client(deployment.gateway(2), deployment.headers("mallory-52")) as mallory,
        ):
            sent = {"files": {"file": ("a.txt", b"secret")}, "data": {"purpose": "user_data"}}
            name = (await alice.post("/v1/files", **sent)).json()["id"]  # type: ignore[arg-type]
            unknown = name[:-4] + ("AAAA" if name[-4:] != "AAAA" else "BBBB")
            times: dict[str, list[float]] = {name: [], unknown: []}
            for method, path in (
                ("GET", "/v1/files/{}"),
                ("GET", "/v1/files/{}/content"),
                ("DELETE", "/v1/files/{}"),
                ("POST", "/v1/responses"),
            ):
                told = []
                for each in (name, unknown):
                    part = {"type": "input_file", "file_id": each}
                    body = {"input": [{"role": "user", "content": [part]}]}
                    began = time.perf_counter()
                    answer = await mallory.request(
                        method, path.format(each), json=body if method == "POST" else None
                    )
                    times[each].append(1000 * (time.perf_counter() - began))
                    told.append((answer.status_code, answer.text.replace(each, "")))
                assert told[0] == told[1], (method, path)
                assert told[0][0] in (400, 404), (method, path)
                assert "secret" not in told[0][1]
            assert (await mallory.get("/v1/files")).json()["data"] == []
            assert (await alice.get(f"/v1/files/{name}/content")).content == b"secret"
            theirs, none = (f"{max(times[each]):.0f}" for each in (name, unknown))
            row.note = f"longest of 4: {theirs} ms, of an unknown one {none} ms"


async def test_many_uploads_of_one_user_keep_nobody_waiting(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    """The largest files there are, from as many addresses as it takes; and forms that are none."""
    rounds = room.amount(6, 1)
    data = pictures.png(3) + random.Random(3).randbytes(6_000_000)

    async def send(source: int) -> list[int]:
        transport = httpx.AsyncHTTPTransport(local_address=f"127.0.5.{10 + source}")
        headers, url = deployment.headers("uploader"), deployment.gateway(1).url
        statuses = []
        async with httpx.AsyncClient(
            base_url=url, headers=headers, timeout=60, transport=transport
        ) as http:
            for n in range(rounds):
                file = {"file": ("a.png", data + bytes([source, n]))}
                answer = await http.post("/v1/files", files=file, data={"purpose": "vision"})
                statuses.append(answer.status_code)
        return statuses

    with attack("36 MB of uploads at once", "200 or 429; nobody waits; memory flat") as row:
        told = [s for each in await asyncio.gather(*map(send, range(1, 7))) for s in each]
        assert set(told) <= {200, 429}, told
        assert 200 in told
        row.note = f"{told.count(200)} of {len(told)} were taken"

    part = b'--x\r\nContent-Disposition: form-data; name="f"\r\n\r\n\r\n'
    forms = {
        "no end": b"--x\r\n",
        "many parts": part * room.amount(100_000, 10_000),
        "many headers": b"--x\r\n" + b"A: b\r\n" * 100_000,
        "an endless header": b"--x\r\nA: " + b"b" * 1_000_000,
        "a long boundary": b"--" + b"x" * 100_000,
        "nothing": b"",
        "dashes": b"-" * 1_000_000,
        "half boundaries": b"\r\n--" * 500_000,
    }
    with attack("forms of any shape", "400 each; nobody waits") as row:
        async with client(deployment.gateway(1), deployment.headers("uploader")) as http:
            for name, form in forms.items():
                for kind in ("multipart/form-data; boundary=x", "multipart/form-data"):
                    headers = {"content-type": kind}
                    answer = await http.post("/v1/files", content=form, headers=headers)
                    assert answer.status_code == 400, (name, answer.text[:200])
        row.note = f"{2 * len(forms)} forms"


async def test_a_response_of_somebody_else_is_as_unknown_as_an_unknown_one(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    with attack("another user's response", "404 as for an unknown one, by every verb") as row:
        async with (
            client(deployment.gateway(1), deployment.headers("alice-14")) as alice,
            client(deployment.gateway(1), deployment.headers("mallory-14")) as mallory,
            client(deployment.push(1), deployment.headers("mallory-14")) as aside,
        ):
            rid = await background(alice, {"input": "hi"})

            async def ended() -> bool:
                answer = await alice.get(f"/v1/responses/{rid}")
                return bool(answer.json()["status"] == "completed")

            await waiting.eventually(ended, "it ends", within_s=30)
            unknown = rid[:-4] + ("AAAA" if rid[-4:] != "AAAA" else "BBBB")
            times: dict[str, list[float]] = {rid: [], unknown: []}
            for http, method, path in (
                (mallory, "GET", ""),
                (mallory, "GET", "?stream=true"),
                (mallory, "POST", "/cancel"),
                (mallory, "DELETE", ""),
                (mallory, "GET", "/input_items"),
                (aside, "GET", ""),
                (aside, "GET", "?stream=true"),
            ):
                told = []
                for each in (rid, unknown):
                    began = time.perf_counter()
                    answer = await http.request(method, f"/v1/responses/{each}{path}")
                    times[each].append(1000 * (time.perf_counter() - began))
                    told.append((answer.status_code, answer.text.replace(each, "")))
                assert told[0] == told[1], (method, path)
                assert told[0][0] == 404, (method, path)
            async with socket(
                deployment.push(1), "/v1/watch", deployment.headers("mallory-14")
            ) as watching:
                await watching.send(json.dumps({"type": "watch", "response_id": rid}))
                assert (await received(watching))["status"] == 404
            async with socket(
                deployment.gateway(1), "/v1/responses", deployment.headers("mallory-14")
            ) as asking:
                await asking.send(json.dumps({"type": "response.cancel", "response_id": rid}))
                assert (await received(asking))["error"]["code"] == "response_not_found"
                create = {"type": "response.create", "input": "x", "previous_response_id": rid}
                await asking.send(json.dumps(create))
                assert (await received(asking))["error"]["code"] == "previous_response_not_found"
            with pytest.raises(websockets.InvalidStatus) as refused:
                async with socket(
                    deployment.gateway(1),
                    f"/v1/responses?resume={rid}",
                    deployment.headers("mallory-14"),
                ):
                    pass
            assert refused.value.response.status_code == 404
            assert (await alice.get(f"/v1/responses/{rid}")).json()["status"] == "completed"
            theirs, none = (sorted(times[each])[len(times[each]) // 2] for each in (rid, unknown))
            row.note = f"median {theirs:.1f} ms, unknown {none:.1f} ms"


async def test_a_ticket_works_once(deployment: room.Deployment, attack: room.Attacks) -> None:
    service = deployment.gateway(1)
    with attack("a ticket in a race, and again", "exactly one handshake wins; 401 for the rest"):
        async with client(service, deployment.headers("racer")) as http:
            for _ in range(room.amount(20, 3)):
                ticket = (await http.post("/v1/tickets")).json()["ticket"]

                async def shaken(ticket: str = ticket) -> int:
                    try:
                        async with socket(
                            service, "/v1/responses", {}, "tailrace.v1", f"ticket.{ticket}"
                        ):
                            return 101
                    except websockets.InvalidStatus as refused:
                        return refused.response.status_code

                outcomes = sorted([*await asyncio.gather(*(shaken() for _ in range(4)))])
                assert outcomes == [101, 401, 401, 401]
                assert await shaken() == 401


def nonsense(random_: random.Random, depth: int = 3) -> Any:
    """A JSON value of any shape, with words of the protocol in it."""
    words = ["type", "response.create", "watch", "auth", "stream_id", "response_id", "input", ""]
    kind = random_.randrange(9 if depth else 6)
    match kind:
        case 0:
            return random_.choice([None, True, False])
        case 1:
            return random_.choice([0, -1, 2**53, 10**30, 1e308, 0.5])
        case 2 | 3:
            return random_.choice(words)
        case 4:
            return "".join(chr(random_.randrange(1, 0xD800)) for _ in range(20))
        case 5:
            return "x" * random_.randrange(2_000)
        case 6:
            return [nonsense(random_, depth - 1) for _ in range(random_.randrange(4))]
    return {
        random_.choice(words): nonsense(random_, depth - 1) for _ in range(random_.randrange(5))
    }


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/watch"])
async def test_messages_of_any_shape_are_answered_in_the_protocol(
    deployment: room.Deployment, attack: room.Attacks, path: str
) -> None:
    service = deployment.gateway(1) if path == "/v1/responses" else deployment.push(1)
    random_ = random.Random(21)
    kinds = ["response.create", "response.cancel", "response.steer", "watch", "unwatch", "auth"]
    with attack(f"nonsense on {path}", "documented errors only; the socket stays open") as row:
        headers = deployment.headers("fuzz")
        # It shows credentials that are refused, which are counted for its address.
        async with socket(service, path, headers, "tailrace.v1", source="127.0.0.6") as opened:
            answered = 0
            for number in range(room.amount(2_000, 200)):
                body = nonsense(random_)
                if isinstance(body, dict) and number % 2:
                    body["type"] = random_.choice(kinds)
                    body["generate"] = False  # nothing runs for long
                text = json.dumps(body)
                if number % 7 == 0:
                    text = text[: random_.randrange(len(text) + 1)] + random_.choice(
                        ["", "}", "\0"]
                    )
                await opened.send(text if number % 11 else text.encode())
                with contextlib.suppress(TimeoutError):
                    while True:  # what it causes; also keeps within the rate of messages
                        told = await received(opened, 0.005)
                        answered += 1
                        assert told.get("status", 400) < 500, told
            await opened.send('{"type":"no such thing"}')
            while (await received(opened))["type"] not in ("error", "watch.error"):
                pass
            row.note = f"{answered} answers"


async def test_absurd_parameters_are_refused_and_internal_ones_mean_nothing(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    responses: list[dict[str, Any]] = [
        {"max_output_tokens": 10**9},
        {"max_output_tokens": -1},
        {"temperature": 1e9},
        {"top_p": 0},
        {"top_logprobs": 21},
        {"seed": 2**70},
        {"logit_bias": {str(n): 1 for n in range(10_000)}},
        {"stop": ["x"] * 100},
        {"metadata": {str(n): "x" for n in range(1_000)}},
        {"text": {"format": {"type": "json_schema", "schema": {}}}},
        {"tools": [{"type": "function"}]},
        {"input": [{"role": "user", "content": "x"}] * 10_000},
        {"prompt": {"id": "x"}},
        {"priority": "interactive"},
    ]
    chats: list[dict[str, Any]] = [
        *({"n": 10**9}, {"top_logprobs": 5}, {"prompt_logprobs": 5}, {"max_tokens": 10**12}),
        {"response_format": {"type": "json_schema"}},
    ]
    mark = f"mark-{time.time_ns()}"
    internal = {
        "user_id": "admin",
        "own": "x",
        "owner": {"issuer": "i", "subject": "admin"},
        "rid": "resp_" + "A" * 32,
        "partition": 0,
        "ttl_ms": 10**9,
        "principal": "admin",
    }
    with attack("absurd and internal parameters", "400, or ignored; never in a record"):
        async with client(deployment.gateway(1), deployment.headers("plain")) as http:
            for fields in responses:
                answer = await http.post("/v1/responses", json={"input": "hi", **fields})
                assert answer.status_code == 400, (fields.keys(), answer.text[:200])
            for fields in chats:
                body = {"messages": [{"role": "user", "content": "hi"}], **fields}
                answer = await http.post("/v1/chat/completions", json=body)
                assert answer.status_code == 400, (fields, answer.text[:200])
            body = {"input": "hi", "metadata": {"mark": mark}, **internal}
            rid = await background(http, body)
        found = [
            request
            for record in deployment.records(topics.requests("default", "interactive"))
            if (request := records.decode_request(record.value)) is not None
            and (request.echo.get("metadata") or {}).get("mark") == mark
        ]
        assert [request.rid for request in found] == [rid]
        assert found[0].owner.subject == "plain"
        assert found[0].ttl_ms < 10**9
        assert "admin" not in records.encode(found[0]).decode()


async def test_a_key_that_stands_for_another_request_is_refused(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    key = f"key-{time.time_ns()}"
    with attack("one idempotency key, two bodies", "409 at both gateways; the first one stands"):
        rids = []
        for number, text, status in ((1, "one", 200), (2, "two", 409), (1, "two", 409)):
            service = deployment.gateway(number)
            async with client(service, deployment.headers("twice")) as http:
                answer = await http.post(
                    "/v1/responses",
                    json={"input": text, "background": True},
                    headers={"Idempotency-Key": key},
                )
                assert answer.status_code == status, answer.text
                rids += [answer.json()["id"]] if status == 200 else []
        async with client(deployment.gateway(2), deployment.headers("twice")) as http:
            body = {"background": True, "input": "one"}
            answer = await http.post("/v1/responses", json=body, headers={"Idempotency-Key": key})
        assert [answer.json()["id"]] == rids


async def test_one_users_photographs_keep_nobody_waiting(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    """The largest bodies there are, a new picture in each, from as many addresses as it takes."""
    rounds = room.amount(6, 1)
    bodies = {}
    for source, n in itertools.product(range(1, 7), range(rounds)):
        data = pictures.png(n) + random.Random(100 * source + n).randbytes(6_000_000)
        part = {"type": "input_image", "image_url": pictures.url(data)}
        body = {"input": [{"role": "user", "content": [part]}], "background": True}
        bodies[source, n] = json.dumps(body).encode()

    async def send(source: int) -> list[int]:
        transport = httpx.AsyncHTTPTransport(local_address=f"127.0.5.{source}")
        headers, url = deployment.headers("painter"), deployment.gateway(1).url
        statuses = []
        async with httpx.AsyncClient(
            base_url=url, headers=headers, timeout=60, transport=transport
        ) as http:
            for n in range(rounds):
                answer = await http.post("/v1/responses", content=bodies[source, n])
                statuses.append(answer.status_code)
        return statuses

    with attack("50 MB of photographs at once", "200 or 429; nobody waits; memory flat") as row:
        told = [s for each in await asyncio.gather(*map(send, range(1, 7))) for s in each]
        assert set(told) <= {200, 429}, told
        assert 200 in told
        row.note = f"{told.count(200)} of {len(told)} were taken"
