"""What is accepted as a summary and what is refused, with the cap kept after the answer."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.frame import PREAMBLE
from proxy.core.summaries import (
    Accepted,
    RefusalReason,
    Refused,
    accept,
    completion_of,
    cut_at_line_end,
    is_written_call,
    without_thoughts,
)


def words(text: str) -> int:
    return len(text.split())


def reply(content: Any, *, finish: str | None = "stop", **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **fields}
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}


def judged(answer: dict[str, Any], cap: int = 100, price: int | None = 1000) -> Accepted | Refused:
    return accept(answer, cap_tokens=cap, range_tokens=price, count=words)


def refused(answer: dict[str, Any], **options: Any) -> RefusalReason | None:
    verdict = judged(answer, **options)
    return verdict.reason if isinstance(verdict, Refused) else None


def test_text_is_accepted_as_it_is() -> None:
    assert judged(reply("## Goal\n\nPort it.\n")) == Accepted("## Goal\n\nPort it.")
    parts = [{"type": "text", "text": "a "}, {"type": "thinking", "text": "hm"}, 3, {"text": "b"}]
    assert judged(reply(parts)) == Accepted("a b")
    assert judged({"choices": [{"delta": {"content": "a"}}]}) == Accepted("a")
    assert judged({"choices": [{"text": "a"}]}) == Accepted("a")


@pytest.mark.parametrize("content", ["", "   ", "\n\t\u3000", None, [], 7])
def test_r074_nothing_is_no_summary(content: Any) -> None:
    """R074: blank is a failure, never an empty summary."""
    assert refused(reply(content)) is RefusalReason.BLANK


@pytest.mark.parametrize(
    "answer", [{}, {"choices": []}, {"choices": None}, {"choices": "x"}, {"choices": [1]}]
)
def test_r074_no_choices_is_no_summary(answer: dict[str, Any]) -> None:
    assert refused(answer) is RefusalReason.NO_CHOICES


@pytest.mark.parametrize(
    "content",
    [
        "<think>The user wants a summary.</think>",
        "<think>never closed, goes on",
        "  <thinking>\nx\n</thinking>\n<reasoning>y",
        "plan\n</think>\n",
        "<|channel|>analysis<|message|>x<|end|><|channel|>final<|message|><|return|>",
    ],
)
def test_r065_only_reasoning_is_no_summary(content: str) -> None:
    assert refused(reply(content)) is RefusalReason.ONLY_REASONING


def test_r065_reasoning_in_a_field_of_its_own_is_no_summary() -> None:
    assert refused(reply(None, reasoning_content="hm")) is RefusalReason.ONLY_REASONING


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<think>a\nb</think>\n\nThe text", "The text"),
        ("<THINK>a</think>One\n<think>b</think>two", "One\ntwo"),
        ("thoughts without a start\n</think>\n\nThe text", "The text"),
        ("The parser drops <think> blocks", "The parser drops <think> blocks"),
        ("It strips `</think>` too", "It strips `</think>` too"),
        ("<summary>\nThe text\n</summary>", "The text"),
        ("<|channel|>final<|message|>The text<|return|>", "The text"),
        (f"{PREAMBLE}\n===== SUMMARY OF THE EARLIER CONVERSATION =====\nT\n===== END =====", "T"),
    ],
)
def test_reasoning_and_wrapping_are_taken_out(content: str, text: str) -> None:
    assert without_thoughts(content)[0] == text


@pytest.mark.parametrize(
    "content",
    [
        '<tool_call>{"name": "read", "arguments": {}}</tool_call>',
        "Let me look first.\n<function=read>\n<parameter=path>a</parameter></function>",
        '```json\n{"name": "read", "arguments": {"path": "a"}}\n```',
        '{"name": "read", "parameters": {}}',
        '[{"function": {"name": "read", "arguments": "{}"}}]',
        '{"tool_calls": []}',
        "<｜tool▁calls▁begin｜>read",
        '[TOOL_CALLS] [{"name": "x"}]',
        "```\nx\n```\n<tool_call>",
    ],
)
def test_r065_a_call_written_as_text_is_no_summary(content: str) -> None:
    """R065."""
    assert refused(reply(content)) is RefusalReason.TOOL_CALLS


def test_r063_a_call_is_no_summary_even_beside_text() -> None:
    """R063."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert refused(reply("text", tool_calls=[call])) is RefusalReason.TOOL_CALLS
    assert refused(reply("text", function_call={"name": "f"})) is RefusalReason.TOOL_CALLS
    assert refused(reply("text", tool_calls=[], function_call=None)) is None


