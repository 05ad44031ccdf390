"""What the beginning of a reply says. Row R106: usage with choices empty, null or missing."""

import json
from typing import Any

import pytest

from proxy.core.sse import Event
from proxy.core.verdicts import (
    FirstEvents,
    Verdict,
    carries_output,
    decode_json,
    event_verdict,
    finish_reason_of,
    is_evidence,
    looks_like_error,
    usage_of,
)

USAGE = {"prompt_tokens": 5, "completion_tokens": 2}
NO_OUTPUT = {"prompt_tokens": 5, "completion_tokens": 0}


def chunk(delta: Any = None, finish: str | None = None, **extra: Any) -> Event:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return Event(json.dumps({"choices": [choice], **extra}).encode())


def value_event(value: Any, event: bytes = b"") -> Event:
    return Event(json.dumps(value).encode(), event)


GOOD = [
    chunk({"content": "x"}),
    chunk({"content": [{"type": "text", "text": "x"}]}),
    chunk({"reasoning_content": "x"}),
    chunk({"reasoning": "x"}),
    chunk({"reasoning_details": [{}]}),
    chunk({"tool_calls": [{"index": 0}]}),
    chunk({"function_call": {"name": "f"}}),
    chunk({"refusal": "no"}),
    chunk({"audio": {"id": "a"}}),
    chunk({}, "stop"),
    chunk({}, "tool_calls"),
    chunk({"content": "x"}, "length"),
    chunk({}, "length", usage=USAGE),
    chunk({"content": "x"}, "model_context_window_exceeded"),
    value_event({"usage": USAGE, "choices": []}),
    value_event({"usage": USAGE, "choices": None}),
    value_event({"usage": USAGE}),
    value_event({"choices": [{"text": "x"}]}),
    value_event({"choices": [{"message": {"content": "x"}}]}),
    value_event({"choices": [{"index": 0, "usage": USAGE}]}),
    Event(b"[DONE]"),
    Event(b"", oversized=True),
]

UNDECIDED = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"role": "assistant", "content": None}),
    chunk({}),
    chunk(None),
    chunk({"content": ""}, usage=None),
    value_event({"choices": [], "usage": None}),
    value_event({"choices": None, "usage": {}}),
    value_event({"prompt_filter_results": [], "choices": []}),
    value_event({"choices": [None, 3]}),
    value_event({"progress": 0.5}, b"x.progress"),
    value_event({"error": None, "choices": [{"delta": {}}]}),
    value_event({"message": "thinking"}),
    value_event({"base_resp": {"status_code": 0}, "choices": [{"delta": {}}]}),
    value_event([1, 2]),
    value_event("text"),
    value_event(None),
    Event(b"not json"),
    Event(b"[" * 100000),
    Event(b""),
]

ERRORS = [
    value_event({"error": {"message": "m"}}),
    value_event({"error": "m"}),
    value_event([{"error": {"code": 400}}]),
    value_event({"errors": [{"message": "m"}]}),
    value_event({"type": "error", "error": {}}),
    value_event({"object": "error", "message": "m"}),
    value_event({"message": "m", "type": "t", "param": None, "code": None}),
    value_event({"error_type": "t", "error_message": "m"}),
    value_event({"error_code": 18, "error_msg": "m"}),
    value_event({"base_resp": {"status_code": 2013, "status_msg": "m"}}),
    value_event({"Response": {"Error": {"Code": "c"}}}),
    value_event({"detail": "m"}),
    value_event({"choices": [{"delta": {"content": ""}, "finish_reason": "error"}]}),
    value_event({"choices": [{"delta": {"content": ""}, "error": {"code": 502}}]}),
    value_event({"choices": [{"delta": {"content": ""}}], "error": {"message": "m"}}),
    value_event({"anything": 1}, b"error"),
    Event(b"plain text", b"error"),
    chunk({}, "model_context_window_exceeded"),
    chunk({"content": ""}, "model_context_window_exceeded", usage=NO_OUTPUT),
    chunk({"content": ""}, "length", usage=NO_OUTPUT),
    chunk({"content": ""}, "length", usage={"prompt_tokens": 5}),
]


def verdict_on(event: Event) -> Verdict:
    return event_verdict(event, decode_json(event.data))


@pytest.mark.parametrize("event", GOOD)
def test_known_good(event: Event) -> None:
    assert verdict_on(event) is Verdict.GOOD


@pytest.mark.parametrize("event", UNDECIDED)
def test_not_yet_decided(event: Event) -> None:
    assert verdict_on(event) is Verdict.UNDECIDED


