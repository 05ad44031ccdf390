"""What a refusal teaches about a window: for whom, how long, and how it is told."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.refusing_provider import (
    RefusingProvider,
    as_400,
    as_input_limit,
    in_words,
)
from tests.journeys.test_overflow import BELIEVED, LONG, TRUE
from tests.proxied import assistant, talk, text_of_tokens, user, walking
from tests.serving import wait_until

UNKNOWN = "nobody-knows"
TURNS, TURN_TOKENS = 30, 240


def grown(turns: int) -> list[Any]:
    return [*talk(turns, TURN_TOKENS // 2)[:-1], user(f"question {turns}")]


@pytest.mark.parametrize("stream", [False, True])
def test_r036_an_unknown_window_is_learned_once_and_kept(stream: bool) -> None:
    """A conversation grows until it is refused; from then on it is compacted before that."""
    provider = RefusingProvider(TRUE, as_400)
    with walking(None, provider=provider) as walk:
        reasons = []
        for turns in range(1, TURNS):
            answer = walk.ask(grown(turns), stream=stream, model=UNKNOWN)
            assert answer.reply.status_code == 200, answer.reply.text
            reasons.append((answer.facts["window"], answer.facts.get("reason")))
        assert len(provider.refused) == 1
        known = [window for window, _ in reasons]
        assert known.count(str(TRUE)) + known.count("unknown") == len(known)
        assert known.index(str(TRUE)) > 10
        assert ("unknown", "window-stated") in reasons
        later = provider.main_calls[-10:]
        assert all(call.tokens <= TRUE * 80 // 100 for call in later)


def test_r037_an_input_limit_is_kept_apart_from_the_window() -> None:
    provider = RefusingProvider(TRUE, as_input_limit)
    with walking(2 * TRUE, provider=provider) as walk:
        for turns in range(1, TURNS):
            answer = walk.ask(grown(turns), stream=True, max_tokens=16)
            assert answer.reply.status_code == 200
        assert len(provider.refused) <= 1
        assert answer.facts["window"] == str(2 * TRUE)
        assert all(call.tokens <= TRUE for call in provider.main_calls[-10:])


def test_a_limit_below_the_configured_window_holds_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider = RefusingProvider(TRUE, as_400)
    with walking(BELIEVED, provider=provider) as walk:
        first = walk.ask(LONG)
        assert first.facts["reason"] == "window-stated"
        for n in range(3):
            answer = walk.ask([*talk(10, 300, f"other {n}")])
            assert answer.facts["window"] == str(TRUE)
        assert len(provider.refused) == 1
    told = [r for r in caplog.records if "limit_contradicts_setting" in r.getMessage()]
    assert [r.levelno for r in told] == [logging.WARNING]


def test_a_success_above_it_drops_a_learned_limit() -> None:
    provider = RefusingProvider(TRUE, as_400)
    with walking(BELIEVED, provider=provider) as walk:
        assert walk.ask(LONG).facts["reason"] == "window-stated"
        provider.window = None
        whole = [user(text_of_tokens(TRUE + 200))]
        assert walk.ask(whole).facts["window"] == str(TRUE)
        wait_until(lambda: walk.ask([user("hello")]).facts["window"] == str(BELIEVED))


def test_it_is_known_after_a_restart_and_to_nobody_else(tmp_path: Path) -> None:
    provider = RefusingProvider(TRUE, as_400)
    mine, theirs = {"authorization": "Bearer one"}, {"authorization": "Bearer two"}
    with walking(None, provider=provider, folder=tmp_path) as walk:
        assert walk.ask(LONG, model=UNKNOWN, headers=mine).reply.status_code == 200
    with walking(None, provider=provider, folder=tmp_path) as walk:
        small = [user("hello")]
        assert walk.ask(small, model=UNKNOWN, headers=mine).facts["window"] == str(TRUE)
        assert walk.ask(small, model=UNKNOWN, headers=theirs).facts["window"] == "unknown"
        assert walk.ask(small, model="other", headers=mine).facts["window"] == "unknown"


@pytest.mark.parametrize("limit", [512, 900_000])
def test_an_implausible_limit_is_not_learned(limit: int) -> None:
    """Too small for a window, or more than this prompt can have exceeded."""
    message = (
        f"This model's maximum context length is {limit} tokens. However, your prompt is longer."
    )
    provider = RefusingProvider(TRUE, in_words(400, {"error": {"message": message}}))
    with walking(None, provider=provider) as walk:
        walk.ask(LONG, model=UNKNOWN)
        assert walk.ask([user("hello")], model=UNKNOWN).facts["window"] == "unknown"


def test_silent_truncation_is_told_once_and_never_learned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R043."""
    usage = b'{"prompt_tokens":2051,"completion_tokens":3,"total_tokens":2054}'
    whole = (
        b'{"id":"1","object":"chat.completion","choices":[{"index":0,"finish_reason":"stop",'
        b'"message":{"role":"assistant","content":"Sure, done."}}],"usage":' + usage + b"}"
    )
    provider = RefusingProvider(None)
    with walking(None, provider=provider) as walk:
        for n in range(3):
            history = [*talk(15, 290, f"talk {n}"), assistant("yes"), user("go on")]
            provider.next(body=whole)
            assert walk.ask(history, model=UNKNOWN).reply.content == whole
        wait_until(
            lambda: any("silently truncated" in r.getMessage() for r in caplog.records), seconds=5
        )
        provider.next(body=whole)
        walk.ask(talk(16, 290), model=UNKNOWN)
        assert walk.ask([user("hello")], model=UNKNOWN).facts["window"] == "unknown"
    assert sum("silently truncated" in r.getMessage() for r in caplog.records) == 1
