"""Cuts fall only between units, and units follow from pairing by position."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.messages import Message, head_length, is_result, role_of, tool_calls_of
from proxy.core.ranges import Answer, Pairing, PricedUnit, Unit, pair, retained_cut
from tests.strategies import (
    any_histories,
    assistant,
    calls,
    conversations,
    function_call,
    function_result,
    histories,
    result,
    user,
)

CONVERSATIONS = Path(__file__).parents[3] / "shared" / "conversations"


def spans(history: Sequence[Message]) -> list[tuple[int, int]]:
    return [(unit.start, unit.end) for unit in pair(history).units]


def answered(history: Sequence[Message]) -> dict[int, tuple[int, int]]:
    return {p: (a.call_position, a.call_index) for p, a in pair(history).answers.items()}


# The worked table of design section 8: u user, aN assistant with N calls, r result.


def written(notation: str) -> list[dict[str, Any]]:
    """`u a2 r r` as messages; results answer the calls before them in order."""
    history: list[dict[str, Any]] = []
    waiting: list[str] = []
    for position, word in enumerate(notation.split()):
        if word == "u":
            history.append(user())
        elif word == "r":
            history.append(result(waiting.pop(0)))
        else:
            waiting = [f"call_{position}_{index}" for index in range(int(word[1:]))]
            history.append(calls(*waiting))
    return history


def priced(history: Sequence[Message], prices: Sequence[int]) -> list[PricedUnit]:
    return [
        PricedUnit(u.start, u.end, sum(prices[u.start : u.end]), u.end - u.start, u.open)
        for u in pair(history).units
    ]


TENS = (10,) * 8


@pytest.mark.parametrize(
    ("notation", "prices", "retain_tokens", "cut"),
    [
        ("u u u u", (100, 50, 30, 20), 60, 1),
        ("u u u u", (100, 50, 30, 20), 50, 2),
        ("u u u u", (100, 50, 30, 20), 0, 3),
        ("u u u u", (100, 50, 30, 20), 200, 0),
        ("u a1 r u a1 r", TENS, 0, 4),
        ("u a1 r u a1 r", TENS, 25, 3),
        ("u a1 r u a1 r", TENS, 45, 1),
        ("u a2 r r u", TENS, 15, 1),
        ("u a2 r r u", TENS, 0, 4),
        ("a1 r", TENS, 0, 0),
        ("u a1 r a1", TENS, 0, 3),
    ],
)
def test_the_worked_table(
    notation: str, prices: tuple[int, ...], retain_tokens: int, cut: int
) -> None:
    """`cut` messages are replaced: "0..1" in the table is the range [0, 2)."""
    assert retained_cut(priced(written(notation), prices), retain_tokens) == cut


# Pairing, one irregularity at a time.


def test_a_call_and_its_results_are_one_unit() -> None:
    history = [user(), calls("a", "b"), result("a"), result("b"), assistant()]
    assert spans(history) == [(0, 1), (1, 4), (4, 5)]
    assert pair(history).cuts() == (0, 1, 4, 5)
    assert pair(history).unanswered == ()


def test_an_empty_history_has_one_cut() -> None:
    assert pair([]) == Pairing({}, (), ())
    assert pair([]).cuts() == (0,)


def test_one_id_in_every_turn_pairs_each_turn_with_itself() -> None:
    history = [calls("x"), result("x"), user(), calls("x"), result("x"), calls("x"), result("x")]
    assert answered(history) == {1: (0, 0), 4: (3, 0), 6: (5, 0)}
    assert spans(history) == [(0, 2), (2, 3), (3, 5), (5, 7)]


def test_one_id_twice_in_a_message_is_answered_in_order() -> None:
    history = [calls("x", "x"), result("x"), result("x"), result("x")]
    assert answered(history) == {1: (0, 0), 2: (0, 1)}
    assert spans(history) == [(0, 4)]


def test_answers_in_another_order() -> None:
    """R015."""
    history = [calls("a", "b", "c"), result("c"), result("a"), result("b"), user()]
    assert answered(history) == {1: (0, 2), 2: (0, 0), 3: (0, 1)}
    assert spans(history) == [(0, 4), (4, 5)]


def test_results_interleaved_across_adjacent_assistant_messages() -> None:
    history = [calls("a"), calls("b"), result("b"), result("a"), user()]
    assert answered(history) == {2: (1, 0), 3: (0, 0)}
    assert spans(history) == [(0, 4), (4, 5)]


def test_adjacent_assistant_messages_that_share_an_id_are_answered_in_order() -> None:
    history = [calls("x"), calls("x"), result("x"), result("x")]
    assert answered(history) == {2: (0, 0), 3: (1, 0)}
    assert spans(history) == [(0, 4)]


def test_a_user_who_interrupts_a_call_belongs_to_its_unit() -> None:
    history = [user(), calls("a"), user("wait"), result("a"), user()]
    assert spans(history) == [(0, 1), (1, 4), (4, 5)]


def test_a_system_message_between_call_and_result_belongs_to_the_unit() -> None:
    history = [calls("a"), {"role": "system", "content": "now"}, result("a")]
    assert spans(history) == [(0, 3)]


def test_a_call_without_result_is_open_while_it_may_still_be_answered() -> None:
    assert pair([user(), calls("a")]).units == (Unit(0, 1), Unit(1, 2, open=True))
    interrupted = [user(), calls("a", "b"), result("a"), user("wait")]
    assert pair(interrupted).units == (Unit(0, 1), Unit(1, 3, open=True), Unit(3, 4))
    assert pair(interrupted).unanswered == ((1, 1),)


def test_a_call_is_abandoned_by_the_next_assistant_message() -> None:
    for later in (assistant(), calls("b")):
        first, *_ = pair([calls("a"), user("never mind"), later, result("b")]).units
        assert first == Unit(0, 1)


def test_calls_split_over_adjacent_messages_are_open_together() -> None:
    units = pair([user(), calls("a"), calls("b"), result("b")]).units
    assert [unit.open for unit in units] == [False, True, False]
    assert retained_cut([PricedUnit(u.start, u.end, 10, 1, u.open) for u in units], 0) == 1


def test_an_abandoned_call_is_not_answered_after_a_plain_assistant_message() -> None:
    history = [calls("a"), user(), assistant(), user(), result("a"), user()]
    assert answered(history) == {}
    assert spans(history) == [(0, 1), (1, 2), (2, 3), (3, 5), (5, 6)]


def test_a_late_result_still_finds_its_call_behind_other_calls() -> None:
    history = [calls("a"), user(), calls("b"), result("b"), result("a"), user()]
    assert answered(history) == {3: (2, 0), 4: (0, 0)}
    assert spans(history) == [(0, 5), (5, 6)]


def test_a_result_without_a_call_belongs_to_the_unit_before_it() -> None:
    history = [user(), result("lost"), result("lost"), assistant()]
    assert spans(history) == [(0, 3), (3, 4)]
    assert spans([result("lost"), user()]) == [(0, 1), (1, 2)]
    answered_twice = [calls("a"), result("a"), result("a"), user()]
    assert spans(answered_twice) == [(0, 3), (3, 4)]


def test_legacy_calls_pair_by_function_name() -> None:
    history = [function_call("f"), function_result("f"), function_call("f"), function_result("f")]
    assert answered(history) == {1: (0, 0), 3: (2, 0)}
    assert spans(history) == [(0, 2), (2, 4)]
    assert spans([function_call("f"), function_result("g"), user()]) == [(0, 2), (2, 3)]
    assert pair([function_call("f"), function_result("g")]).answers == {}


def test_a_legacy_result_without_a_name_answers_the_call_that_waits() -> None:
    assert answered([function_call("f"), function_result(None)]) == {1: (0, 0)}


def test_a_tool_result_does_not_answer_a_legacy_call_nor_the_other_way_round() -> None:
    assert pair([function_call("f"), result("f")]).answers == {}
    assert pair([calls("f", name="f"), function_result("f")]).answers == {}


def test_results_without_an_id_answer_the_calls_of_the_newest_turn_in_order() -> None:
    history = [calls("a", "b"), result(None), result(None)]
    assert answered(history) == {1: (0, 0), 2: (0, 1)}
    abandoned = [calls("a"), user(), calls("b"), result(None), calls("c"), result(None)]
    assert answered(abandoned) == {3: (2, 0), 5: (4, 0)}
    assert answered([calls(None), result(None)]) == {1: (0, 0)}


def test_a_name_that_is_no_string_raises_nothing() -> None:
    history = [calls("a"), {"role": "tool", "tool_call_id": ["a"], "content": "x"}]
    assert answered(history) == {1: (0, 0)}
    history = [function_call("f"), {"role": "function", "name": ["f"], "content": "x"}]
    assert answered(history) == {1: (0, 0)}


def test_the_distance_counts_call_bearing_messages_between() -> None:
    answers = pair([calls("a"), calls("b"), result("a"), result("b")]).answers
    assert answers == {2: Answer(0, 0, 1), 3: Answer(1, 0, 0)}


# Laws.


@given(histories)
def test_units_partition_the_history(history: list[dict[str, Any]]) -> None:
    cuts = pair(history).cuts()
    assert cuts[0] == 0
    assert cuts[-1] == len(history)
    assert list(cuts) == sorted(set(cuts))
    assert all(u.start < u.end for u in pair(history).units)
    assert all(a.end == b.start for a, b in pairwise(pair(history).units))


@given(histories)
def test_no_unit_parts_a_result_from_its_call(history: list[dict[str, Any]]) -> None:
    pairing = pair(history)
    for start in pairing.cuts():
        for end in pairing.cuts():
            assert not pairing.strands(start, end)


@given(histories)
def test_an_answer_is_a_later_result_and_no_call_is_answered_twice(
    history: list[dict[str, Any]],
) -> None:
    pairing = pair(history)
    taken = [(a.call_position, a.call_index) for a in pairing.answers.values()]
    assert len(taken) == len(set(taken))
    for position, answer in pairing.answers.items():
        assert is_result(history[position])
        assert answer.call_position < position
        assert answer.call_index < len(tool_calls_of(history[answer.call_position]))
        between = history[answer.call_position + 1 : position]
        assert not any(role_of(m) == "assistant" and not tool_calls_of(m) for m in between)
    asked = {(p, i) for p, m in enumerate(history) for i, _ in enumerate(tool_calls_of(m))}
    assert set(taken) | set(pairing.unanswered) == asked
    assert not set(taken) & set(pairing.unanswered)


@given(histories, st.data())
def test_pairing_is_causal(history: list[dict[str, Any]], data: st.DataObject) -> None:
    """The pairs of a prefix are the pairs of the whole whose result lies in the prefix."""
    length = data.draw(st.integers(0, len(history)))
    whole = pair(history).answers
    assert pair(history[:length]).answers == {p: a for p, a in whole.items() if p < length}


@given(histories, st.data())
def test_a_cut_stays_a_cut_unless_a_late_result_reaches_back(
    history: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Appending moves no cut, but for results that answer a call of the prefix and orphans that
    stand right at its end."""
    length = data.draw(st.integers(0, len(history)))
    whole = pair(history)
    reached = min(
        (a.call_position for p, a in whole.answers.items() if p >= length > a.call_position),
        default=length,
    )
    before = [cut for cut in pair(history[:length]).cuts() if cut < length and cut <= reached]
    assert set(before) <= set(whole.cuts())


