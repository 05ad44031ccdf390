"""What is counted of a message, and where a long text is cut; tokens themselves: `test_meter`."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.counting import (
    CALL_TOKENS,
    counted,
    estimated_tokens,
    json_text,
    pieces_of,
)


def texts(message: dict[str, Any]) -> list[str]:
    return sorted(text for text in counted(message).texts() if text)


class TestCounted:
    def test_a_plain_message_costs_four_marks(self) -> None:
        of = counted({"role": "user", "content": "hello"})
        assert (of.content, of.mark_tokens, of.attachment_tokens) == (("hello",), 4, 0)

    def test_a_string_and_one_text_part_are_the_same(self) -> None:
        assert counted({"role": "user", "content": "hello"}) == counted(
            {"role": "user", "content": [{"type": "text", "text": "hello"}]}
        )

    def test_name_calls_refusal_and_arguments_count(self) -> None:
        call = {
            "id": "c1",
            "type": "function",
            "function": {"name": "find", "arguments": '{"q":1}'},
        }
        of = counted(
            {
                "role": "assistant",
                "name": "bo",
                "refusal": "no",
                "content": None,
                "tool_calls": [call],
            }
        )
        assert (of.content, of.name, of.calls) == (("no",), "bo", ("find", '{"q":1}'))
        assert of.mark_tokens == 4 + 1 + CALL_TOKENS

    def test_a_legacy_call_counts_like_a_call(self) -> None:
        function = {"name": "find", "arguments": "{}"}
        legacy = counted({"role": "assistant", "function_call": function})
        assert legacy.calls == ("find", "{}")
        assert legacy.mark_tokens == 4 + CALL_TOKENS

    def test_arguments_sent_as_an_object_count_as_their_json(self) -> None:
        call = {"function": {"name": "find", "arguments": {"q": "cats"}}}
        of = counted({"role": "assistant", "tool_calls": [call]})
        assert of.calls == ("find", '{"q":"cats"}')

    def test_a_custom_call_counts_its_input(self) -> None:
        call = {"type": "custom", "custom": {"name": "run", "input": "ls -l"}}
        assert counted({"role": "assistant", "tool_calls": [call]}).calls == ("run", "ls -l")

    def test_reasoning_repeated_in_several_fields_counts_once(self) -> None:
        of = counted(
            {
                "role": "assistant",
                "content": "42",
                "reasoning": "six by seven",
                "reasoning_details": [{"type": "reasoning.text", "text": "six by seven"}],
            }
        )
        assert of.reasoning == ("six by seven",)

    def test_a_reasoning_field_stands_before_the_thinking_among_the_parts(self) -> None:
        part = {"type": "thinking", "thinking": "first of the parts"}
        of = counted({"role": "assistant", "reasoning": "the field", "content": [part]})
        assert of.reasoning == ("the field", "first of the parts")

    def test_a_thinking_part_is_reasoning_and_its_signature_is_not_read(self) -> None:
        part = {"type": "thinking", "thinking": "hm", "signature": "x" * 4000}
        of = counted({"role": "assistant", "content": [part]})
        assert (of.reasoning, of.content) == (("hm",), ())

    def test_an_image_is_no_text(self) -> None:
        of = counted(
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what is this"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                    {"type": "image", "image": "https://example.org/a.png"},
                ],
            }
        )
        assert of.content == ("what is this",)
        assert len(of.images) == 2

    def test_audio_and_files_have_a_price_and_no_text(self) -> None:
        of = counted(
            {
                "role": "user",
                "content": [
                    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                    {"type": "file", "file": {"file_id": "file-1", "filename": "a.pdf"}},
                ],
            }
        )
        assert of.content == ()
        assert of.attachment_tokens > 3000

    def test_the_texts_of_a_part_of_unknown_type_count(self) -> None:
        part = {
            "type": "tool_result",
            "tool_use_id": "t",
            "content": [{"type": "text", "text": "x"}],
        }
        assert texts({"role": "user", "content": [part]}) == ["x"]

    @pytest.mark.parametrize(
        "message",
        [
            {},
            {"role": 7, "content": 7},
            {"role": "user", "content": [None, 3, [], {}, {"type": 4}]},
            {"role": "assistant", "tool_calls": [{}, None, {"function": 3}, {"function": {}}]},
            {"role": "assistant", "tool_calls": "x", "function_call": []},
            {"content": {"text": "a mapping"}},
        ],
    )
    def test_malformed_messages_are_counted_as_far_as_they_hold_text(
        self, message: dict[str, Any]
    ) -> None:
        of = counted(message)
        assert of.mark_tokens >= 3
        assert all(isinstance(text, str) for text in of.texts())

    def test_what_is_not_text_in_a_part_of_unknown_type_costs_nothing(self) -> None:
        part = {"type": "odd", "x": [1, None, True, "t"], "y": "data:image/png;base64,AAAA"}
        assert texts({"role": "user", "content": [part]}) == ["t"]

    def test_empty_calls_cost_nothing_so_that_bytes_stay_a_bound(self) -> None:
        message = {"role": "assistant", "tool_calls": [{}] * 100}
        assert counted(message).mark_tokens == 4

    def test_depth_is_the_clients_and_does_no_harm(self) -> None:
        part: Any = "deep"
        for _ in range(100_000):
            part = [part]
        assert texts({"role": "user", "content": [{"type": "odd", "x": part}]}) == ["deep"]


class TestJsonText:
    def test_is_compact_and_keeps_other_scripts(self) -> None:
        assert json_text({"a": ["é", 1]}) == '{"a":["é",1]}'

    def test_of_a_value_too_deep_for_json_is_its_texts(self) -> None:
        value: Any = "deep"
        for _ in range(100_000):
            value = [value]
        assert json_text(value) == "deep"


class TestPieces:
    @given(st.text(), st.integers(2, 40))
    def test_together_are_the_text(self, text: str, max_chars: int) -> None:
        pieces = list(pieces_of(text, max_chars))
        assert "".join(pieces) == text
        assert all(0 < len(piece) <= max_chars for piece in pieces)

    def test_are_cut_before_a_space_where_there_is_one(self) -> None:
        assert list(pieces_of("aaaa bbbb cccc dddd", 12)) == ["aaaa bbbb", " cccc dddd"]

    def test_are_cut_after_a_line_end(self) -> None:
        assert list(pieces_of("1\n2\n3\n4\n", 5)) == ["1\n2\n3", "\n4\n"]

    def test_of_one_endless_run_are_cut_at_the_limit(self) -> None:
        assert [len(piece) for piece in pieces_of("a" * 20_000)] == [8192, 8192, 3616]

    def test_of_no_text_are_none(self) -> None:
        assert list(pieces_of("")) == []


def test_an_estimate_is_half_the_bytes_rounded_up() -> None:
    assert [estimated_tokens(text) for text in ("", "abc", "é" * 10, "\ud83d")] == [0, 2, 10, 1]


def test_json_of_a_message_is_longer_than_its_marks() -> None:
    """The claim behind the byte bound, for the least a message, a name and a call can be."""
    for message in (
        {},
        {"role": "x"},
        {"name": "x"},
        {"role": "assistant", "function_call": {"name": "x"}},
        {"role": "assistant", "tool_calls": [{"function": {"name": "x"}}]},
    ):
        of = counted(message)
        text_bytes = sum(len(text) for text in of.texts())
        separator = 1
        assert of.mark_tokens + text_bytes <= len(json.dumps(message)) + separator
