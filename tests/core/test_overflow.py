"""Refusals are told apart by what providers say, and their numbers are read."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.overflow import (
    Refusal,
    RefusalKind,
    classify,
    finish_reason_overflow,
    load_table,
    success_overflow,
)
from tests.core import overflow_holdout

OVERFLOW = RefusalKind.CONTEXT_OVERFLOW
IMAGES = RefusalKind.IMAGE_BUDGET
BYTES = RefusalKind.PAYLOAD_TOO_LARGE
OUTPUT = RefusalKind.OUTPUT_LIMIT
OTHER = RefusalKind.OTHER

needs_corpus = pytest.mark.skipif(
    not overflow_holdout.CORPUS.exists(), reason="the labelled corpus is not part of the project"
)


def said(text: str, status: int = 400, **fields: Any) -> Refusal:
    return classify(status, json.dumps({"error": {"message": text, **fields}}).encode())


def numbers(refusal: Refusal) -> tuple[int | None, int | None, int | None]:
    return refusal.window_tokens, refusal.prompt_tokens, refusal.requested_output_tokens


# One example for every row of the table, in words and numbers of our own: the row, the status, the
# message, further fields of the error object.
EXAMPLES: list[tuple[str, int, str, dict[str, Any]]] = [
    ("rate-code", 400, "Input token limit reached", {"type": "rate_limit_error"}),
    ("rate-code-tokens", 413, "Request too large, maximum context is 9000", {"type": "tokens"}),
    ("rate-wording", 400, "Prompt too long: 9000 tokens per minute allowed, 12000 sent", {}),
    ("access-wording", 400, "The session token is too long or expired", {}),
    ("max-length-schema", 400, "Malformed request: expected maxLength: 70000, actual: 71234", {}),
    ("message-string-too-long", 400, "Invalid 'messages[3].content': string too long", {}),
    ("field-too-long", 400, "Invalid 'tools[1].name': string too long, maximum is 64", {}),
    ("batch-size", 500, "input (700 tokens) is too large, increase the physical batch size", {}),
    ("truncate-parameter", 422, "`truncate` must be less than 2048. Given: 5000 tokens", {}),
    ("exceed_context_size_error", 500, "no room", {"type": "exceed_context_size_error"}),
    ("context-code", 400, "Nope.", {"code": "context_length_exceeded"}),
    ("tokens-code", 413, "Too big: 9000", {"code": "tokens_limit_reached"}),
    ("zhipu-1261", 400, "参数错误", {"code": "1261"}),
    ("context-exception", 400, "litellm.ContextWindowExceededError: vendor said no", {}),
    ("image-code", 400, "Refused.", {"code": "too_many_images"}),
    ("output-code", 400, "Stopped.", {"code": "max_tokens_exceeded"}),
    ("hedged", 400, "Possible causes: the prompt is too long, or a parameter is wrong", {}),
    ("snowflake-max-tokens", 400, "max tokens of 70000 exceeded", {}),
    ("negative-output", 400, "max_tokens must be at least 1, got -77.", {}),
    ("output-relation", 400, "max_tokens must be greater than the thinking budget_tokens", {}),
    ("output-subject", 400, "max_tokens must be at most 5000", {}),
    ("output-cap", 400, "This model supports at most 5000 completion tokens, not 6000", {}),
    ("image-not-a-budget", 400, "Generated image was rejected, up to you to retry", {}),
    ("no-image-input", 400, "This model does not support image input.", {}),
    ("image-count", 400, "Too many images in request. Max is 7.", {}),
    ("image-size", 400, "The image exceeds the maximum dimension of 7000 pixels", {}),
    ("image-unreadable", 400, "Could not decode the image", {}),
    ("bytes", 400, "Request payload size exceeds the limit: 7000000 bytes.", {}),
    ("bytes-code", 413, "No.", {"type": "request_too_large"}),
    ("context-exceeded-whole", 500, "Context size has been exceeded.", {}),
    ("context-exceeded", 400, "Your input exceeds the context window of this model", {}),
    ("context-limit-stated", 400, "This model's maximum context length is 7000 tokens.", {}),
    ("prompt-too-long", 400, "The prompt is too long for this model.", {}),
    ("tokens-exceed", 400, "Prompt token count of 7300 exceeds the limit of 7000", {}),
    ("too-many-tokens", 400, "Request contains too many tokens", {}),
    ("length-range", 400, "Range of input length should be [1, 7000]", {}),
    ("request-exceeds-model", 400, "The conversation does not fit this model", {}),
    ("shorten-the-prompt", 400, "Please reduce the length of the messages.", {}),
    ("status-413", 413, "failed to read it", {}),
]


def test_every_row_of_the_table_has_an_example() -> None:
    assert [name for name, *_ in EXAMPLES] == [row["name"] for row in load_table()["sign"]]


@pytest.mark.parametrize(("name", "status", "text", "fields"), EXAMPLES)
def test_a_row_decides_its_example(
    name: str, status: int, text: str, fields: dict[str, Any]
) -> None:
    row = next(row for row in load_table()["sign"] if row["name"] == name)
    refusal = said(text, status, **fields)
    assert refusal.kind == row["kind"]
    assert refusal.sign == ("" if row["kind"] == "other" else name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("maximum context length is 9,001 tokens. You requested 9,500 tokens (9,400 in the "
         "messages, 100 in the completion).", (9001, 9400, 100)),
        ("Your messages resulted in 9500 tokens (9300 in the messages, 200 in the functions), the "
         "maximum context length is 9000 tokens", (9000, 9500, None)),
        ("input length and `max_tokens` exceed context limit: 90001 + 20000 > 100003",
         (100003, 90001, 20000)),
        ("prompt is too long: 210007 tokens > 199999 maximum", (199999, 210007, None)),
        ("maximum context length is 9000 tokens. However, you requested 100 output tokens and your "
         "prompt contains 70000 characters (more than 35600 characters, which is the upper bound "
         "for 8900 input tokens)", (9000, None, 100)),
        ("too many tokens: size limit exceeded by 777 tokens. The limit for this model is 9000 "
         "tokens.", (9000, None, None)),
        ("prompt too long; exceeded max context length by 777 tokens", (None, None, None)),
        ("The maximum context length of Big-Model-3.1-70B is 9000. However, answering your request "
         "will take 9700 tokens, reduce max_completion_tokens", (9000, None, None)),
        ("You passed 8500 input tokens and requested 501 output tokens. However, the model's "
         "context length is only 9000 tokens, resulting in a maximum input length of 8499 tokens. "
         "(parameter=input_tokens, value=8500)", (9000, 8500, 501)),
        ("'max_tokens' is too large: 64. This model's maximum context length is 9000 tokens and "
         "your request has 8990 input tokens (64 > 9000 - 8990).", (9000, 8990, 64)),
        ("maximum context length is 204800 tokens. However, you requested about 205000 tokens "
         "(160k of text input, 12k of tool input, 32k in the output).", (204800, 172000, 32000)),
        ("Range of input length should be [1, 98304]", (98304, None, None)),
        ("prompt_tokens (9500) must be less than max_seq_len (9000).", (9000, 9500, None)),
        ("`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 9000 `inputs` tokens and 20 "
         "`max_new_tokens`", (4097, 9000, 20)),
        ("The prompt is too long: 9500, model maximum context length: 9000", (9000, 9500, None)),
        ("Current length is 9500 while limit is 9000, reduce the length of the messages",
         (9000, 9500, None)),
        ("Der Prompt ist zu lang: 145.210 Tokens, Maximum 131.072", (131072, 145210, None)),
        ("模型的最大上下文长度为 9000 个 token，您的请求包含 9500 个 token", (9000, 9500, None)),
        ("invalid params, context window exceeds limit (2013)", (None, None, None)),
        ("Prompt exceeds max length (request id: 20250101000000000000000123456789)",
         (None, None, None)),
        ("prompt is too long: 123456789012345678901234567890 tokens > 200000 maximum",
         (200000, None, None)),
    ],
)  # fmt: skip
def test_the_numbers_of_an_overflow_are_read(
    text: str, expected: tuple[int | None, int | None, int | None]
) -> None:
    refusal = said(text)
    assert refusal.kind is OVERFLOW
    assert numbers(refusal) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_tokens: 9000 > 8000, which is the maximum allowed number of output tokens", 9000),
        ("max_tokens is too large: 9000.This model supports at most 8000 completion tokens", 9000),
        ("max_tokens: expected a value <= 8000, but got 9000 instead.", 9000),
        ("Range of max_tokens should be [1, 8000]", None),
        ("it has a maxOutputTokens value of 9000 but the supported range is from 1 to 8001", 9000),
        ("`max_new_tokens` must be <= 512. Given: 9000", 9000),
        ("max_tokens must be less than or equal to 8000, less than the context_window", None),
    ],
)
def test_an_output_cap_is_not_a_window(text: str, expected: int | None) -> None:
    refusal = said(text)
    assert refusal.kind is OUTPUT
    assert numbers(refusal) == (None, None, expected)


def test_other_wordings_are_understood() -> None:
    """Paraphrases, translations and look-alikes; `stated` is window, prompt, output."""
    path = Path(__file__).with_name("overflow_wordings.jsonl")
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        refusal = said(row["text"], row["status"])
        assert refusal.kind == row["kind"], row["text"]
        assert list(numbers(refusal)) == row.get("stated", [None] * 3), row["text"]


def test_a_sum_that_a_small_prompt_cannot_cause_is_an_output_limit() -> None:
    text = "maximum context length is {} tokens. ({} in the messages, {} in the completion)"
    assert said(text.format(9000, 4499, 5000)).kind is OUTPUT
    assert said(text.format(9000, 4500, 5000)).kind is OVERFLOW


def test_a_lower_bound_is_marked() -> None:
    text = "maximum context length is 9000 tokens, your prompt contains at least 8901 input tokens"
    assert said(text).prompt_is_lower_bound
    assert not said(text.replace("at least ", "")).prompt_is_lower_bound


@pytest.mark.parametrize(
    ("text", "input_only"),
    [
        ("Input tokens exceed the configured limit of 272000 tokens. You sent 300000.", True),
        ("prompt token count of 9500 exceeds the limit of 9000", True),
        ("The input token count (9500) exceeds the maximum number of tokens allowed (9000).", True),
        ("This model's maximum prompt length is 9000 but the request contains 9500 tokens.", True),
        ("maximum context length is 9000 tokens. Your messages resulted in 9500 tokens.", False),
        ("prompt is too long: 9500 tokens > 9000 maximum", False),
        ("model's context length is 9000, resulting in a maximum input length of 8000", False),
    ],
)
def test_an_input_limit_is_kept_apart_from_the_window(text: str, input_only: bool) -> None:
    refusal = said(text)
    assert refusal.kind is OVERFLOW
    assert refusal.window_is_input_only is input_only


def test_image_limits_are_counted() -> None:
    refusal = said("too many images and documents: 23 + 0 > 20")
    assert (refusal.kind, refusal.image_limit, refusal.image_count) == (IMAGES, 20, 23)
    refusal = said("request contains 54 images, exceeding the maximum of 50 allowed per request")
    assert (refusal.image_limit, refusal.image_count) == (50, 54)
    refusal = said("At most 6 image(s) may be provided in one prompt.")
    assert (refusal.image_limit, refusal.image_count) == (6, None)
    assert not refusal.takes_no_images


def test_a_model_without_eyes_is_recognised_at_any_status_but_the_excluded_ones() -> None:
    for status in (400, 404, 422, 500):
        refusal = said("image input is not supported - you may need to provide the mmproj", status)
        assert refusal.kind is IMAGES
        assert refusal.takes_no_images
    assert said("At most 0 image(s) may be provided in one prompt.").takes_no_images
    for text in (
        "Could not process image",
        "Unsupported image type, must be one of jpeg, png",
        "The image exceeds the maximum size of 5 MB",
        "Images are only allowed for messages with role 'user'",
        "At most 4 image(s) may be provided in one prompt.",
    ):
        assert not said(text).takes_no_images
    assert said("image input is not supported", 403).kind is OTHER


def test_image_and_body_sizes_are_bytes() -> None:
    refusal = said("image exceeds 5 MB maximum: 6096280 bytes > 5242880 bytes")
    assert refusal.kind is IMAGES
    assert (refusal.limit_bytes, refusal.actual_bytes) == (5242880, 6096280)
    refusal = said("total message size 11041058 exceeds limit 4194304")
    assert refusal.kind is BYTES
    assert (refusal.limit_bytes, refusal.actual_bytes) == (4194304, 11041058)
    assert said("Maximum request body is 10 MB").limit_bytes == 10 * 1024**2
    assert numbers(refusal) == (None, None, None)


@pytest.mark.parametrize("status", [401, 402, 403, 429])
def test_access_money_and_rate_statuses_are_never_overflow(status: int) -> None:
    """R044: a 429 is passed on, whatever it says."""
    assert said("maximum context length is 9000 tokens, you sent 9500", status).kind is OTHER
    assert classify(status, b"").kind is OTHER


@pytest.mark.parametrize("status", [500, 503, 529])
def test_a_bare_phrase_at_5xx_is_other(status: int) -> None:
    """R044: the phrase alone proves nothing when the server itself failed."""
    assert said("failed while computing the maximum context length", status).kind is OTHER
    assert said("maximum context length", status).kind is OTHER
    assert said("prompt is too long", status).kind is OTHER
    stated = (
        "maximum context length is 9000 tokens. However, your messages resulted in 9500 tokens."
    )
    assert said(stated, status).kind is OVERFLOW


@pytest.mark.parametrize("status", [400, 413, 429])
def test_rate_limits_in_tokens_are_other(status: int) -> None:
    """R045 and R046: the unit is tokens per minute, whatever the status says."""
    for text in (
        "Rate limit reached for m on tokens per minute (TPM): Limit 6000, Used 5000, Requested "
        "14810. Please try again in 2s.",
        "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 14810, "
        "please reduce your message size and try again.",
    ):
        refusal = said(text, status, type="tokens", code="rate_limit_exceeded")
        assert refusal.kind is OTHER


def test_other_refusals_at_5xx_need_a_stated_limit_too() -> None:
    assert said("max_tokens must be at most 5000", 500).kind is OUTPUT
    assert said("too many images, at most 5 images allowed", 500).kind is IMAGES
    assert said("too many images", 500).kind is OTHER
    assert said("Request payload size exceeds the limit: 7000000 bytes", 502).kind is BYTES
    assert said("payload too large", 502).kind is OTHER


def test_a_byte_code_does_not_outweigh_a_text_about_the_window() -> None:
    text = "Request size exceeds model context window"
    assert said(text, 413, type="request_too_large").kind is OVERFLOW


def test_the_structured_sizes_of_llama_cpp_are_read() -> None:
    """R047: the limit is n_ctx, not the prompt."""
    text = "request (33056 tokens) exceeds the available context size (32768 tokens)"
    refusal = said(text, type="exceed_context_size_error", n_prompt_tokens=33056, n_ctx=32768)
    assert numbers(refusal) == (32768, 33056, None)
    refusal = said("does not fit", type="exceed_context_size_error", n_prompt_tokens=700, n_ctx=512)
    assert numbers(refusal) == (512, 700, None)


def test_413_is_bytes_unless_it_says_tokens() -> None:
    """R050 and what stands around it."""
    assert classify(413, b"").kind is BYTES
    assert said("Payload Too Large", 413).kind is BYTES
    assert said("image exceeds 5 MB maximum", 413).kind is IMAGES
    assert said("Body too large for small-1 model. Max size: 8000 tokens.", 413).kind is OVERFLOW
    assert said("Prompt is too long", 413).kind is OVERFLOW
    assert said("Endpoint is unavailable.", 413).kind is OTHER


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{}",
        b"[]",
        b'"Bad Gateway"',
        b"<html><body>upstream timed out</body></html>",
        b'{"error": {"message": "temperature must be at most 2"}}',
        b'{"error": {"message": "Invalid schema for function get_image: required is missing"}}',
        b'{"error": {"message": "bad temperature"}, "request": {"note": "prompt is too long"}}',
        b'{"detail": [{"loc": ["x"], "msg": "Field required", "input": "prompt is too long"}]}',
    ],
)
def test_what_is_no_refusal_of_size_is_other(body: bytes) -> None:
    assert classify(400, body) == Refusal(OTHER)


def test_a_success_is_no_refusal() -> None:
    reply = {"choices": [{"message": {"content": "prompt is too long"}, "finish_reason": "stop"}]}
    assert classify(200, json.dumps(reply).encode()).kind is OTHER
    chunk = {"choices": [{"delta": {}, "message": "prompt is too long"}], "message": "too long"}
    assert classify(200, json.dumps(chunk).encode(), in_stream=True).kind is OTHER
    chunk = {"choices": [{"delta": {"content": "maximum context length is 9000 tokens, but"}}]}
    assert classify(200, json.dumps(chunk).encode(), in_stream=True).kind is OTHER


def test_errors_inside_a_success_are_read() -> None:
    legacy = {"error_code": 77, "error_msg": "Prompt tokens too long"}
    assert classify(200, json.dumps(legacy).encode()).kind is OVERFLOW
    frame = {"validationException": {"message": "Input is too long for requested model."}}
    assert classify(200, json.dumps(frame).encode(), in_stream=True).kind is OVERFLOW
    frame = {"throttlingException": {"message": "Too many tokens, slow down."}}
    assert classify(200, json.dumps(frame).encode(), in_stream=True).kind is OTHER
    chunk = {"error": {"code": 502, "message": "prompt is too long"}, "choices": []}
    assert classify(200, json.dumps(chunk).encode(), in_stream=True).kind is OTHER
    chunk = {"error": {"code": 429, "message": "prompt is too long"}, "choices": []}
    assert classify(200, json.dumps(chunk).encode(), in_stream=True).kind is OTHER


def test_a_stop_by_the_window_is_an_overflow() -> None:
    for event in (
        {"choices": [{"finish_reason": "model_context_window_exceeded", "delta": {}}]},
        {"delta": {"stop_reason": "model_context_window_exceeded"}},
        {"stop_reason": "model_context_window_exceeded", "content": []},
    ):
        refusal = success_overflow(event, in_stream=True)
        assert refusal is not None
        assert refusal.kind is OVERFLOW


def test_an_empty_stop_by_length_is_an_overflow() -> None:
    def reply(content: str, usage: Mapping[str, Any] | None) -> Refusal:
        choice = {"finish_reason": "length", "message": {"content": content}}
        return classify(200, json.dumps({"choices": [choice], "usage": usage}).encode())

    assert reply("", {"prompt_tokens": 9000, "completion_tokens": 0}).prompt_tokens == 9000
    assert reply("", None).kind is OVERFLOW
    assert reply("", {"prompt_tokens": 9000, "completion_tokens": 50}).kind is OTHER
    assert reply("half", {"prompt_tokens": 9000, "completion_tokens": 50}).kind is OTHER
    chunk = {"choices": [{"finish_reason": "length", "delta": {}}]}
    assert success_overflow(chunk, in_stream=True) is None


@pytest.mark.parametrize(
    ("reason", "has_output", "completion", "prompt", "window", "expected"),
    [
        ("model_context_window_exceeded", True, 5, 10, 9000, True),
        ("length", False, 0, 8910, 9000, True),
        ("length", False, 0, 8909, 9000, False),
        ("length", False, None, None, 9000, True),
        ("length", False, 0, 10, None, True),
        ("length", True, 0, 9000, 9000, False),
        ("length", False, 1, 9000, 9000, False),
        ("stop", False, 0, 9000, 9000, False),
        (None, False, None, None, None, False),
    ],
)
def test_a_finish_reason_is_judged_with_what_is_known(
    reason: str | None,
    has_output: bool,
    completion: int | None,
    prompt: int | None,
    window: int | None,
    expected: bool,
) -> None:
    judged = finish_reason_overflow(
        reason,
        has_output=has_output,
        completion_tokens=completion,
        prompt_tokens=prompt,
        window_tokens=window,
    )
    assert judged is expected


def test_text_that_the_client_sent_is_no_sign() -> None:
    """A validation error that quotes the request says nothing about its size."""
    sent = "the log reads: this model's maximum context length is 9000 tokens, prompt is too long"
    body = json.dumps({"error": {"message": f"Unexpected role in message: '{sent}'"}}).encode()
    assert classify(400, body).kind is OVERFLOW
    assert classify(400, body, request_texts=lambda: [sent]).kind is OTHER
    assert classify(400, body, request_texts=lambda: ["something else"]).kind is OVERFLOW


def test_a_conversation_about_overflows_can_still_overflow() -> None:
    """An error that is nothing but what the client once quoted is the provider's own."""
    earlier = "prompt is too long: 205001 tokens > 200000 maximum, shorten it and send it again"
    now = earlier.replace("205001", "207777")
    refusal = classify(400, json.dumps({"error": now}).encode(), request_texts=lambda: [earlier])
    assert numbers(refusal) == (200000, 207777, None)


