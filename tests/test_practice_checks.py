"""The practice provider refuses what OpenAI refuses, in its words."""

import json
from typing import Any

import pytest

from proxy.core.overflow import RefusalKind, classify
from proxy.practice_checks import (
    PracticeRefusal,
    check_pairing,
    check_request,
    check_window,
    output_limit,
)

USER = {"role": "user", "content": "hello"}


def calling(*ids: str) -> dict[str, Any]:
    calls = [{"id": id, "type": "function", "function": {"name": "f"}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": "42"}


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [USER, calling("a"), result("a")],
        [USER, calling("a", "b"), result("b"), result("a"), USER],
        [USER, calling("a"), result("a"), calling("a"), result("a")],
        [calling("a", "a"), result("a"), result("a")],
        [{"role": "assistant", "content": "hi", "tool_calls": []}, USER],
        [{"role": "assistant", "function_call": {"name": "f"}}, {"role": "function"}],
    ],
)
def test_answered_calls_are_accepted(messages: list[dict[str, Any]]) -> None:
    check_pairing(messages)


@pytest.mark.parametrize(
    ("messages", "param", "words"),
    [
        ([result("a")], "messages.[0].role", "must be a response to a preceeding message"),
        ([USER, calling("a"), result("b")], "messages.[2].role", "must be a response"),
        ([calling("a"), result("a"), result("a")], "messages.[2].role", "must be a response"),
        ([calling("a"), result("a"), USER, result("a")], "messages.[3].role", "must be a response"),
        ([USER, calling("a")], "messages.[1].role", "did not have response messages: a"),
        ([calling("a", "b"), result("a"), USER], "messages.[0].role", "response messages: b"),
        ([calling("a"), USER, result("a")], "messages.[0].role", "response messages: a"),
        ([calling("a"), calling("b"), result("b")], "messages.[0].role", "response messages: a"),
    ],
)
def test_parted_calls_and_results_are_refused(
    messages: list[dict[str, Any]], param: str, words: str
) -> None:
    with pytest.raises(PracticeRefusal, match=words.replace(".", r"\.")) as refused:
        check_pairing(messages)
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    ("request_", "param", "code"),
    [
        ([], None, None),
        ({"messages": [USER]}, None, None),
        ({"model": "m"}, "messages", None),
        ({"model": "m", "messages": {}}, "messages", None),
        ({"model": "m", "messages": []}, "messages", "empty_array"),
        ({"model": "m", "messages": ["x"]}, "messages[0]", None),
        ({"model": "m", "messages": [USER, {"role": "x"}]}, "messages[1].role", "invalid_value"),
        ({"model": "m", "messages": [{"role": []}]}, "messages[0].role", "invalid_value"),
        ({"model": "m", "messages": [{"role": "user"}]}, "messages[0].content", None),
        ({"model": "m", "messages": [{"role": "user", "content": 4}]}, "messages[0].content", None),
        ({"model": "m", "messages": [USER], "n": 2}, "n", None),
        ({"model": "m", "messages": [USER], "max_tokens": 1.5}, "max_tokens", "invalid_type"),
        (
            {"model": "m", "messages": [USER], "max_completion_tokens": 0},
            "max_completion_tokens",
            "integer_below_min_value",
        ),
    ],
)
def test_a_bad_request_is_refused_by_name(
    request_: Any, param: str | None, code: str | None
) -> None:
    with pytest.raises(PracticeRefusal) as refused:
        check_request(request_)
    error = refused.value.envelope()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert error["message"]


def test_a_good_request_passes() -> None:
    check_request({"model": "m", "messages": [USER], "n": 1, "max_tokens": 5})
    check_request({"model": "m", "messages": [{"role": "assistant", "refusal": "no"}, USER]})


def test_the_newer_name_of_the_output_limit_wins() -> None:
    assert output_limit({"max_completion_tokens": 7, "max_tokens": 9}) == 7
    assert output_limit({"max_tokens": 9}) == 9
    assert output_limit({}) is None


@pytest.mark.parametrize(
    ("prompt_tokens", "limit", "fits"),
    [(90, 10, True), (91, 10, False), (99, None, True), (100, None, False), (101, None, False)],
)
def test_prompt_and_answer_fit_together(prompt_tokens: int, limit: int | None, fits: bool) -> None:
    if fits:
        check_window(prompt_tokens, limit, 100)
        return
    with pytest.raises(PracticeRefusal) as refused:
        check_window(prompt_tokens, limit, 100)
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize("limit", [None, 1000])
def test_a_refusal_for_length_states_its_numbers_as_openai_does(limit: int | None) -> None:
    with pytest.raises(PracticeRefusal) as refused:
        check_window(7500, limit, 8000 if limit else 7000)
    read = classify(400, json.dumps(refused.value.envelope()).encode())
    assert read.kind is RefusalKind.CONTEXT_OVERFLOW
    assert read.prompt_tokens == 7500
    assert read.window_tokens == (8000 if limit else 7000)
    assert read.requested_output_tokens == limit
