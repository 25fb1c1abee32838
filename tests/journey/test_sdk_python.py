"""The official `openai` Python SDK, unmodified, against the real stack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from tailrace.protocol.events import TERMINAL_TYPES
from tests.faults.link import Link
from tests.journey.conftest import MODEL, Stack

QUESTION = "Explain quantum entanglement."
SHORT = "Say hello."  # ends by itself: the helper takes only a completed response for a final one


@pytest.fixture
def client(stack: Stack) -> Any:
    with openai.OpenAI(
        base_url=stack.api, api_key=stack.credential, timeout=60.0, max_retries=0
    ) as c:
        yield c


def read(events: Any) -> tuple[list[Any], str]:
    """All events to the end, dense numbering checked, and the concatenated text."""
    seen = []
    for event in events:
        assert event.type != "error", event
        seen.append(event)
        if event.type in TERMINAL_TYPES:
            break
    if isinstance(events, openai.Stream):
        events.close()  # a socket holds more turns
    numbers = [e.sequence_number for e in seen]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return seen, "".join(e.delta for e in seen if e.type == "response.output_text.delta")


def check_complete(seen: list[Any], text: str) -> None:
    assert [e.type for e in seen[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    final = seen[-1].response
    assert final.output_text == text
    assert len(text) > 20
    assert final.usage.output_tokens > 5
    assert final.usage.input_tokens > 5
    assert final.usage.total_tokens == final.usage.input_tokens + final.usage.output_tokens


def test_websocket_two_turns_on_one_socket(client: Any) -> None:
    with client.responses.connect() as connection:
        connection.response.create(
            model=MODEL, input="Say hello to Ada.", stream_id="main", max_output_tokens=40
        )
        seen, text = read(connection)
        check_complete(seen, text)
        assert {e.stream_id for e in seen} == {"main"}
        connection.response.create(
            model=MODEL,
            input="What was the name?",
            previous_response_id=seen[-1].response.id,
            stream_id="main",
            max_output_tokens=40,
        )
        again, more = read(connection)
        check_complete(again, more)
        assert again[-1].response.previous_response_id == seen[-1].response.id
        # The second prompt holds the first turn and its answer.
        assert again[-1].response.usage.input_tokens > seen[-1].response.usage.total_tokens


def test_sse_stream(client: Any) -> None:
    seen, text = read(
        client.responses.create(model=MODEL, input=QUESTION, stream=True, max_output_tokens=60)
    )
    check_complete(seen, text)


def test_the_high_level_stream_helper_accumulates_the_same_text(client: Any) -> None:
    with client.responses.stream(
        model=MODEL, input=SHORT, temperature=0, max_output_tokens=500
    ) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text


def test_not_streamed(client: Any) -> None:
    response = client.responses.create(
        model=MODEL,
        input=QUESTION,
        max_output_tokens=40,
        instructions="Answer briefly.",
        metadata={"k": "v"},
    )
    assert response.status in ("completed", "incomplete")
    assert len(response.output_text) > 20
    assert response.instructions == "Answer briefly."
    assert response.metadata == {"k": "v"}


def test_background_is_polled_and_then_replayed_from_a_position(client: Any) -> None:
    queued = client.responses.create(
        model=MODEL, input=SHORT, background=True, temperature=0, max_output_tokens=500
    )
    assert queued.status in ("queued", "in_progress")
    seen, text = read(client.responses.retrieve(queued.id, stream=True))
    assert [e.type for e in seen[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    done = client.responses.retrieve(queued.id)
    assert done.status in ("completed", "incomplete")
    assert done.output_text == text
    middle = len(seen) // 2
    rest, _ = read(client.responses.retrieve(queued.id, stream=True, starting_after=middle))
    assert [e.to_json() for e in rest] == [e.to_json() for e in seen[middle + 1 :]]
    with client.responses.stream(response_id=queued.id, starting_after=middle) as stream:
        assert stream.get_final_response().output_text == text


def test_the_push_service_serves_the_same_response(client: Any, stack: Stack) -> None:
    seen, _ = read(
        client.responses.create(model=MODEL, input=QUESTION, stream=True, max_output_tokens=40)
    )
    rid = seen[0].response.id
    with openai.OpenAI(
        base_url=f"{stack.push_url}/v1", api_key=stack.credential, max_retries=0
    ) as other:
        replayed, _ = read(other.responses.retrieve(rid, stream=True))
        assert [e.to_json() for e in replayed] == [e.to_json() for e in seen]
        assert (
            other.responses.retrieve(rid).output_text == client.responses.retrieve(rid).output_text
        )


def test_cancel_in_mid_answer(client: Any) -> None:
    stream = client.responses.create(
        model=MODEL,
        input="Count from 1 to 500 in words.",
        stream=True,
        background=True,
        max_output_tokens=1500,
    )
    rid, cancelled, seen = None, None, []
    for event in stream:
        seen.append(event)
        if event.type == "response.created":
            rid = event.response.id
        if event.type == "response.output_text.delta" and cancelled is None:
            cancelled = client.responses.cancel(rid)
    assert cancelled is not None
    assert cancelled.status == "cancelled"
    assert seen[-1].type == "response.incomplete"
    assert seen[-1].response.status == "cancelled"
    assert seen[-1].response.usage.output_tokens < 1500
    again = client.responses.cancel(rid)
    assert again.status == "cancelled"
    assert client.responses.retrieve(rid).status == "cancelled"


def test_delete_and_input_items(client: Any) -> None:
    response = client.responses.create(model=MODEL, input="Say hi.", max_output_tokens=10)
    items = client.responses.input_items.list(response.id)
    assert items.data[0].content[0].text == "Say hi."
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_chat_completions(client: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    whole = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=40)
    assert len(whole.choices[0].message.content) > 20
    assert whole.usage.completion_tokens <= 40
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=messages,
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens <= 40
    assert all(c.usage is None for c in chunks[:-1])
    assert len("".join(c.choices[0].delta.content or "" for c in chunks[:-1])) > 20
    assert chunks[-2].choices[0].finish_reason in ("stop", "length")


def test_models(client: Any) -> None:
    assert MODEL in [m.id for m in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


def test_errors_are_the_sdks_own(client: Any, stack: Stack) -> None:
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        client.responses.create(model="no-such-model", input="hi")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.responses.create(model=MODEL, input="hi", temperature=17)
    with pytest.raises(openai.BadRequestError) as e:
        client.responses.create(model=MODEL, input="hi", previous_response_id="resp_unknown")
    assert e.value.code == "previous_response_not_found"
    with (
        openai.OpenAI(base_url=stack.api, api_key="nonsense", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_another_users_response_looks_unknown(client: Any, stack: Stack) -> None:
    mine = client.responses.create(model=MODEL, input="Say hi.", max_output_tokens=10)
    with openai.OpenAI(base_url=stack.api, api_key=stack.token("mallory"), max_retries=0) as other:
        for attempt in (
            other.responses.retrieve,
            other.responses.cancel,
            other.responses.delete,
            other.responses.input_items.list,
        ):
            with pytest.raises(openai.NotFoundError) as e:
                attempt(mine.id)
            assert mine.id in e.value.message
    assert client.responses.retrieve(mine.id).id == mine.id


@pytest.fixture
def link(stack: Stack) -> Iterator[Link]:
    """A network between a client and the gateway."""
    port = urlsplit(stack.url).port
    assert port is not None
    made = Link(lambda: port)
    yield made
    made.close()


async def test_a_socket_that_is_cut_is_resumed_by_the_query_extension(
    stack: Stack, link: Link
) -> None:
    """The SDK's own reconnect, with nothing added but the query of the next handshake."""
    position: dict[str, Any] = {}

    def on_reconnecting(_: Any) -> Any:
        return {"extra_query": {"resume": position["id"], "starting_after": str(position["after"])}}

    seen: list[Any] = []
    cut = False
    async with (
        openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{link.port}/v1", api_key=stack.credential
        ) as client,
        client.responses.connect(on_reconnecting=on_reconnecting) as connection,
    ):
        await connection.response.create(model=MODEL, input=QUESTION, max_output_tokens=120)
        async for event in connection:
            assert event.type != "error", event
            seen.append(event)
            position["after"] = event.sequence_number
            if event.type == "response.created":
                position["id"] = event.response.id
            if event.type == "response.output_text.delta" and not cut:
                cut = True
                link.cut()
            if event.type in TERMINAL_TYPES:
                break
    assert link.connections == 2
    assert [e.sequence_number for e in seen] == list(range(len(seen)))
    assert seen[-1].response.output_text == "".join(
        e.delta for e in seen if e.type == "response.output_text.delta"
    )