def test_the_request_is_read_only_when_something_matched() -> None:
    reads: list[str] = []

    def texts() -> list[str]:
        reads.append("read")
        return []

    assert classify(400, b'{"error": "no such model"}', request_texts=texts).kind is OTHER
    assert not reads
    assert classify(400, b'{"error": "prompt is too long"}', request_texts=texts).kind is OVERFLOW
    assert reads


@given(st.integers(100, 599), st.binary(max_size=300), st.booleans())
def test_nothing_raises_on_any_bytes(status: int, body: bytes, in_stream: bool) -> None:
    assert classify(status, body, in_stream=in_stream, request_texts=lambda: ["a"]).kind


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["error", "message", "code", "type", "choices", "usage", "delta", "detail"]
            )
            | st.text(max_size=8),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.sampled_from([200, 400, 413, 500]), json_values, st.booleans())
def test_nothing_raises_on_any_json(status: int, value: Any, in_stream: bool) -> None:
    body = json.dumps(value).encode()
    assert classify(status, body, in_stream=in_stream, request_texts=lambda: ["a"]).kind


@given(st.integers(1, 10**30), st.integers(1, 10**30))
def test_numbers_of_any_length_are_taken_or_left(prompt: int, window: int) -> None:
    refusal = said(f"prompt is too long: {prompt} tokens > {window} maximum")
    assert refusal.window_tokens in (window, None)
    assert refusal.prompt_tokens in (prompt, None)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"error":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"error": {"code": ' + b"9" * 10_000 + b"}}",
        json.dumps({"error": '{"message": "' * 50_000}).encode(),
        json.dumps({"error": "\ud800" * 10}).encode(),
    ],
)
def test_hostile_shapes_are_other(body: bytes) -> None:
    assert classify(400, body).kind is OTHER


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(["prompt ", "max ", "image ", "(", "1 ", "<a ", "not the ", "超过", "{", "\\"])
)
def test_what_lies_beyond_the_scanned_part_changes_nothing(filler: str) -> None:
    """The bound on the scan, seen from outside: a longer middle gives the same answer."""
    answers = {
        said("x: " + filler * (size // len(filler))) for size in (40_000, 400_000, 4_000_000)
    }
    assert len(answers) == 1


def test_the_reason_after_a_long_echo_is_still_read() -> None:
    assert said("bad request " + "zz " * 50_000 + "... the prompt is too long").kind is OVERFLOW


@needs_corpus
def test_the_corpus_is_classified() -> None:
    score = overflow_holdout.score(hold_out=False)
    assert score.kinds_right >= 0.99, score.wrong_kind
    assert not score.false_overflow
    assert not score.wrong_numbers


@needs_corpus
def test_the_table_carries_over_to_a_provider_without_rows() -> None:
    score = overflow_holdout.score(hold_out=True)
    assert score.all_right >= 0.9, score.wrong_kind
    assert not score.false_overflow


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


@needs_corpus
def test_a_quoted_corpus_text_is_no_sign() -> None:
    """A sentence that a provider once said, quoted back in another error, decides nothing."""
    for row in overflow_holdout.rows():
        for text in _texts(row["body"]):
            if len(text) < 60 or "{" in text or row["kind"] != "context_overflow":
                continue
            message = f"Field required; the value that was given for this field reads '{text}'"
            body = json.dumps({"error": {"message": message}}).encode()
            refusal = classify(400, body, request_texts=lambda text=text: [text])  # type: ignore[misc]
            assert refusal.kind is OTHER, text
