"""Titles of conversations."""

from typing import Any

import pytest

from proxy.core.titles import TITLE_CHARS, title_of


@pytest.mark.parametrize(
    ("content", "title"),
    [
        ("Which tide\n\n  is it?", "Which tide is it?"),
        ([{"type": "text", "text": "What is"}, {"type": "text", "text": "this?"}], "What is this?"),
        (
            [{"type": "image_url", "image_url": {"url": "data:"}}, {"text": "A picture"}],
            "A picture",
        ),
        (["plain", 7, None], "plain"),
        ("", ""),
        (None, ""),
        (7, ""),
        ({"text": "not a list"}, ""),
    ],
)
def test_a_title_is_the_first_words(content: Any, title: str) -> None:
    assert title_of({"role": "user", "content": content}) == title


@pytest.mark.parametrize("message", [None, [], "text", {}])
def test_what_is_no_message_has_none(message: Any) -> None:
    assert title_of(message) == ""


def test_long_ones_are_cut() -> None:
    title = title_of({"content": "tide " * 1_000_000})
    assert len(title) <= TITLE_CHARS
    assert title.endswith("…")
