"""What a compaction is to reach: the formulas of design sections 4, 8 and 9."""

from dataclasses import replace
from typing import Any

import pytest

from proxy.core.aims import (
    enough,
    fits,
    manual_aim,
    over_limit,
    overflow_aim,
    pressure_aim,
)
from proxy.core.budget import Budget
from proxy.core.compaction import Cause
from proxy.core.overflow import Refusal, RefusalKind
from tests.core.views import aim, view_of
from tests.strategies import assistant, user

BUDGET = Budget(
    window_tokens=10_000,
    output_tokens=1000,
    headroom_tokens=1250,
    input_limit_tokens=None,
    trigger_tokens=7750,
    retain_tokens=1440,
)
UNKNOWN = Budget(None, 0, None, None)
TEN = [message for n in range(5) for message in (user("x" * 1000), assistant("y" * 1000))]


def refusal(window_tokens: int | None = None, **more: Any) -> Refusal:
    return Refusal(RefusalKind.CONTEXT_OVERFLOW, window_tokens=window_tokens, **more)


class TestPressure:
    def test_t_and_r_are_the_budgets_and_the_share_is_beside_head_and_tools(self) -> None:
        made = pressure_aim(BUDGET, view_of(TEN, fixed_tokens=750))
        assert (made.cause, made.trigger_tokens, made.retain_tokens) == (
            Cause.PRESSURE,
            7750,
            1440,
        )
        assert made.limit_tokens == 9000
        assert made.share_tokens == 7000
        assert made.tail_tokens() == 1440

    def test_the_tail_is_at_most_a_quarter_of_the_share(self) -> None:
        made = pressure_aim(BUDGET, view_of(TEN, fixed_tokens=6750))
        assert made.tail_tokens() == 250

    def test_a_head_above_the_trigger_leaves_no_share(self) -> None:
        assert pressure_aim(BUDGET, view_of(TEN, fixed_tokens=9000)).share_tokens == 0


class TestManual:
    def test_nothing_but_the_newest_unit_stays(self) -> None:
        made = manual_aim(BUDGET, view_of(TEN, fixed_tokens=750))
        assert (made.cause, made.retain_tokens, made.share_tokens) == (Cause.MANUAL, 0, 7000)

    def test_without_a_trigger_the_share_is_the_whole(self) -> None:
        made = manual_aim(UNKNOWN, view_of(TEN, fixed_tokens=100))
        assert (made.trigger_tokens, made.limit_tokens) == (None, None)
        assert made.share_tokens == 10_000


class TestOverflow:
    def test_the_stated_limit_less_the_output_bounds_the_prompt(self) -> None:
        made = overflow_aim(BUDGET, view_of(TEN), refusal(8000), 10_000)
        assert made.limit_tokens == 7000
        assert made.trigger_tokens == 5600
        assert made.retain_tokens == 7000 * 16 // 100

    def test_the_known_window_stands_in_for_a_limit_that_is_not_stated(self) -> None:
        made = overflow_aim(BUDGET, view_of(TEN), refusal(), 10_000)
        assert made.limit_tokens == 9000
        assert made.retain_tokens == 1440

    def test_the_tail_is_at_most_a_quarter_of_our_count(self) -> None:
        small = TEN[:4]
        made = overflow_aim(BUDGET, view_of(small), refusal(), 4000)
        assert made.retain_tokens == 1000

    def test_what_we_count_below_the_limit_is_measured_by_what_was_refused(self) -> None:
        made = overflow_aim(BUDGET, view_of(TEN[:8]), refusal(), 8000)
        assert made.limit_tokens == 7200
        assert made.trigger_tokens == 5760
        assert made.limit_is_guess

    def test_without_any_limit_it_is_guessed_and_nothing_is_retained(self) -> None:
        made = overflow_aim(UNKNOWN, view_of(TEN), refusal(), 10_000)
        assert (made.limit_tokens, made.retain_tokens) == (9000, 0)
        assert made.trigger_tokens == 7200
        assert made.limit_is_guess

    def test_a_known_limit_below_what_was_refused_is_no_guess(self) -> None:
        assert not overflow_aim(BUDGET, view_of(TEN), refusal(), 9001).limit_is_guess
        assert overflow_aim(BUDGET, view_of(TEN), refusal(), 9000).limit_is_guess

    def test_a_stated_limit_above_the_known_window_raises_nothing(self) -> None:
        made = overflow_aim(BUDGET, view_of(TEN), refusal(64_000), 10_000)
        assert made.limit_tokens == 9000

    def test_where_the_output_leaves_nothing_it_is_left_aside_and_nothing_is_retained(self) -> None:
        greedy = replace(BUDGET, output_tokens=9000)
        made = overflow_aim(greedy, view_of(TEN), refusal(8000), 10_000)
        assert (made.limit_tokens, made.retain_tokens) == (8000, 0)

    def test_the_output_that_the_provider_reserved_counts(self) -> None:
        made = overflow_aim(BUDGET, view_of(TEN), refusal(8000, requested_output_tokens=3000), 9999)
        assert made.limit_tokens == 5000

    def test_a_limit_of_the_input_alone_is_the_prompts(self) -> None:
        made = overflow_aim(BUDGET, view_of(TEN), refusal(5000, window_is_input_only=True), 9999)
        assert made.limit_tokens == 5000

    def test_a_tail_that_does_not_fit_is_not_retained(self) -> None:
        """R would be 800 of 5000, but the newest unit and the head are over the limit."""
        made = overflow_aim(BUDGET, view_of(TEN, fixed_tokens=4500), refusal(6000), 14_500)
        assert made.retain_tokens == 0

    def test_where_nothing_would_be_cut_nothing_is_retained(self) -> None:
        made = overflow_aim(BUDGET, view_of([user("x" * 100)]), refusal(8000), 9000)
        assert made.retain_tokens == 0


@pytest.mark.parametrize(("limit", "over"), [(None, False), (10_000, False), (9999, True)])
def test_over_the_limit_is_more_than_the_window_leaves(limit: int | None, over: bool) -> None:
    assert over_limit(aim(limit_tokens=limit), view_of(TEN)) is over


class TestEnough:
    def test_under_pressure_ninety_percent_of_the_trigger(self) -> None:
        assert enough(aim(trigger_tokens=1000), 900)
        assert not enough(aim(trigger_tokens=1000), 901)
        assert not enough(aim(trigger_tokens=None), 1)

    def test_after_an_overflow_ninety_percent_of_the_limit(self) -> None:
        assert enough(aim(Cause.OVERFLOW, limit_tokens=1000), 900)
        assert not enough(aim(Cause.OVERFLOW, limit_tokens=1000), 901)
        assert not enough(aim(Cause.OVERFLOW, limit_tokens=None), 1)

    def test_half_of_a_guessed_limit(self) -> None:
        guess = replace(aim(Cause.OVERFLOW, limit_tokens=1000), limit_is_guess=True)
        assert enough(guess, 500)
        assert not enough(guess, 501)


def test_what_fits_is_up_to_the_limit_and_surely_below_a_guess() -> None:
    known = aim(Cause.OVERFLOW, limit_tokens=1000)
    guess = replace(known, limit_is_guess=True)
    assert fits(known, 1000)
    assert not fits(known, 1001)
    assert fits(guess, 500)
    assert not fits(guess, 501)
    assert not fits(aim(Cause.OVERFLOW, limit_tokens=None), 1)
