"""A provider says that a prompt does not fit: room is made, the request is sent once more, and what
cannot be mended is the provider's own answer."""

import json
from typing import Any

import httpx
import pytest

from tests.journeys.refusing_provider import (
    Refuse,
    RefusingProvider,
    as_400,
    as_413,
    as_error_event,
    as_first_event,
    as_gzip,
    as_gzip_event,
    as_input_limit,
    in_200,
    in_gzip_200,
    in_words,
)
from tests.proxied import talk, text_of_tokens, user, walking

# Tidegate believes in a window that the provider does not have.
BELIEVED, TRUE = 200_000, 4000
# Older than its newest message it has what fits one summary call.
LONG = [*talk(5, 250)[:-1], user(text_of_tokens(1600, "Now all of this:"))]


def answer_of(reply: httpx.Response) -> str:
    """What the model said, streamed or not."""
    if reply.headers["content-type"].startswith("application/json"):
        return str(reply.json()["choices"][0]["message"]["content"])
    said = ""
    for line in reply.text.split("\n"):
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                said += choice["delta"].get("content") or ""
    return said


WAYS = [
    (as_400, False),
    (as_400, True),
    (as_gzip, False),
    (as_gzip, True),
    (as_413, False),
    (as_413, True),
    (in_200, False),
    (in_200, True),
    (in_gzip_200, False),
    (as_first_event, True),
    (as_error_event, True),
    (as_gzip_event, True),
    (as_input_limit, True),
]


