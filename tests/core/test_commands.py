"""What is a command, what of an exchange is taken out, and what is left for the model."""

import pytest

from proxy.core.commands import (
    USAGE_CHARS,
    Command,
    candidate_answers,
    command_in,
    exchange_positions,
    pending_command,
)
from proxy.core.messages import Message


def user(content: object) -> Message:
    return {"role": "user", "content": content}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    "content",
    [
        "/compact",
        "  /compact\n",
        "/context compact",
        [{"type": "text", "text": " /compact "}],
        [{"type": "input_text", "text": "/context compact"}],
    ],
)
def test_the_command_alone_compacts(content: object) -> None:
    assert command_in(user(content)) is Command.COMPACT
    assert pending_command([assistant("hi"), user(content)]) is Command.COMPACT


@pytest.mark.parametrize("more", ["now", "please, all of it", "x" * (USAGE_CHARS - 1)])
def test_a_few_more_words_on_the_line_ask_for_its_usage(more: str) -> None:
    assert command_in(user(f"/compact {more}")) is Command.USAGE
    assert command_in(user(f"/context compact {more}")) is Command.USAGE


@pytest.mark.parametrize(
    "content",
    [
        "/compacted",
        "/context",
        "/compact " + "x" * USAGE_CHARS,
        "/compact\nand then go on",
        "please /compact",
        "//compact",
        "/Compact",
        "/compact" + " " * 1000,
        "",
        None,
        {"text": "/compact"},
        [],
        [{"type": "text", "text": "/compact"}, {"type": "text", "text": "more"}],
        [{"type": "image_url", "image_url": {"url": "https://a/b"}}],
    ],
)
def test_everything_else_is_for_the_model(content: object) -> None:
    assert command_in(user(content)) is None
    assert pending_command([user(content)]) is None


def test_only_a_user_commands() -> None:
    assert command_in(assistant("/compact")) is None
    assert command_in({"role": "tool", "content": "/compact"}) is None
    assert pending_command([]) is None


HISTORY = [
    user("hello"),
    assistant("hi"),
    user("/compact"),
    assistant("Compacted."),
    user("go on"),
    assistant("yes"),
    user("/compact now"),
    assistant("Usage: ..."),
    user("/compact"),
]


def test_the_exchange_is_taken_out_on_every_later_turn() -> None:
    assert candidate_answers(HISTORY) == (3, 7)
    assert exchange_positions(HISTORY, lambda position: True) == {2, 3, 6, 7, 8}


def test_an_answer_that_is_not_ours_stays() -> None:
    """And with it a command with more words: a model was asked and has answered."""
    assert exchange_positions(HISTORY, lambda position: False) == {2, 8}


def test_a_command_without_an_answer_is_taken_out_alone() -> None:
    history = [user("/compact"), user("hello"), user("/compact now"), user("more")]
    assert exchange_positions(history, lambda position: True) == {0}
    assert exchange_positions([user("a"), user("/compact now")], lambda position: True) == {1}
