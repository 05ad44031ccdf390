"""`tidegate demo` as a newcomer runs it: a table, a summary, an exit code."""

import re
import time
from collections.abc import Iterator

import httpx
import pytest
from typer.testing import CliRunner

import proxy.demo
from proxy.cli import app
from proxy.demo import PlayedTurn
from proxy.demo_script import STEPS

MAX_SECONDS = 15


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["demo", *arguments], env={"COLUMNS": "80"})
    return result.exit_code, result.output


def turns_in(output: str) -> list[int]:
    return [int(number) for number in re.findall(r"^ {0,3}(\d+)  \S.*\d$", output, re.MULTILINE)]


def test_it_plays_all_turns_within_its_time_and_says_what_was_saved() -> None:
    started = time.monotonic()
    code, output = run()
    assert code == 0, output
    assert time.monotonic() - started < MAX_SECONDS
    assert turns_in(output) == list(range(1, len(STEPS) + 1))
    assert f"turns answered    {len(STEPS)} of {len(STEPS)}" in output
    for name in ("tokens sent", "tokens forwarded", "summary calls", "prefix kept", "without Tide"):
        assert name in output
    assert all(len(line) <= 80 for line in output.splitlines())


def test_with_overflow_it_tells_how_the_window_became_known() -> None:
    code, output = run("--overflow")
    assert code == 0, output
    assert "replay" in output
    assert "unknown, then 8192" in output


def _turn(status: int) -> PlayedTurn:
    return PlayedTurn(
        number=1,
        title="the only one",
        status=status,
        client_tokens=10,
        forwarded_tokens=10,
        generation="0",
        action="none",
        reason="",
        window="8192",
        milliseconds=1.0,
        answer="",
        refused_calls=0,
        summary_calls=(),
        forwarded_bytes=1,
        kept_bytes=0,
    )


def test_an_unanswered_turn_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy.demo, "play", lambda **options: iter([_turn(503)]))
    code, output = run()
    assert code == 1
    assert "turn 1 was not answered: status 503" in output


def test_a_play_that_breaks_off_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**options: bool) -> Iterator[PlayedTurn]:
        yield _turn(200)
        raise httpx.ReadTimeout("no answer")

    monkeypatch.setattr(proxy.demo, "play", broken)
    code, output = run()
    assert code == 1
    assert "broke off: ReadTimeout" in output