@pytest.mark.parametrize("event", ERRORS)
def test_an_error(event: Event) -> None:
    assert verdict_on(event) is Verdict.ERROR
    first = FirstEvents()
    assert first.feed(event, decode_json(event.data)) is Verdict.ERROR
    assert first.evidence == event.data


def test_a_length_finish_without_output_is_held() -> None:
    assert verdict_on(chunk({}, "length")) is Verdict.HELD


def read(*events: Event, ended: bool = False) -> FirstEvents:
    first = FirstEvents()
    for event in events:
        first.feed(event, decode_json(event.data))
    if ended:
        first.end()
    return first


class TestHeldLength:
    """`length` without output means an overflow only if nothing was made."""

    def test_usage_without_output_makes_it_evidence_with_finish_and_usage(self) -> None:
        first = read(chunk({}, "length"), value_event({"choices": [], "usage": NO_OUTPUT}))
        assert first.verdict is Verdict.ERROR
        evidence = json.loads(first.evidence)
        assert evidence["usage"] == NO_OUTPUT
        assert evidence["choices"][0]["finish_reason"] == "length"

    def test_usage_with_output_makes_it_good(self) -> None:
        first = read(chunk({}, "length"), value_event({"choices": [], "usage": USAGE}))
        assert first.verdict is Verdict.GOOD

    def test_the_end_without_usage_makes_it_evidence(self) -> None:
        assert read(chunk({}, "length"), ended=True).verdict is Verdict.ERROR
        assert read(chunk({}, "length"), Event(b"[DONE]")).verdict is Verdict.ERROR

    def test_what_tells_nothing_leaves_it_held(self) -> None:
        first = read(chunk({}, "length"), chunk({}))
        assert first.verdict is Verdict.HELD
        assert not first.decided

    def test_output_after_it_makes_it_good(self) -> None:
        first = read(chunk({}, "length"), chunk({"content": "x"}))
        assert first.verdict is Verdict.GOOD

    def test_an_error_after_it_is_the_evidence(self) -> None:
        error = value_event({"error": {"message": "m"}})
        first = read(chunk({}, "length"), error)
        assert first.verdict is Verdict.ERROR
        assert first.evidence == error.data


def test_the_first_decision_stays() -> None:
    first = read(chunk({"content": "x"}), value_event({"error": {"message": "m"}}), ended=True)
    assert first.verdict is Verdict.GOOD
    assert first.evidence == b""


def test_an_end_decides_nothing_by_itself() -> None:
    assert read(chunk({"role": "assistant"}), ended=True).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    "value",
    [
        {"error": {"message": "m"}, "choices": []},
        {"base_resp": {"status_code": 1004, "status_msg": "m"}, "choices": None},
        {"Response": {"Error": {"Code": "c", "Message": "m"}}},
        {"error_code": 336103, "error_msg": "m"},
        {
            "choices": [{"finish_reason": "model_context_window_exceeded", "message": {}}],
        },
        {
            "choices": [{"finish_reason": "length", "message": {"content": ""}}],
            "usage": NO_OUTPUT,
        },
    ],
)
def test_a_body_that_is_evidence(value: Any) -> None:
    assert is_evidence(value)


@pytest.mark.parametrize(
    "value",
    [
        {"choices": [{"finish_reason": "stop", "message": {"content": "x"}}], "usage": USAGE},
        {"choices": [{"finish_reason": "stop", "message": {"content": ""}}], "usage": NO_OUTPUT},
        {"choices": [{"finish_reason": "length", "message": {"content": ""}}], "usage": USAGE},
        {"choices": [{"finish_reason": "length", "message": {"content": "x"}}]},
        {"choices": [{"finish_reason": "length", "message": {"reasoning_content": "x"}}]},
        {"base_resp": {"status_code": 0}, "choices": [{"message": {"content": "x"}}]},
        {"error": None, "choices": [{"message": {"content": "x"}}]},
    ],
)
def test_a_body_that_is_an_answer(value: Any) -> None:
    assert not is_evidence(value)


@pytest.mark.parametrize("value", [None, 3, "x", [], [[]], {}, {"choices": 3}, {"usage": 3}])
def test_questions_have_an_answer_for_any_value(value: Any) -> None:
    assert usage_of(value) is None
    assert finish_reason_of(value) is None
    assert not carries_output(value)
    assert not looks_like_error(value)


def test_what_is_not_json_is_none() -> None:
    assert decode_json(b"\xff") is None
    assert decode_json(b"{") is None