@pytest.mark.parametrize(
    "text",
    [
        "The template writes `<tool_call>` marks.",
        "x" * 500 + "\n<tool_call>",
        '{"goal": "a", "done": []}',
        "{not json",
        "[]",
        "[1]",
        "```json\n{}\n```",
    ],
)
def test_a_summary_may_speak_of_calls(text: str) -> None:
    assert not is_written_call(text)


def test_a_stop_by_length_is_no_summary() -> None:
    assert judged(reply("half a", finish="length")) == Refused(RefusalReason.CUT_SHORT)


@pytest.mark.parametrize(
    "answer",
    [
        reply("<think>long", finish="length"),
        reply(None, finish="length", reasoning_content="long"),
        {
            **reply("", finish="length"),
            "usage": {"completion_tokens_details": {"reasoning_tokens": 99}},
        },
    ],
)
def test_reasoning_that_ate_the_cap_is_told_apart(answer: dict[str, Any]) -> None:
    assert judged(answer) == Refused(RefusalReason.CUT_SHORT, reasoning_ate_it=True)


def test_a_filtered_answer_is_no_summary() -> None:
    assert refused(reply("part", finish="content_filter")) is RefusalReason.FILTERED


def test_r073_a_summary_must_cost_less_than_its_range() -> None:
    """R073."""
    assert refused(reply("one two three"), price=3) is RefusalReason.NOT_SMALLER
    assert refused(reply("one two three"), price=4) is None
    assert refused(reply("one two three"), price=None) is None


def test_r077_a_summary_over_its_cap_is_cut_at_a_line_end() -> None:
    """R077."""
    text = "\n".join(f"line {i} of it" for i in range(100))
    verdict = judged(reply(text), cap=21, price=300)
    assert verdict == Accepted("\n".join(text.split("\n")[:5]), was_cut=True)


def test_one_long_line_is_cut_inside() -> None:
    assert cut_at_line_end("w " * 50, 3, words) == "w w w"
    assert cut_at_line_end("\nw w w w", 2, words) == "w w"


@given(st.text(alphabet="ab \n", max_size=200), st.integers(0, 50))
def test_the_cap_holds_after_the_cut(text: str, cap: int) -> None:
    assert words(cut_at_line_end(text, cap, words)) <= cap


@given(st.text(alphabet="<>/think \n|`{}[]", max_size=80))
def test_any_answer_is_judged(text: str) -> None:
    assert judged(reply(text)) is not None


def test_a_body_that_is_no_completion_is_none() -> None:
    for body in (b"", b"<html>", b"[1]", b"data: [DONE]\n\n", b"[" * 100_000):
        assert completion_of(body) is None
    assert completion_of(b'{"a":1}') == {"a": 1}


def test_a_reply_streamed_unasked_is_put_together() -> None:
    body = (
        b': hi\n\ndata: {"choices":[{"delta":{"role":"assistant","content":"The "}}]}\n\n'
        b'data: {"choices":[{"delta":{"role":"assistant","content":"text","tool_calls":null}}]}\n\n'
        b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
        b'data: {"choices":[],"usage":{"completion_tokens":2}}\n\ndata: [DONE]\n\n'
    )
    whole = completion_of(body)
    assert whole is not None
    assert whole["usage"] == {"completion_tokens": 2}
    assert judged(dict(whole)) == Accepted("The text")
    cut = completion_of(b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"length"}]}')
    assert cut is not None
    assert refused(dict(cut)) is RefusalReason.CUT_SHORT