@pytest.mark.parametrize(
    ("refuse", "stream"), WAYS, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_refusal_is_recovered_with_one_replay(refuse: Refuse, stream: bool) -> None:
    provider = RefusingProvider(TRUE, refuse)
    with walking(BELIEVED, provider=provider) as walk:
        answer = walk.ask(LONG, stream=stream)
        assert answer.reply.status_code == 200, answer.reply.text
        assert answer_of(answer.reply) == "It is done, as you asked."
        assert len(answer.main) == 2
        assert len(answer.summaries) == 1
        assert answer.main[1].tokens < TRUE
        assert answer.actions == {"summary", "replay"}
        assert answer.forwarded[-1] == LONG[-1]


@pytest.mark.parametrize(
    ("refuse", "stream"), WAYS, ids=lambda value: getattr(value, "__name__", value)
)
def test_r003_who_always_refuses_is_asked_twice_and_heard_once(
    refuse: Refuse, stream: bool
) -> None:
    provider = RefusingProvider(TRUE, refuse, always=True)
    with walking(BELIEVED, provider=provider) as walk:
        answer = walk.ask(LONG, stream=stream)
        assert len(answer.main) == 2
        assert len(answer.summaries) == 1
        first = provider.refused[0]
        assert answer.reply.status_code == first.status
        assert answer.reply.content == first.body
        assert provider.refused[1].body != first.body or refuse is as_413
        for name, value in first.headers:
            assert answer.reply.headers[name.decode()] == value.decode()
        assert answer.reply.headers["content-type"] == first.kind
        assert answer.reply.headers.get("content-encoding") == first.coding
        assert "replay" in answer.actions


RATE = (
    "Rate limit reached for m on tokens per minute (TPM): Limit 6000, Used 5000, Requested 14810. "
    "Please try again in 2s."
)
LENGTH = "This model's maximum context length is 4000 tokens, please reduce the messages."
OTHERS = [
    (401, {"error": {"message": "Incorrect API key provided", "code": "invalid_api_key"}}),
    (403, {"error": "Permission denied", "error_code": "x", "request_id": "r"}),
    (404, {"error": {"message": "The model `m` does not exist", "code": "model_not_found"}}),
    (422, {"detail": "n must be 1"}),
    (429, ""),
    (429, {"error": {"message": LENGTH}}),
    (429, {"error": {"message": RATE, "type": "tokens", "code": "rate_limit_exceeded"}}),
    (400, {"error": {"message": RATE, "type": "tokens", "code": "rate_limit_exceeded"}}),
    (
        413,
        {
            "error": {
                "message": "Request too large for model `m` on tokens per minute (TPM): Limit 6000,"
                " Requested 14810, please reduce your message size and try again.",
                "type": "tokens",
                "code": "rate_limit_exceeded",
            }
        },
    ),
    (413, {"error": {"message": "image exceeds 5 MB maximum"}}),
    (500, {"error": {"message": "maximum context length"}}),
    (503, {"error": {"message": "could not compute the maximum context length"}}),
    (529, {"error": {"message": "maximum context length", "type": "overloaded_error"}}),
]


@pytest.mark.parametrize(("status", "body"), OTHERS)
@pytest.mark.parametrize("stream", [False, True])
def test_other_errors_pass_as_they_are(status: int, body: Any, stream: bool) -> None:
    """R044, R045, R046, R050 without an image, R131."""
    raw = body if isinstance(body, str) else json.dumps(body)
    provider = RefusingProvider(TRUE, in_words(status, raw), always=True)
    with walking(BELIEVED, provider=provider) as walk:
        answer = walk.ask(LONG, stream=stream)
        assert answer.reply.status_code == status
        assert answer.reply.content == raw.encode()
        assert len(answer.main) == 1
        assert not answer.summaries
        assert answer.actions == set()


def test_a_compressed_401_passes_readable() -> None:
    """R119."""
    provider = RefusingProvider(TRUE)
    with walking(BELIEVED, provider=provider) as walk:
        body = b'{"error":{"message":"no","code":"invalid_api_key"}}'
        provider.next(status=401, body=body, coding="gzip")
        reply = walk.ask(LONG).reply
        assert (reply.status_code, reply.content) == (401, body)
        assert len(provider.chats) == 1


def openai(message: str, **more: Any) -> Any:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return {"error": {**error, **more}}


def vllm(message: str) -> Any:
    return {"object": "error", "message": message, "type": "BadRequestError", "code": 400}


IN_MESSAGES = (
    "This model's maximum context length is $W tokens. However, you requested $T tokens"
    " ($P in the messages, 32 in the completion)."
    " Please reduce the length of the messages or completion."
)
IN_WORDS = {
    "llama.cpp": (
        400,
        {
            "error": {
                "code": 400,
                "message": "request ($P tokens) exceeds the available context size ($W tokens),"
                " try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 4355,
                "n_ctx": 4000,
            }
        },
    ),
    "vllm": (400, vllm(IN_MESSAGES)),
    "vllm decoder": (
        400,
        vllm(
            "The decoder prompt (length $P) is longer than the maximum model length of $W. Make"
            " sure that `max_model_len` is no smaller than the number of text tokens."
        ),
    ),
    "vllm input": (
        400,
        vllm(
            "This model's maximum context length is $W tokens. However, your request has $P input"
            " tokens. Please reduce the length of the input messages. None"
        ),
    ),
    "openai, azure": (
        400,
        openai(
            "This model's maximum context length is $W tokens. However, your messages resulted in"
            " $P tokens. Please reduce the length of the messages.",
            code="context_length_exceeded",
        ),
    ),
    "openai input": (
        400,
        openai(
            "Input tokens exceed the configured limit of $W tokens. Your messages resulted in $P"
            " tokens. Please reduce the length of the messages.",
            code="context_length_exceeded",
        ),
    ),
    "openrouter": (
        400,
        openai(
            "This endpoint's maximum context length is $W tokens. However, you requested about $T"
            " tokens ($P of text input, 0 of tool input, 32 in the output). Please reduce the"
            ' length of either one, or use the "middle-out" transform.',
            code=400,
        ),
    ),
    "openrouter, output of its own": (
        400,
        openai(
            "This endpoint's maximum context length is 4900 tokens. However, you requested about"
            " 5955 tokens (4355 of text input, 0 of tool input, 1600 in the output). Please reduce"
            ' the length of either one, or use the "middle-out" transform.',
            code=400,
        ),
    ),
    "mistral": (
        400,
        vllm(
            "Prompt contains $P tokens and 0 draft tokens, too large for model with $W maximum"
            " context length"
        ),
    ),
    "deepseek": (400, openai(IN_MESSAGES, code="invalid_request_error")),
    "together": (
        422,
        openai(
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= $W. Given: $P"
            " `inputs` tokens and 32 `max_new_tokens`"
        ),
    ),
    "gemini": (
        400,
        [
            {
                "error": {
                    "code": 400,
                    "message": "The input token count ($P) exceeds the maximum number of tokens"
                    " allowed ($W).",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
    ),
    "bedrock through a gateway": (
        400,
        openai(
            "Provider returned error",
            metadata={"raw": '{"message":"Input is too long for requested model."}'},
        ),
    ),
    "glm": (400, {"error": {"code": "1261", "message": "Prompt exceeds max length"}}),
    "qwen": (
        400,
        {
            "code": "invalid_parameter_error",
            "message": "<400> InternalError.Algo.InvalidParameter: Range of input length should"
            " be [1, $W]",
        },
    ),
    "anthropic": (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "prompt is too long: $P tokens > $W maximum",
            },
        },
    ),
    "a server error that states it": (
        500,
        {"error": {"code": 500, "message": "Requested tokens ($P) exceed context window of $W"}},
    ),
}


@pytest.mark.parametrize(("status", "body"), IN_WORDS.values(), ids=IN_WORDS)
def test_each_provider_is_understood_in_its_own_words(status: int, body: Any) -> None:
    """R047, R048."""
    provider = RefusingProvider(TRUE, in_words(status, body))
    with walking(BELIEVED, provider=provider) as walk:
        answer = walk.ask(LONG)
        assert answer.reply.status_code == 200, answer.reply.text
        assert len(answer.main) == 2
        assert len(answer.summaries) == 1
        assert answer.main[1].tokens < TRUE
