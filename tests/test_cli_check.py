"""`tidegate check`: what it shows, what it hides, and its exit code."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from proxy.cli import app

GOOD = """
[upstreams.default]
base_url = "https://api.openai.com/v1"
api_key = "sk-secret"

[[models]]
match = "big-model"
context_window = 131072
max_output_tokens = 8192

[[models]]
match = "gpt-5"
"""


@pytest.fixture(autouse=True)
def empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory of its own."""
    monkeypatch.chdir(tmp_path)


def check(text: str | None, *options: str) -> Result:
    if text is not None:
        Path("tidegate.toml").write_text(text, encoding="utf-8")
    return CliRunner().invoke(app, ["check", *options])


def row(result: Result, model: str) -> list[str]:
    return next(line for line in result.output.splitlines() if line.startswith(f" {model}")).split()


def test_the_budget_of_each_model_and_where_it_came_from() -> None:
    result = check(GOOD)
    assert result.exit_code == 0
    numbers = ["131072", "configured", "-", "8192", "65536", "57344", "19660", "valid"]
    assert row(result, "big-model") == ["big-model", "default", *numbers]
    assert row(result, "gpt-5")[2:5] == ["400000", "catalogued", "272000"]


def test_the_settings_are_shown_and_secrets_are_not() -> None:
    result = check(GOOD)
    assert "settings file: tidegate.toml" in result.output
    assert 'base_url = "https://api.openai.com/v1"' in result.output
    assert "trigger_percent = 80" in result.output
    assert "secret" not in result.output


def test_any_model_may_be_asked_about() -> None:
    result = check(GOOD, "--model", "openai/gpt-4o-2024-08-06", "--model", "vendor/big-model:free")
    assert row(result, "openai/gpt-4o")[2:4] == ["128000", "catalogued"]
    assert row(result, "vendor/big-model:free")[2:4] == ["131072", "configured"]


def test_the_output_of_a_request_counts() -> None:
    """The second row of the design's table."""
    result = check(GOOD, "--model", "big-model", "--max-tokens", "32768")
    assert row(result, "big-model")[5:9] == ["32768", "65536", "32768", "15728"]


def test_an_invalid_budget_is_explained_and_the_exit_code_one() -> None:
    result = check('[[models]]\nmatch = "small"\ncontext_window = 32768\n')
    assert result.exit_code == 1
    assert row(result, "small")[-1] == "invalid"
    assert "small: W - O - B = 32768 - 0 - 65536 = -32768" in result.output
    assert 'headroom_tokens (or set it to "auto")' in result.output


def test_an_unknown_window_is_no_mistake() -> None:
    result = check(None, "--model", "nobody-knows-it")
    assert result.exit_code == 0
    assert row(result, "nobody-knows-it")[-1] == "unknown"
    assert "set context_window" in result.output


def test_messages_kept_are_shown_as_such() -> None:
    result = check(
        '[[models]]\nmatch = "many"\ncontext_window = 200000\n'
        'keep = { type = "messages", value = 20 }\n'
    )
    assert row(result, "many")[-3:] == ["20", "messages", "valid"]


def test_summarizers_are_models_too() -> None:
    result = check('[compaction]\nsummarizers = [{ model = "gpt-5-mini" }]\n')
    assert row(result, "gpt-5-mini")[2] == "400000"


def test_without_anything_it_says_so() -> None:
    result = check(None)
    assert result.exit_code == 0
    assert "settings file: none" in result.output
    assert "set TIDEGATE_UPSTREAM, or [upstreams.default]" in result.output
    assert "--model NAME" in result.output


def test_unusable_settings_are_a_sentence_and_the_exit_code_two() -> None:
    result = check("[server]\nprt = 1\n")
    assert result.exit_code == 2
    assert "did you mean server.port?" in result.output
    assert "Traceback" not in result.output


def test_a_file_may_be_named() -> None:
    Path("other.toml").write_text(GOOD)
    assert check(None, "--config", "other.toml").exit_code == 0
    result = check(None, "--config", "absent.toml")
    assert result.exit_code == 2
    assert "there is no such file" in result.output
