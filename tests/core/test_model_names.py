"""Names: vendors, tags, versions and dates fall away; nothing is guessed by likeness."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.model_names import MAX_NAME_CHARS, find, first_match, names_of


@pytest.mark.parametrize(
    "name",
    [
        "known",
        "KNOWN",
        "vendor/known",
        "models/known",
        "accounts/fireworks/models/known",
        "known:free",
        "known:latest",
        "vendor/known:free",
        "known-2026-05-01",
        "known-20260501",
        "known-260501",
        "known-05-2026",
        "known-0501",
        "known-2605",
        "known-latest",
        "known@20260501",
        "vendor/known-2026-05-01:free",
        "us.anthropic.known-20240620-v1:0",
        "anthropic.known",
    ],
)
def test_a_known_model_is_found_under_each_of_its_names(name: str) -> None:
    """Case R039."""
    assert find({"known": 1}, name) == 1


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("deepseek-v3", "deepseek-v3"),
        ("qwen3-32b", "qwen3-32b"),
        ("gpt-4-1106-preview", "gpt-4-1106-preview"),
        ("claude-opus-4-5", "claude-opus-4-5"),
        ("known-mini", "known-mini"),
        ("phi-3-9999", "phi-3-9999"),
    ],
)
def test_sizes_and_versions_stay(name: str, kept: str) -> None:
    assert names_of(name) == (kept,)


def test_the_longer_name_wins() -> None:
    known = {"gpt-5": 1, "gpt-5-2026-05-01": 2, "openai/gpt-5": 3, "gpt-5:free": 4}
    assert find(known, "gpt-5-2026-05-01:free") == 2
    assert find(known, "openai/gpt-5") == 3
    assert find(known, "openai/gpt-5:free") == 4
    assert find(known, "azure/gpt-5") == 1
    assert find(known, "gpt-6") is None


def test_the_first_pattern_that_matches_any_of_the_names_wins() -> None:
    patterns = ["gpt-5", "openai/*", "qwen3-[0-9]*b", "*"]
    assert first_match(patterns, "openai/gpt-5-2026-05-01") == 0
    assert first_match(patterns, "OpenAI/gpt-5-mini") == 1
    assert first_match(patterns, "Qwen/Qwen3-32B") == 2
    assert first_match(patterns, "other") == 3
    assert first_match(patterns[:3], "other") is None
    assert first_match([], "other") is None


def test_very_long_names_are_taken_as_they_stand() -> None:
    name = "A/" * MAX_NAME_CHARS
    assert names_of(name) == (name,)


@given(st.text(max_size=80))
def test_any_text_has_names_and_the_first_is_itself(name: str) -> None:
    names = names_of(name)
    assert names
    assert all(len(other) <= len(names[0]) for other in names)
    assert names[0] == name.strip().lower()


@pytest.mark.parametrize("name", ["", " ", "/", "///", ":", "@", "-latest"])
def test_odd_names_do_no_harm(name: str) -> None:
    assert names_of(name)
