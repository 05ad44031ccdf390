"""The practice provider over a real socket: it counts, refuses, streams and reports."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from proxy.meter import Meter
from proxy.practice import CHUNK_CHARS, create_practice_app
from tests.serving import serve

WINDOW_TOKENS = 2000
INSTRUCTION = "Write a summary. Sections:\n1. Request\n2. Decisions\n3. Next step\n"


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with (
        serve(create_practice_app(window_tokens=WINDOW_TOKENS)) as served,
        httpx.Client(base_url=served.url) as client,
    ):
        yield client


def chat(client: httpx.Client, content: str = "hello", **fields: Any) -> httpx.Response:
    request = {"model": "practice", "messages": [{"role": "user", "content": content}], **fields}
    return client.post("/v1/chat/completions", json=request)


def events(response: httpx.Response) -> list[Any]:
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.removesuffix("\n\n").split("\n\n")
    assert blocks.pop() == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def test_it_answers_and_reports_what_it_counted(client: httpx.Client) -> None:
    answered = chat(client).json()
    request = {"messages": [{"role": "user", "content": "hello"}]}
    assert answered["usage"]["prompt_tokens"] == Meter().count_request(request, "practice")
    text = answered["choices"][0]["message"]["content"]
    assert answered["usage"]["completion_tokens"] == Meter().count_text(text, "practice")
    assert answered["usage"]["total_tokens"] == sum(
        answered["usage"][name] for name in ("prompt_tokens", "completion_tokens")
    )
    assert answered["choices"][0]["finish_reason"] == "stop"
    assert "hello" in text


def test_tools_count(client: httpx.Client) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "long " * 100}}
    with_tool = chat(client, tools=[tool]).json()["usage"]["prompt_tokens"]
    assert with_tool > chat(client).json()["usage"]["prompt_tokens"] + 100


def test_the_same_request_gives_the_same_bytes(client: httpx.Client) -> None:
    assert chat(client).content == chat(client).content
    assert chat(client).json()["id"] != chat(client, "other").json()["id"]


def test_a_stream_says_the_same_in_pieces(client: httpx.Client) -> None:
    whole = chat(client, "tell me " * 30).json()
    chunks = events(chat(client, "tell me " * 30, stream=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    text = "".join(delta.get("content", "") for delta in deltas)
    assert text == whole["choices"][0]["message"]["content"]
    assert len(deltas) == 2 + -(-len(text) // CHUNK_CHARS)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert not any("usage" in chunk for chunk in chunks)


def test_a_stream_reports_usage_when_asked(client: httpx.Client) -> None:
    chunks = events(chat(client, stream=True, stream_options={"include_usage": True}))
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == chat(client).json()["usage"]


def test_a_prompt_over_the_window_is_refused_with_its_numbers(client: httpx.Client) -> None:
    refused = chat(client, "word " * 3000)
    prompt_tokens = Meter().count_request(
        {"messages": [{"role": "user", "content": "word " * 3000}]}, "practice"
    )
    assert refused.status_code == 400
    assert refused.json() == {
        "error": {
            "message": f"This model's maximum context length is {WINDOW_TOKENS} tokens. However, "
            f"your messages resulted in {prompt_tokens} tokens. Please reduce the length of the "
            "messages.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    }


def test_a_stream_over_the_window_is_refused_before_it_begins(client: httpx.Client) -> None:
    refused = chat(client, "word " * 3000, stream=True)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_prompt_and_output_limit_share_the_window(client: httpx.Client) -> None:
    assert chat(client, max_tokens=WINDOW_TOKENS).status_code == 400
    assert chat(client, max_tokens=WINDOW_TOKENS - 100).status_code == 200


def test_an_answer_is_cut_at_its_limit(client: httpx.Client) -> None:
    cut = chat(client, max_tokens=3).json()
    assert cut["choices"][0]["finish_reason"] == "length"
    assert cut["usage"]["completion_tokens"] == 3


def test_an_answer_is_cut_where_the_window_ends(client: httpx.Client) -> None:
    content = "word " * (WINDOW_TOKENS - 20)
    cut = chat(client, content).json()
    assert cut["choices"][0]["finish_reason"] == "length"
    assert cut["usage"]["total_tokens"] == WINDOW_TOKENS


def test_it_summarises_by_extracting(client: httpx.Client) -> None:
    messages = [
        {"role": "user", "content": "Paint the shed green."},
        {"role": "assistant", "content": "We decided on moss green, because it was cheap."},
        {"role": "user", "content": INSTRUCTION},
    ]
    request = {"model": "practice", "messages": messages}
    answered = client.post("/v1/chat/completions", json=request).json()
    text = answered["choices"][0]["message"]["content"]
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == ["## Request", "## Decisions", "## Next step"]
    assert "moss green" in text


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 100_000])
def test_what_is_no_request_is_refused(client: httpx.Client, body: bytes) -> None:
    refused = client.post("/v1/chat/completions", content=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "invalid_request_error"


def test_a_parted_call_is_refused(client: httpx.Client) -> None:
    messages = [{"role": "tool", "tool_call_id": "a", "content": "x"}]
    refused = client.post("/v1/chat/completions", json={"model": "m", "messages": messages})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "messages.[0].role"


def test_it_lists_its_model_and_window(client: httpx.Client) -> None:
    listed = client.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["practice"]
    assert listed["data"][0]["max_model_len"] == WINDOW_TOKENS
    assert client.get("/v1/models/a/b").json()["id"] == "a/b"


def test_it_can_keep_its_window_to_itself() -> None:
    app = create_practice_app(window_tokens=WINDOW_TOKENS, lists_window=False)
    with serve(app) as served, httpx.Client(base_url=served.url) as client:
        assert "max_model_len" not in client.get("/v1/models").json()["data"][0]
        assert "max_model_len" not in client.get("/v1/models/practice").json()


@pytest.mark.parametrize(("method", "status"), [("GET", 405), ("POST", 404)])
def test_an_unknown_url_is_an_error_of_the_usual_shape(
    client: httpx.Client, method: str, status: int
) -> None:
    path = "/v1/chat/completions" if method == "GET" else "/v1/other"
    refused = client.request(method, path)
    assert refused.status_code == status
    assert refused.json()["error"]["code"] == "unknown_url"


def test_chunks_can_be_held_apart() -> None:
    app = create_practice_app(chunk_delay_seconds=0.02, meter=Meter())
    with serve(app) as served, httpx.Client(base_url=served.url) as client:
        started = time.perf_counter()
        chunks = events(chat(client, stream=True))
        assert time.perf_counter() - started >= 0.02 * len(chunks)
