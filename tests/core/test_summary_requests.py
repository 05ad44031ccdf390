"""What a summary call sends, and above all what it does not."""

import json
from typing import Any

import pytest

from proxy.core.summary_requests import (
    Cap,
    Prompts,
    cap_field,
    names_field,
    other_cap_field,
    replay_body,
    replay_text,
    roles_would_repeat,
    transcript_body,
    transcript_text,
)
from proxy.core.transcript import Block

PROMPTS = Prompts(
    instruction="Summarise in {max_words} words.\n",
    replay="Merge.\n\n{instruction}\n",
    transcript="Data:\n\n{transcript}\n\n{instruction}\n",
    merge="Data after a summary:\n\n{transcript}\n\nMerge.\n\n{instruction}\n",
)

CLIENT = {
    "stream": b"true",
    "model": b'"gpt-4o"',
    "messages": b"",
    "tools": b'[ {"type":"function", "n": 100000000000000000000000000001} ]',
    "tool_choice": b'"required"',
    "parallel_tool_calls": b"true",
    "temperature": b"0.2",
    "n": b"3",
    "stop": b'["x"]',
    "response_format": b'{"type":"json_object"}',
    "logprobs": b"true",
    "top_logprobs": b"3",
    "store": b"true",
    "metadata": b'{"a":"b"}',
    "user": b'"u1"',
    "stream_options": b'{"include_usage":true}',
    "prompt_cache_key": b'"k"',
    "max_tokens": b"200000",
    "reasoning_effort": b'"high"',
    "chat_template_kwargs": b'{"enable_thinking":false}',
}
MESSAGES = [b'{"role":"system", "content":"s"}', b'{ "role":"user","content":"\\ud83d" }']


CAP = Cap(500, "max_tokens")


def replayed(fields: dict[str, bytes], cap: Cap = CAP) -> tuple[bytes, Any]:
    body = replay_body(fields, MESSAGES, model="gpt-4o", final_text="Sum up", cap=cap)
    return body, json.loads(body)


def test_r063_r070_a_replay_sends_what_the_cache_needs_and_no_more() -> None:
    """R060, R063, R070: tools with tool_choice none, reasoning fields, its own cap."""
    body, sent = replayed(CLIENT)
    assert set(sent) == {
        "model",
        "messages",
        "tools",
        "tool_choice",
        "max_tokens",
        "reasoning_effort",
        "chat_template_kwargs",
    }
    assert sent["tool_choice"] == "none"
    assert sent["max_tokens"] == 500
    assert CLIENT["tools"] in body
    assert all(message in body for message in MESSAGES)
    assert sent["messages"][-1] == {"role": "user", "content": "Sum up"}


def test_a_replay_without_tools_says_nothing_of_tools() -> None:
    for raw in (b"null", b"[]", b" [] "):
        _, sent = replayed(
            {"model": b'"m"', "messages": b"", "tools": raw, "tool_choice": b'"auto"'}
        )
        assert set(sent) == {"model", "messages", "max_tokens"}


def test_legacy_functions_are_kept_and_not_to_be_called() -> None:
    _, sent = replayed(
        {"messages": b"", "functions": b'[{"name":"f"}]', "function_call": b'"auto"'}
    )
    assert sent["functions"] == [{"name": "f"}]
    assert sent["function_call"] == "none"
    assert sent["model"] == "gpt-4o"


def test_r061_the_cap_is_the_call_s_own_under_the_client_s_name() -> None:
    """R061: independent of the client's value."""
    assert cap_field(CLIENT) == "max_tokens"
    assert cap_field({"max_completion_tokens": b"9"}) == "max_completion_tokens"
    assert cap_field({"max_completion_tokens": b"null", "max_tokens": b"9"}) == "max_tokens"
    assert cap_field({}) == "max_tokens"
    assert other_cap_field("max_tokens") == "max_completion_tokens"
    _, sent = replayed({**CLIENT, "max_completion_tokens": b"7"}, Cap(500, "max_completion_tokens"))
    assert sent["max_completion_tokens"] == 500
    assert "max_tokens" not in sent


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"Unsupported parameter: 'max_tokens'", True),
        (b"use max_completion_tokens", False),
        (b"my_max_tokens", False),
        (b"max_tokens", True),
    ],
)
def test_a_refusal_names_the_very_field(body: bytes, named: bool) -> None:
    assert names_field(body, "max_tokens") is named


def test_r063_r064_a_transcript_is_one_message_of_data_with_the_instruction_last() -> None:
    """R060, R063, R064, R070: nothing of the client's fields."""
    text = transcript_text(PROMPTS, [Block("USER", "hi")], 500, earlier_summary=None)
    assert text == (
        "Data:\n\n===== USER =====\nhi\n===== END OF TRANSCRIPT =====\n\nSummarise in 300 words."
    )
    body = transcript_body(
        {**CLIENT, "provider": b'{"data_collection":"deny"}'},
        model="m",
        text=text,
        cap=Cap(500, "max_tokens"),
        same_upstream=True,
    )
    assert json.loads(body) == {
        "model": "m",
        "messages": [{"role": "user", "content": text}],
        "provider": {"data_collection": "deny"},
        "max_tokens": 500,
    }


def test_another_upstream_gets_no_routing() -> None:
    body = transcript_body(
        {"provider": b"{}"}, model="m", text="t", cap=Cap(5, "max_tokens"), same_upstream=False
    )
    assert set(json.loads(body)) == {"model", "messages", "max_tokens"}


def test_an_earlier_summary_is_data_to_be_merged() -> None:
    text = transcript_text(
        PROMPTS, [Block("USER", "{instruction} {transcript}")], 10, earlier_summary="===== x"
    )
    assert text.startswith(
        "Data after a summary:\n\n====== SUMMARY OF WHAT CAME BEFORE ======\n===== x\n====== USER"
    )
    assert "{instruction} {transcript}\n====== END" in text
    assert text.endswith("Merge.\n\nSummarise in 6 words.")


def test_a_replay_s_last_words_are_the_instruction() -> None:
    assert replay_text(PROMPTS, 1) == "Merge.\n\nSummarise in 1 words."


def test_lone_surrogates_are_sent_as_escapes() -> None:
    body = transcript_body(
        {}, model="m", text="\ud83d", cap=Cap(5, "max_tokens"), same_upstream=True
    )
    assert b"\\ud83d" in body


def test_whether_the_instruction_would_be_a_second_user_message_in_a_row() -> None:
    assert roles_would_repeat([{"role": "user", "content": "x"}])
    assert not roles_would_repeat([{"role": "assistant", "content": "x"}])
    assert not roles_would_repeat([])