@given(conversations())
def test_an_open_unit_waits_in_the_last_block_of_calls(history: list[dict[str, Any]]) -> None:
    for unit in pair(history).units:
        if unit.open:
            later = history[unit.start :]
            assert all(tool_calls_of(m) for m in later if role_of(m) == "assistant")


@given(histories, st.integers(-5, 200), st.none() | st.integers(1, 6))
def test_the_retained_tail_is_the_smallest_that_is_enough(
    history: list[dict[str, Any]], retain_tokens: int, keep_messages: int | None
) -> None:
    units = priced(history, [7 * (p % 5) for p in range(len(history))])
    cut = retained_cut(units, retain_tokens, keep_messages=keep_messages)
    assert cut in pair(history).cuts()
    assert not any(unit.open and unit.start < cut for unit in units)
    tail = [unit for unit in units if unit.start >= cut]
    assert bool(tail) == bool(units)
    if cut and not any(unit.open for unit in units):
        held = [u.tokens if keep_messages is None else u.messages for u in tail]
        wanted = retain_tokens if keep_messages is None else keep_messages
        assert sum(held) >= wanted
        assert len(held) == 1 or sum(held[1:]) < wanted


def test_keep_counts_messages_when_given() -> None:
    units = priced(written("u a2 r r u u"), TENS)
    assert [retained_cut(units, 999, keep_messages=n) for n in (1, 2, 3, 5, 6)] == [5, 4, 1, 1, 0]


