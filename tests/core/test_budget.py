"""The budget: section 4's table row by row, then the laws behind it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.budget import (
    MAX_TOKENS,
    Headroom,
    Measure,
    MeasureType,
    Policy,
    contradictions,
    fired_at,
    headroom,
    make_budget,
    measure,
    output_reserve,
    token_count,
    trigger_fires,
)

TABLE = [
    # W, O, B, T, R; None for T and R where the budget is invalid
    (1_000_000, 256_000, 65_536, 678_464, 119_040),
    (131_072, 8_192, 65_536, 57_344, 19_660),
    (131_072, 32_768, 65_536, 32_768, 15_728),
    (1_048_576, 8_192, 65_536, 838_860, 166_461),
    (65_536, 8_192, 8_192, 49_152, 9_175),
    (65_536, 8_192, 65_536, None, None),
    (100_000, 32_768, 65_536, None, None),
    (80_000, 32_000, 65_536, None, None),
]
TOKENS, MESSAGES, FRACTION = MeasureType.TOKENS, MeasureType.MESSAGES, MeasureType.FRACTION


@pytest.mark.parametrize(("window", "output", "room", "trigger", "retain"), TABLE)
def test_the_worked_table_of_the_design(
    window: int, output: int, room: int, trigger: int | None, retain: int | None
) -> None:
    budget = make_budget(window, output, Policy(headroom_tokens=room))
    assert budget.valid is (trigger is not None)
    if trigger is not None:
        assert (budget.trigger_tokens, budget.retain_tokens) == (trigger, retain)


def test_a_headroom_larger_than_the_window_names_the_numbers_and_the_settings() -> None:
    budget = make_budget(65_536, 8_192, Policy(headroom_tokens=65_536))
    assert "W - O - B = 65536 - 8192 - 65536 = -8192" in budget.problem
    assert "headroom_tokens" in budget.problem
    assert "context_window" in budget.problem


def test_a_retention_that_reaches_the_trigger_names_both() -> None:
    budget = make_budget(100_000, 32_768, Policy(headroom_tokens=65_536))
    assert (budget.trigger_tokens, budget.retain_tokens) == (1_696, 10_757)
    assert "R = 10757 is not below T = 1696" in budget.problem


def test_a_large_output_reserve_brings_the_trigger_down() -> None:
    """Case R041."""
    budget = make_budget(100_000, 85_000, Policy(headroom_tokens=1_000))
    assert (budget.trigger_tokens, budget.prompt_limit_tokens) == (14_000, 15_000)


@given(
    window=st.integers(1, 2_000_000),
    output=st.integers(0, 2_000_000),
    room=st.integers(0, 200_000),
    percents=st.tuples(st.integers(1, 100), st.integers(1, 100)),
)
def test_t_and_r_equal_the_formulas(
    window: int, output: int, room: int, percents: tuple[int, int]
) -> None:
    trigger_percent, retain_percent = percents
    policy = Policy(
        trigger_percent=trigger_percent, headroom_tokens=room, retain_percent=retain_percent
    )
    budget = make_budget(window, output, policy)
    trigger = min(window * trigger_percent // 100, window - output - room)
    retain = (window - output) * retain_percent // 100
    assert budget.valid == (window - output - room > 0 and retain < trigger)
    if budget.valid:
        assert (budget.trigger_tokens, budget.retain_tokens) == (trigger, retain)
        assert not trigger_fires(budget, trigger - 1, 10**6)
        assert trigger_fires(budget, trigger, 0)
        assert trigger_fires(budget, trigger + 1, 0)


def test_percents_are_floored_as_integers_where_floats_go_wrong() -> None:
    """0.29 * 100 is 28.999999999999996 in floats, and 0.57 * 100 is 56.99999999999999."""
    for percent in (29, 57):
        policy = Policy(trigger_percent=percent, headroom_tokens=0, retain_percent=1)
        assert make_budget(100, 0, policy).trigger_tokens == percent
    assert Measure(FRACTION, 290_000).of_window(100) == 29
    assert measure("fraction", 0.57).of_window(100) == 57


@pytest.mark.parametrize(
    ("setting", "configured", "expected"),
    [
        (None, True, 65_536),
        (None, False, 12_500),
        ("auto", True, 12_500),
        ("auto", False, 12_500),
        (0, False, 0),
        (70_000, False, 70_000),
    ],
)
def test_headroom_is_auto_only_where_nobody_wrote_the_window(
    setting: Headroom, configured: bool, expected: int
) -> None:
    assert headroom(100_000, setting, configured=configured) == expected


def test_automatic_headroom_never_exceeds_the_fixed_one() -> None:
    assert headroom(10_000_000, "auto", configured=False) == 65_536


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_that_is_not_positive_is_invalid(window: int) -> None:
    assert f"the context window is {window}" in make_budget(window, 0, Policy()).problem


class TestInputLimit:
    """A limit on the prompt alone (272000 of 400000) bounds the prompt, not prompt + output."""

    def test_the_trigger_stays_under_eighty_percent_of_it(self) -> None:
        budget = make_budget(400_000, 0, Policy(), input_limit_tokens=272_000, configured=False)
        assert budget.valid
        assert (budget.trigger_tokens, budget.prompt_limit_tokens) == (217_600, 272_000)
        assert budget.retain_tokens == 64_000

    def test_the_window_rules_where_it_is_the_smaller(self) -> None:
        budget = make_budget(400_000, 300_000, Policy(), input_limit_tokens=272_000)
        assert (budget.trigger_tokens, budget.prompt_limit_tokens) == (34_464, 100_000)

    def test_alone_it_is_enough(self) -> None:
        budget = make_budget(None, 50_000, Policy(), input_limit_tokens=10_000)
        assert budget.valid
        assert (budget.trigger_tokens, budget.retain_tokens) == (8_000, 1_600)
        assert (budget.prompt_limit_tokens, budget.window_tokens) == (10_000, None)

    def test_a_fraction_kept_is_one_of_it_when_no_window_is_known(self) -> None:
        policy = Policy(keep=Measure(FRACTION, 100_000))
        assert make_budget(None, 0, policy, input_limit_tokens=10_000).retain_tokens == 1_000


class TestTriggers:
    """More triggers: whichever comes first."""

    def test_the_earliest_of_percent_tokens_and_fraction_is_t(self) -> None:
        for triggers, expected in [
            ((Measure(TOKENS, 50_000),), 50_000),
            ((Measure(TOKENS, 500_000),), 80_000),
            ((Measure(FRACTION, 600_000),), 60_000),
            (
                (Measure(TOKENS, 50_000), Measure(FRACTION, 400_000), Measure(TOKENS, 45_000)),
                40_000,
            ),
        ]:
            policy = Policy(headroom_tokens=0, triggers=triggers)
            assert make_budget(100_000, 0, policy).trigger_tokens == expected

    def test_a_default_retention_yields_to_an_earlier_trigger(self) -> None:
        policy = Policy(headroom_tokens=0, triggers=(Measure(TOKENS, 5_000),))
        budget = make_budget(100_000, 0, policy)
        assert budget.valid
        assert budget.retain_tokens == 1_000

    def test_a_retention_that_was_asked_for_does_not_yield(self) -> None:
        policy = Policy(headroom_tokens=0, retain_percent=17, triggers=(Measure(TOKENS, 5_000),))
        assert not make_budget(100_000, 0, policy).valid

    def test_messages_fire_below_t(self) -> None:
        policy = Policy(headroom_tokens=0, triggers=(Measure(MESSAGES, 400),))
        budget = make_budget(100_000, 0, policy)
        assert not trigger_fires(budget, 79_999, 399)
        assert trigger_fires(budget, 1, 400)

    def test_messages_that_fire_early_do_not_retain_everything(self) -> None:
        policy = Policy(headroom_tokens=0, triggers=(Measure(MESSAGES, 400),))
        budget = make_budget(100_000, 0, policy)
        assert fired_at(budget, 10_000).retain_tokens == 2_000
        assert fired_at(budget, 10_000).trigger_tokens == 80_000
        assert fired_at(budget, 80_000) == budget

    def test_a_retention_that_was_asked_for_holds_however_early_messages_fire(self) -> None:
        policy = Policy(retain_tokens=9_000, triggers=(Measure(MESSAGES, 400),), headroom_tokens=0)
        assert fired_at(make_budget(100_000, 0, policy), 10_000).retain_tokens == 9_000

    def test_an_invalid_budget_never_fires(self) -> None:
        policy = Policy(triggers=(Measure(MESSAGES, 1), Measure(TOKENS, 1)))
        assert not trigger_fires(make_budget(1_000, 0, policy), 10**9, 10**9)


class TestUnknownWindow:
    """Without W nothing fires, but for triggers that need no W."""

    def test_nothing_fires(self) -> None:
        budget = make_budget(None, 0, Policy())
        assert not trigger_fires(budget, 10**9, 10**9)
        assert "context_window" in budget.problem
        assert budget.prompt_limit_tokens is None

    def test_a_fraction_of_nothing_is_no_trigger(self) -> None:
        policy = Policy(triggers=(Measure(FRACTION, 500_000),))
        assert not make_budget(None, 0, policy).valid

    def test_tokens_are_t_and_r_is_a_fifth(self) -> None:
        budget = make_budget(None, 8_192, Policy(triggers=(Measure(TOKENS, 20_000),)))
        assert budget.valid
        assert (budget.trigger_tokens, budget.retain_tokens) == (20_000, 4_000)

    def test_messages_give_t_when_they_fire(self) -> None:
        budget = make_budget(None, 0, Policy(triggers=(Measure(MESSAGES, 40),)))
        assert trigger_fires(budget, 7_000, 40)
        assert not trigger_fires(budget, 7_000, 39)
        fired = fired_at(budget, 7_000)
        assert (fired.trigger_tokens, fired.retain_tokens) == (7_000, 1_400)

    @pytest.mark.parametrize(
        ("policy", "retain", "messages"),
        [
            (Policy(retain_tokens=900), 900, None),
            (Policy(keep=Measure(TOKENS, 800)), 800, None),
            (Policy(keep=Measure(MESSAGES, 6)), 0, 6),
            (Policy(keep=Measure(FRACTION, 100_000)), 4_000, None),
        ],
    )
    def test_retention_is_what_was_asked_for(
        self, policy: Policy, retain: int, messages: int | None
    ) -> None:
        """A fraction of an unknown window says nothing: a fifth of T stays."""
        budget = make_budget(None, 0, replace(policy, triggers=(Measure(TOKENS, 20_000),)))
        assert (budget.retain_tokens, budget.keep_messages) == (retain, messages)


def test_keep_replaces_r() -> None:
    def kept(keep: Measure) -> tuple[int | None, int | None]:
        budget = make_budget(100_000, 0, Policy(headroom_tokens=0, keep=keep))
        return budget.retain_tokens, budget.keep_messages

    assert kept(Measure(TOKENS, 3_000)) == (3_000, None)
    assert kept(Measure(FRACTION, 300_000)) == (30_000, None)
    assert kept(Measure(MESSAGES, 20)) == (0, 20)


@pytest.mark.parametrize(
    ("params", "operator", "expected"),
    [
        ({"max_completion_tokens": 5, "max_tokens": 9}, 7, 5),
        ({"max_tokens": 9}, 7, 9),
        ({}, 7, 7),
        ({}, None, 0),
        ({"max_completion_tokens": 0, "max_tokens": 9}, 7, 0),
        ({"max_completion_tokens": None, "max_tokens": 9}, 7, 9),
        ({"max_tokens": True}, 7, 7),
        ({"max_tokens": -1}, 7, 7),
        ({"max_tokens": "4096"}, 7, 7),
        ({"max_tokens": 4096.0}, 7, 4096),
        ({"max_tokens": 4096.5}, 7, 7),
        ({"max_tokens": float("nan")}, None, 0),
        ({"max_tokens": float("inf")}, None, 0),
        ({"max_tokens": [1]}, None, 0),
        ({"max_tokens": 10**30}, None, MAX_TOKENS),
    ],
)
def test_the_output_reserve_is_what_the_request_asks_for(
    params: dict[str, Any], operator: int | None, expected: int
) -> None:
    assert output_reserve(params, operator) == expected


def test_a_request_for_endless_output_makes_the_budget_invalid_not_the_request() -> None:
    budget = make_budget(100_000, output_reserve({"max_tokens": 10**30}, None), Policy())
    assert not budget.valid


def test_token_counts_are_whole_and_not_negative() -> None:
    assert [token_count(v) for v in (0, 7, 7.0, -1, True, "7", None)] == [0, 7, 7, *[None] * 4]


@pytest.mark.parametrize(
    ("type", "value", "complaint"),
    [
        ("words", 5, "tokens, messages or fraction"),
        ("tokens", 0, "over 0"),
        ("messages", -3, "over 0"),
        ("tokens", True, "must be a number"),
        ("tokens", "5", "must be a number"),
        ("tokens", 5.5, "whole number"),
        ("fraction", 0, "at most 1"),
        ("fraction", 80, "at most 1"),
        ("fraction", float("nan"), "at most 1"),
    ],
)
def test_a_measure_that_means_nothing_is_refused_with_a_sentence(
    type: str, value: object, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        measure(type, value)


def test_measures_read_and_print_as_written() -> None:
    assert measure("tokens", 5.0) == Measure(TOKENS, 5)
    assert measure("tokens", 10**40).value == MAX_TOKENS
    assert str(measure("fraction", 0.7)) == "0.7 of the window"
    assert str(measure("messages", 12)) == "12 messages"


@pytest.mark.parametrize(
    ("policy", "window", "complaint"),
    [
        (
            Policy(retain_percent=80),
            None,
            "retain_percent = 80 is not below trigger_percent = 80: ",
        ),
        (Policy(trigger_percent=16), None, "retain_percent = 16"),
        (
            Policy(retain_tokens=9, triggers=(Measure(TOKENS, 9),)),
            None,
            "retain_tokens = 9 is not below the trigger of 9 tokens",
        ),
        (
            Policy(keep=Measure(MESSAGES, 40), triggers=(Measure(MESSAGES, 40),)),
            None,
            "keep = 40 messages",
        ),
        (Policy(keep=Measure(FRACTION, 800_000)), None, "keep = 0.8 of the window"),
        (Policy(retain_tokens=80_000), 100_000, "not below trigger_percent = 80"),
        (
            Policy(keep=Measure(FRACTION, 500_000), triggers=(Measure(TOKENS, 50_000),)),
            100_000,
            "the trigger of 50000 tokens",
        ),
    ],
)
def test_contradictions_are_named(policy: Policy, window: int | None, complaint: str) -> None:
    assert complaint in contradictions(policy, window)[0]


@pytest.mark.parametrize(
    ("policy", "window"),
    [
        (Policy(), None),
        (Policy(retain_percent=79), 1_000),
        (Policy(retain_tokens=79_999), 100_000),
        (Policy(retain_tokens=80_000), None),
        (Policy(keep=Measure(MESSAGES, 39), triggers=(Measure(MESSAGES, 40),)), 100),
        (Policy(keep=Measure(MESSAGES, 39), triggers=(Measure(TOKENS, 4),)), 100),
        (Policy(triggers=(Measure(TOKENS, 1_000),)), 100_000),
    ],
)
def test_what_some_request_can_satisfy_is_no_contradiction(
    policy: Policy, window: int | None
) -> None:
    assert contradictions(policy, window) == ()
