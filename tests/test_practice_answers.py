"""What the practice provider says is quoted from what it was sent, and a summary keeps its cap."""

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.frame import PREAMBLE
from proxy.core.transcript import blocks_of, render
from proxy.meter import Meter
from proxy.practice_answers import answer, sections_asked_for, summarise

COUNT: Callable[[str], int] = Meter().counter("gpt-4o")

INSTRUCTION = files("proxy").joinpath("prompts", "instruction.md").read_text()
SECTIONS = (
    "Request",
    "Decisions",
    "Exact details",
    "Done",
    "Not done",
    "In progress",
    "Next step",
    "Rules and preferences",
)

HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a coder. Use section 9."},
    {"role": "user", "content": "Move the parser to src/parse.py, please.\nNever touch setup.cfg."},
    {
        "role": "assistant",
        "content": "We decided to keep the old name because tests use it.",
        "tool_calls": [
            {"id": "1", "function": {"name": "move", "arguments": '{"to":"src/parse.py"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "moved 412 lines\n{\n}"},
    {"role": "assistant", "content": "I moved it and updated the imports. The docs are pending."},
    {"role": "user", "content": "Now the docs."},
]


FILLER = {"role": "assistant", "content": "And then we talked about the weather. " * 150}


def asked(history: list[dict[str, Any]], instruction: str = INSTRUCTION) -> list[dict[str, Any]]:
    return [*history, {"role": "user", "content": instruction}]


def sections_of(summary: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for block in summary.split("\n\n"):
        heading, *items = block.splitlines()
        found[heading.removeprefix("## ")] = [item.removeprefix("- ") for item in items]
    return found


class TestAnswer:
    def test_quotes_the_question_and_the_sizes(self) -> None:
        said = answer([{"role": "user", "content": "hi there"}], prompt_tokens=11, window_tokens=99)
        assert said == "Practice answer to: hi there\nI hold 1 messages, 11 of 99 tokens."

    def test_finds_the_earlier_line_that_has_most_words_in_common(self) -> None:
        messages = [
            {"role": "user", "content": "My dog is called Bruno.\nMy cats have other names."},
            {"role": "assistant", "content": "Noted."},
            {"role": "user", "content": "What is my dog called?"},
        ]
        said = answer(messages, prompt_tokens=1, window_tokens=2)
        assert said.endswith("The closest earlier line, from user: My dog is called Bruno.")

    def test_shortens_a_long_question(self) -> None:
        said = answer([{"role": "user", "content": "why " * 500}], prompt_tokens=1, window_tokens=2)
        assert len(said) < 400

    def test_is_an_answer_without_any_user_message(self) -> None:
        assert "(nothing)" in answer([], prompt_tokens=1, window_tokens=2)


class TestSections:
    def test_are_read_from_tidegates_own_instruction(self) -> None:
        assert sections_asked_for(asked(HISTORY)) == SECTIONS

    @pytest.mark.parametrize("name", ["transcript.md", "merge.md", "replay.md"])
    def test_are_read_around_a_transcript(self, name: str) -> None:
        prompt = files("proxy").joinpath("prompts", name).read_text()
        text = prompt.replace("{instruction}", INSTRUCTION).replace(
            "{transcript}", render(blocks_of(HISTORY))
        )
        assert sections_asked_for([{"role": "user", "content": text}]) == SECTIONS

    def test_may_be_headings(self) -> None:
        instruction = "Summarise this.\n## Goal\n## State\n# Next steps #\n"
        assert sections_asked_for(asked([], instruction)) == ("Goal", "State", "Next steps")

    @pytest.mark.parametrize(
        "messages",
        [
            [],
            HISTORY,
            asked([], "Please summarise our talk."),
            asked([], "1. one\n2. two things\n3. three things\n"),
            [*asked([]), {"role": "assistant", "content": "ok"}],
        ],
    )
    def test_are_none_when_no_summary_is_asked_for(self, messages: list[dict[str, Any]]) -> None:
        assert sections_asked_for(messages) == ()


class TestSummary:
    def test_has_every_section_filled_from_the_conversation(self) -> None:
        history = [FILLER, *HISTORY]
        summary = summarise(asked(history), SECTIONS, cap_tokens=900, count=COUNT)
        found = sections_of(summary)
        assert tuple(found) == SECTIONS
        assert found["Request"][0] == '"Move the parser to src/parse.py, please."'
        assert found["Rules and preferences"] == ["Never touch setup.cfg."]
        assert found["Next step"] == ["Now the docs."]
        assert "because tests use it" in found["Decisions"][0]
        assert "src/parse.py" in " ".join(found["Exact details"])
        assert "pending" in found["Not done"][0]
        assert "updated the imports" in found["Done"][0]
        assert "section 9" not in summary

    def test_of_a_transcript_is_that_of_its_messages(self) -> None:
        history = [FILLER, *HISTORY[1:]]
        text = f"{render(blocks_of(history))}\n\n{INSTRUCTION}"
        summary = summarise(
            [{"role": "user", "content": text}], SECTIONS, cap_tokens=900, count=COUNT
        )
        found = sections_of(summary)
        assert found["Request"][0] == '"Move the parser to src/parse.py, please."'
        assert found["Next step"] == ["Now the docs."]

    def test_merges_an_earlier_one(self) -> None:
        frame = (
            f"{PREAMBLE}\n\n===== SUMMARY OF THE EARLIER CONVERSATION =====\n"
            "## Exact details\n- the port is 8443\n\n"
            "## Next step\n- paint it\n\n## Done\n- (none)\n"
            "===== END ====="
        )
        history = [{"role": "user", "content": frame}, FILLER, *HISTORY[1:]]
        found = sections_of(summarise(asked(history), SECTIONS, cap_tokens=900, count=COUNT))
        assert found["Exact details"][0] == "the port is 8443"
        assert found["Next step"] == ["Now the docs."]
        assert not any("established background" in item for item in found["Request"])

    def test_of_almost_nothing_says_so(self) -> None:
        summary = summarise(asked([]), SECTIONS, cap_tokens=900, count=COUNT)
        assert set(map(tuple, sections_of(summary).values())) == {("(none)",)}

    def test_shows_only_the_details_of_a_long_line(self) -> None:
        line = json.dumps({"name": "HAT008", "text": "filler words " * 90, "port": 8443})
        history = [{"role": "tool", "content": line}]
        found = sections_of(summarise(asked(history), SECTIONS, cap_tokens=900, count=COUNT))
        assert found["Exact details"] == ["HAT008, 8443"]

    @given(st.integers(0, 1200), st.integers(1, 12))
    def test_keeps_its_cap_when_its_headings_fit(self, cap_tokens: int, repeats: int) -> None:
        history = [
            {**message, "content": f"{message['content']} {number}"}
            for number in range(repeats)
            for message in HISTORY
        ]
        summary = summarise(asked(history), SECTIONS, cap_tokens=cap_tokens, count=COUNT)
        empty = summarise(asked([]), SECTIONS, cap_tokens=cap_tokens, count=COUNT)
        assert COUNT(summary) <= max(cap_tokens, COUNT(empty))
