"""Every question has an answer for every message, and asking changes nothing."""

import copy
from typing import Any

import pytest
from hypothesis import given

from proxy.core.counting import counted
from proxy.core.messages import (
    Message,
    ToolCall,
    has_media,
    head_length,
    is_real_user,
    is_result,
    part_text,
    parts_of,
    reasoning_of,
    role_of,
    text_of,
    texts_of,
    tool_calls_of,
)
from tests.strategies import (
    PIXEL,
    any_histories,
    assistant,
    calls,
    function_call,
    function_result,
    malformed_messages,
    result,
    single_messages,
    user,
)

IMAGE = {"type": "image_url", "image_url": {"url": PIXEL}}


@given(any_histories)
def test_no_question_raises_or_changes_a_message(history: list[dict[str, Any]]) -> None:
    before = copy.deepcopy(history)
    for message in history:
        assert isinstance(role_of(message), str)
        assert all(isinstance(text, str) and text for text in texts_of(message))
        assert isinstance(text_of(message), str)
        assert isinstance(reasoning_of(message), str)
        assert all(isinstance(call, ToolCall) for call in tool_calls_of(message))
        assert isinstance(is_result(message), bool)
        assert isinstance(is_real_user(message), bool)
        assert len(parts_of(message)) >= len(list(texts_of(message)))
    assert 0 <= head_length(history) <= len(history)
    assert history == before


def test_the_head_is_the_leading_run_of_system_and_developer_messages() -> None:
    system, developer = {"role": "system"}, {"role": "developer"}
    assert head_length([]) == 0
    assert head_length([user(), system]) == 0
    assert head_length([system, developer, system, user(), system]) == 3
    assert head_length([system, system]) == 2
    assert head_length([system, {}, system]) == 1


def test_a_string_is_one_text_part_and_null_none() -> None:
    assert parts_of(user("hi")) == [{"type": "text", "text": "hi"}]
    assert parts_of(user("")) == parts_of(user(None)) == parts_of({"role": "user"}) == []
    assert parts_of(user(7)) == []
    assert parts_of(user([IMAGE])) == [IMAGE]


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("bare", "bare"),
        ({"type": "text", "text": "a"}, "a"),
        ({"type": "input_text", "text": "b"}, "b"),
        ({"type": "output_text", "text": "c"}, "c"),
        ({"type": "refusal", "refusal": "no"}, "no"),
        ({"type": "text", "text": ""}, ""),
        (IMAGE, None),
        ({"type": "input_image", "image_url": PIXEL, "text": "caption"}, None),
        ({"type": "text"}, None),
        ({"type": "text", "text": 3}, None),
        (None, None),
        (3, None),
        (["a"], None),
    ],
)
def test_the_text_of_a_part(part: Any, text: str | None) -> None:
    assert part_text(part) == text


def test_texts_stand_in_order_and_other_parts_are_passed_over() -> None:
    message = user([{"type": "text", "text": "a"}, IMAGE, {"type": "text", "text": ""}, "b"])
    assert list(texts_of(message)) == ["a", "b"]
    assert text_of(message) == "a\nb"
    assert text_of(user("plain")) == "plain"
    assert text_of(user(None)) == ""


def test_reasoning_is_read_from_every_vendor_field() -> None:
    message = assistant(
        reasoning_content="one",
        reasoning="two",
        reasoning_details=[{"text": "three"}, {"data": "opaque"}, "x"],
        thinking=None,
    )
    assert reasoning_of(message) == "one\ntwo\nthree"
    assert reasoning_of(assistant()) == ""


def test_calls_are_listed_in_order_the_legacy_one_last() -> None:
    both: Message = {**calls("a", None, name="read", arguments="[1]"), "function_call": {}}
    assert tool_calls_of(both) == (
        ToolCall("a", "read", "[1]"),
        ToolCall(None, "read", "[1]"),
        ToolCall(None, "", "", legacy=True),
    )
    assert tool_calls_of(function_call("run", "{}")) == (ToolCall(None, "run", "{}", legacy=True),)


def test_only_assistant_messages_make_calls() -> None:
    for role in ("user", "tool", "system", ""):
        assert tool_calls_of({**calls("a"), "role": role}) == ()


def test_a_custom_tool_is_a_call_with_its_input_as_arguments() -> None:
    message = assistant(tool_calls=[{"id": "a", "custom": {"name": "shell", "input": "ls"}}])
    assert tool_calls_of(message) == (ToolCall("a", "shell", "ls"),)


def test_arguments_that_are_no_string_are_not_lost() -> None:
    """Some servers take an object; what it holds must be counted and fingerprinted."""
    message = assistant(tool_calls=[{"id": "a", "function": {"name": "f", "arguments": {"b": 1}}}])
    (call,) = tool_calls_of(message)
    assert call.arguments == '{"b": 1}'


def test_malformed_calls_are_passed_over_or_read_as_far_as_they_go() -> None:
    assert tool_calls_of(assistant(tool_calls="none")) == ()
    assert tool_calls_of(assistant(tool_calls=None, function_call="auto")) == ()
    message = assistant(tool_calls=[None, "x", {"id": 5, "function": None}])
    assert tool_calls_of(message) == (ToolCall(None, "", ""),)


def test_results_are_tool_and_function_messages() -> None:
    assert is_result(result("c"))
    assert is_result(function_result())
    assert not is_result(user())
    assert not is_result({"role": ["tool"]})


def test_a_real_user_message_has_something_in_it() -> None:
    assert is_real_user(user("go"))
    assert is_real_user(user([IMAGE]))
    assert is_real_user(user([{"type": "text", "text": " "}, {"type": "text", "text": "x"}]))
    for content in ("", " \n", None, [], [{"type": "text", "text": " "}], 7):
        assert not is_real_user(user(content))
    assert not is_real_user(assistant("go"))


@given(single_messages | malformed_messages)
def test_what_has_no_media_has_no_image_and_no_attachment(message: dict[str, Any]) -> None:
    of = counted(message)
    assert has_media(message) or not (of.images or of.attachment_tokens)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("text", False),
        (None, False),
        ([{"type": "text", "text": "a"}, "b", None], False),
        ([{"type": "thinking", "thinking": "t"}], False),
        ([{"type": "image_url"}], True),
        ([{"type": "text", "text": "a"}, {"type": "tool_result", "content": []}], True),
        ([{"type": ["odd"]}], True),
        ([{}], True),
    ],
)
def test_any_part_but_text_may_be_media(content: Any, expected: bool) -> None:
    assert has_media(user(content)) is expected
