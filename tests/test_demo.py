"""The play: every turn answered, every figure taken from what really happened."""

from collections.abc import Sequence

import httpx
import pytest

from proxy.demo import (
    Client,
    PlayedTurn,
    RecordedProvider,
    Saved,
    demo_servers,
    play,
    saved,
)
from proxy.demo_script import STEPS
from proxy.loopback import served
from proxy.practice import WINDOW_TOKENS, create_practice_app


@pytest.fixture(scope="module")
def known() -> list[PlayedTurn]:
    return list(play())


@pytest.fixture(scope="module")
def unknown() -> list[PlayedTurn]:
    return list(play(window_known=False))


def actions(turns: Sequence[PlayedTurn]) -> list[str]:
    return [action for turn in turns for action in turn.action.split(",")]


def test_every_turn_is_answered_and_nothing_is_refused(known: list[PlayedTurn]) -> None:
    assert [turn.title for turn in known] == [step.title for step in STEPS]
    assert all(turn.answered for turn in known)
    assert sum(turn.refused_calls for turn in known) == 0


def test_prunes_and_summaries_occur_and_are_used_again(known: list[PlayedTurn]) -> None:
    assert {"prune", "summary"} <= set(actions(known))
    called = {turn.number for turn in known if turn.summary_calls}
    assert called == {turn.number for turn in known if "summary" in turn.action}
    reused = [turn for turn in known if int(turn.generation) > 0 and turn.action == "none"]
    assert len(reused) > len(called)
    assert all(turn.forwarded_tokens < turn.client_tokens for turn in reused)


def test_what_is_forwarded_fits_though_the_client_sends_far_more(known: list[PlayedTurn]) -> None:
    assert max(turn.forwarded_tokens for turn in known) < WINDOW_TOKENS
    assert max(turn.client_tokens for turn in known) > 4 * WINDOW_TOKENS


def test_generations_only_grow(known: list[PlayedTurn]) -> None:
    generations = [int(turn.generation) for turn in known]
    assert generations == sorted(generations)


def test_under_the_window_it_forwards_what_the_client_sent(known: list[PlayedTurn]) -> None:
    first = known[0]
    assert first.client_tokens == first.forwarded_tokens


def test_a_window_that_nobody_told_is_learned_from_one_refusal(unknown: list[PlayedTurn]) -> None:
    assert all(turn.answered for turn in unknown)
    assert sum(turn.refused_calls for turn in unknown) == 1
    refused = next(turn for turn in unknown if turn.refused_calls)
    assert "replay" in refused.action
    windows = list(dict.fromkeys(turn.window for turn in unknown))
    assert windows == ["unknown", str(WINDOW_TOKENS)]


def test_the_sums_are_those_of_the_turns(known: list[PlayedTurn]) -> None:
    result = saved(known)
    assert result.turns == result.answered == len(STEPS)
    assert result.client_tokens == sum(turn.client_tokens for turn in known)
    assert result.forwarded_tokens == sum(turn.forwarded_tokens for turn in known)
    assert result.summary_calls > 0
    assert result.summary_prompt_tokens > result.summary_completion_tokens > 0
    assert 0.5 < result.kept_share < 1
    assert 0 < result.over_window < len(STEPS)
    assert "48217" in result.last_answer


def test_nothing_played_comes_to_nothing() -> None:
    result = saved([])
    assert isinstance(result, Saved)
    assert result.turns == result.client_tokens == 0
    assert result.last_answer == ""


def test_a_turn_that_is_refused_ends_the_play() -> None:
    provider = RecordedProvider(create_practice_app(window_tokens=1200))
    with served(provider) as url, httpx.Client(base_url=f"{url}/v1", trust_env=False) as http:
        turns = list(Client(http, provider).play())
    assert [turn.status for turn in turns] == [200] * (len(turns) - 1) + [400]
    assert len(turns) < len(STEPS)
    assert not turns[-1].answered
    assert [turn.refused_calls for turn in turns] == [0] * (len(turns) - 1) + [1]
    assert saved(turns, window_tokens=1200).over_window == 1


def test_what_the_window_leaves_no_room_for_is_not_answered() -> None:
    """The last answer through Tidegate is the provider's own refusal when the floor is over it."""
    with (
        demo_servers(window_known=True, window_tokens=700) as (url, provider),
        httpx.Client(base_url=url, trust_env=False) as http,
    ):
        turns = list(Client(http, provider).play())
    assert turns[-1].status == 400
    assert turns[-1].answer == ""
