"""A pressure summary is made only when there is enough new to make it worth a call."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.backoff import backoff_after, latest_backoff, why_not
from proxy.core.compaction import (
    MIN_NEW_TOKENS,
    Aim,
    Reason,
    View,
    Words,
    floor_tokens,
    plan_prune,
    plan_range,
    with_summary,
)
from proxy.core.replacements import Replacement, ReplacementKind
from tests.core.views import aim, stored, view_of
from tests.strategies import assistant, calls, result, user

WORDS = Words()


def history(turns: int, size: int = 100) -> list[dict[str, Any]]:
    return [
        message
        for number in range(turns)
        for message in (user(f"{number}".ljust(size, ".")), assistant(f"{number}".ljust(size, ",")))
    ]


def reason(view: View, wanted: Aim) -> Reason | None:
    return why_not(view, wanted, WORDS, plan_range(view, wanted, WORDS, len))


def remembered(view: View, wanted: Aim, earlier: Replacement | None = None) -> Replacement:
    new = backoff_after(view, wanted, WORDS, end=1, earlier=earlier)
    assert new is not None
    return stored(new, 10 if earlier is None else earlier.order + 1)


def test_enough_new_material_is_worth_a_call() -> None:
    assert reason(view_of(history(30)), aim()) is None


def test_without_a_trigger_there_is_nothing_to_hold_back() -> None:
    assert reason(view_of(history(1)), aim(trigger_tokens=None)) is None
    assert (
        backoff_after(view_of(history(1)), aim(trigger_tokens=None), WORDS, end=1, earlier=None)
        is None
    )


def test_a_floor_over_the_trigger_is_never_summarised_under_pressure() -> None:
    view = view_of(history(30), fixed_tokens=4000)
    assert reason(view, aim()) is Reason.FLOOR_OVER_TRIGGER
    floor = floor_tokens(view_of(history(30)), aim(), WORDS)
    assert reason(view_of(history(30)), aim(trigger_tokens=floor)) is Reason.FLOOR_OVER_TRIGGER
    assert reason(view_of(history(30)), aim(trigger_tokens=floor + 1)) is None


def test_a_quarter_of_the_room_must_be_new() -> None:
    view = view_of(history(30))
    plan = plan_range(view, aim(), WORDS, len)
    assert plan is not None
    needed = (4000 - floor_tokens(view, aim(), WORDS)) // 4
    assert needed > MIN_NEW_TOKENS
    assert why_not(view, aim(), WORDS, replace(plan, new_tokens=needed)) is None
    assert (
        why_not(view, aim(), WORDS, replace(plan, new_tokens=needed - 1)) is Reason.NOT_ENOUGH_NEW
    )
    assert why_not(view, aim(), WORDS, None) is Reason.NOT_ENOUGH_NEW


def test_however_little_room_there_is_256_tokens_must_be_new() -> None:
    view = view_of(history(30))
    plan = plan_range(view, aim(), WORDS, len)
    assert plan is not None
    tight = aim(trigger_tokens=floor_tokens(view, aim(), WORDS) + 1)
    assert why_not(view, tight, WORDS, replace(plan, new_tokens=256)) is None
    assert why_not(view, tight, WORDS, replace(plan, new_tokens=255)) is Reason.NOT_ENOUGH_NEW


def test_a_revoked_range_is_not_summarised_again_until_it_grew() -> None:
    view = view_of(history(30))
    plan = plan_range(view, aim(), WORDS, len)
    assert plan is not None
    summary = stored(with_summary(view, plan, WORDS, "s"), revoked=True)
    assert reason(view_of(history(30), summary), aim()) is Reason.NOT_ENOUGH_NEW
    assert reason(view_of(history(31), summary), aim()) is None


def test_a_revoked_prune_holds_no_summary_back() -> None:
    longer = [*history(30), calls("a"), result("a", "x" * 9000), user("q" * 400)]
    (prune,) = plan_prune(view_of(longer), newest_too=False)
    view = view_of(longer, stored(prune, revoked=True))
    plan = plan_range(view, aim(), WORDS, len)
    assert plan is not None
    assert why_not(view, aim(), WORDS, replace(plan, end=prune.end)) is None


# Backing off.


def test_a_backoff_holds_until_enough_more_came() -> None:
    view = view_of(history(30))
    backoff = remembered(view, aim())
    assert backoff.kind is ReplacementKind.BACKOFF
    assert backoff.end_fingerprint == view.chain[0]
    room = (4000 - floor_tokens(view, aim(), WORDS)) // 4
    assert backoff.payload == {"total_tokens": 6000, "needs_tokens": room, "times": 1}
    for more, expected in ((room - 1, Reason.BACKING_OFF), (room, None)):
        grown = replace(view_of(history(30), backoff), total_tokens=6000 + more)
        assert reason(grown, aim()) is expected


def test_each_time_twice_as_much_must_come() -> None:
    view = view_of(history(30))
    first = remembered(view, aim())
    second = remembered(view, aim(), first)
    third = remembered(view, aim(), second)
    needs = [row.payload["needs_tokens"] for row in (first, second, third)]
    assert needs == [needs[0], 2 * needs[0], 4 * needs[0]]
    assert third.payload["times"] == 3


def test_the_least_wait_is_256_tokens() -> None:
    view = view_of(history(30), fixed_tokens=9000)
    assert remembered(view, aim()).payload["needs_tokens"] == MIN_NEW_TOKENS


def test_the_newest_backoff_counts_until_a_range_lands_after_it() -> None:
    view = view_of(history(30))
    first = remembered(view, aim())
    second = remembered(view, aim(), first)
    plan = plan_range(view, aim(), WORDS, len)
    assert plan is not None
    new = with_summary(view, plan, WORDS, "s")
    assert latest_backoff([]) is None
    assert latest_backoff([second, first]) == second
    assert latest_backoff([first, second, stored(new, 99)]) is None
    assert latest_backoff([first, stored(new, 5)]) == first
    prune = replace(stored(new, 99), kind=ReplacementKind.PRUNE)
    assert latest_backoff([first, prune]) == first


def test_a_backoff_of_an_edited_history_is_forgotten() -> None:
    backoff = remembered(view_of(history(30)), aim())
    edited = [user("another start"), *history(30)[1:]]
    assert view_of(edited, backoff).applied == ()


@given(st.integers(1, 60))
def test_waits_stay_finite(times: int) -> None:
    view = view_of(history(30))
    row = remembered(view, aim())
    earlier = replace(row, payload={**row.payload, "times": times})
    again = remembered(view, aim(), earlier)
    assert again.payload["times"] == times + 1
    assert again.payload["needs_tokens"] <= row.payload["needs_tokens"] * 2**16