def test_nothing_before_an_open_unit_hides_it() -> None:
    units = [PricedUnit(0, 1, 10), PricedUnit(1, 2, 10, open=True), PricedUnit(2, 3, 10)]
    assert retained_cut(units, 0) == 1
    assert retained_cut(units, 25) == 0


@pytest.mark.parametrize(
    "history",
    [
        [calls(*[None] * 12_000), *[result(None)] * 12_000],
        [calls(*["x"] * 12_000), *[result("x")] * 12_000],
        [message for n in range(12_000) for message in (calls(f"c{n}"), user(), result(None))],
        [calls(f"c{n}") for n in range(12_000)] + [result(f"c{n}") for n in range(12_000)],
        [message for n in range(12_000) for message in (calls("x"), user())],
        [function_call("f") for _ in range(12_000)] + [function_result(None)] * 12_000,
    ],
    ids=["no-ids", "one-id", "id-less", "adjacent", "abandoned", "legacy"],
)
def test_pairing_takes_time_in_proportion_to_the_history(history: list[dict[str, Any]]) -> None:
    started = perf_counter()
    pair(history)
    assert perf_counter() - started < 4


def test_the_saved_conversations_have_no_split_pair() -> None:
    """Every result that a strict reading pairs (by id, in the group before it) shares a unit with
    its call, in real histories with repeated, missing and orphaned ids."""
    if not CONVERSATIONS.is_dir():
        pytest.skip("the saved conversations are not part of the repository")
    for path in sorted(CONVERSATIONS.glob("*.json")):
        messages = json.loads(path.read_text())["request"]["messages"]
        history = messages[head_length(messages) :]
        units = pair(history).units
        unit_of = {p: unit for unit in units for p in range(unit.start, unit.end)}
        group: int | None = None
        for position, message in enumerate(history):
            if tool_calls_of(message):
                group = position
            elif message["role"] != "tool":
                group = None
            elif group is not None and message["tool_call_id"] in {
                call.id for call in tool_calls_of(history[group])
            }:
                assert unit_of[group] == unit_of[position], f"{path.name} {position}"
        open_units = [unit for unit in units if unit.open]
        assert not open_units or open_units[0].start >= len(history) - 3, path.name


@given(any_histories)
def test_pairing_does_not_look_at_text(history: list[dict[str, Any]]) -> None:
    other = [{**message, "content": "something else"} for message in history]
    assert pair(other) == pair(history)
