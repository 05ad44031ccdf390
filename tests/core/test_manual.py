"""What a call may ask for by hand: every bad option is refused with 422 and named."""

from typing import Any

import pytest

from proxy.core.budget import Budget, Measure, MeasureType
from proxy.core.compaction import View
from proxy.core.errors import InvalidRequest
from proxy.core.manual import (
    Options,
    Region,
    Result,
    Untouched,
    aim_for,
    check_region,
    options_as_json,
    read_options,
)
from proxy.core.messages import Message
from proxy.core.ranges import pair
from proxy.core.replacements import Replacement, ReplacementKind
from proxy.core.surface import fold

FRAME: dict[str, Any] = {
    "first": None,
    "rules": [],
    "left_out": 0,
    "kept": [],
    "merge": False,
    "fence": "=====",
}


def call(name: str) -> Message:
    function = {"name": "f", "arguments": "{}"}
    return {"role": "assistant", "tool_calls": [{"id": name, "function": function}]}


def result(name: str) -> Message:
    return {"role": "tool", "tool_call_id": name, "content": "done"}


def said(role: str, text: str = "words") -> Message:
    return {"role": role, "content": text}


HISTORY = (
    said("user"),
    said("assistant"),
    said("user"),
    call("a"),
    result("a"),
    said("assistant"),
    said("user"),
    said("assistant"),
)


def view(history: tuple[Message, ...] = HISTORY, *ranges: tuple[int, int]) -> View:
    chain = tuple(b"%d" % n for n in range(len(history)))
    applied = tuple(
        Replacement(
            f"{start}-{end}",
            order,
            ReplacementKind.SUMMARY,
            start,
            end,
            chain[end - 1],
            {**FRAME, "summary": "so far"},
        )
        for order, (start, end) in enumerate(ranges)
    )
    pairing = pair(history)
    surface = fold(history, pairing, applied)
    items = tuple(10 for _ in surface.items)
    return View(
        history, pairing, chain, applied, surface, items, tuple(10 for _ in history), 5, 100
    )


def test_without_options_it_compacts_all_but_the_newest() -> None:
    assert read_options(None) == read_options({}) == Options()
    assert read_options({"force": None, "keep": None, "region": None}) == Options()


def test_every_option_is_read_and_written_again() -> None:
    options = read_options(
        {
            "force": False,
            "keep": {"type": "fraction", "value": 0.25},
            "summarizer": "small",
            "region": {"start": 2, "end": 5},
            "return": "messages",
        }
    )
    assert options == Options(
        False, Measure(MeasureType.FRACTION, 250_000), "small", Region(2, 5), True
    )
    again = read_options(options_as_json(options))
    assert (again.force, again.keep, again.summarizer, again.region) == (
        options.force,
        options.keep,
        options.summarizer,
        options.region,
    )
    messages = Options(keep=Measure(MeasureType.MESSAGES, 4))
    assert read_options(options_as_json(messages)) == messages


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ([], None),
        ("now", None),
        ({"forced": True}, "forced"),
        ({"force": "yes"}, "force"),
        ({"return": "surface"}, "return"),
        ({"keep": 5}, "keep"),
        ({"keep": {"type": "tokens"}}, "keep"),
        ({"keep": {"type": "tokens", "value": 0}}, "keep"),
        ({"keep": {"type": "tokens", "value": -1}}, "keep"),
        ({"keep": {"type": "messages", "value": 1.5}}, "keep"),
        ({"keep": {"type": "fraction", "value": 0}}, "keep"),
        ({"keep": {"type": "fraction", "value": 2}}, "keep"),
        ({"keep": {"type": "words", "value": 2}}, "keep"),
        ({"keep": {"type": "tokens", "value": True}}, "keep"),
        ({"summarizer": ""}, "summarizer"),
        ({"summarizer": {"model": "m"}}, "summarizer"),
        ({"region": [1, 2]}, "region"),
        ({"region": {"start": 1}}, "region"),
        ({"region": {"start": 1, "end": 1}}, "region"),
        ({"region": {"start": 3, "end": 1}}, "region"),
        ({"region": {"start": -1, "end": 1}}, "region"),
        ({"region": {"start": True, "end": 2}}, "region"),
        ({"region": {"start": "0", "end": 2}}, "region"),
    ],
)
def test_a_bad_option_is_named(value: Any, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_options(value)
    assert (refused.value.status, refused.value.code) == (422, "invalid_request")
    assert refused.value.param == param


def test_keep_replaces_r_for_this_call() -> None:
    budget = Budget(1000, 0, 100, None, trigger_tokens=800)
    assert aim_for(budget, view(), Options()).retain_tokens == 0
    by_tokens = aim_for(budget, view(), read_options({"keep": {"type": "tokens", "value": 70}}))
    assert by_tokens.tail_tokens() == 70
    by_share = aim_for(budget, view(), read_options({"keep": {"type": "fraction", "value": 0.5}}))
    assert by_share.tail_tokens() == 500
    by_count = aim_for(budget, view(), read_options({"keep": {"type": "messages", "value": 3}}))
    assert by_count.keep_messages == 3
    unknown = Budget(None, 0, None, None, trigger_tokens=800)
    with pytest.raises(InvalidRequest, match="unknown"):
        aim_for(unknown, view(), read_options({"keep": {"type": "fraction", "value": 0.5}}))


@pytest.mark.parametrize(("start", "end"), [(0, 2), (1, 3), (3, 5), (0, 7)])
def test_a_region_between_units_may_be_summarised(start: int, end: int) -> None:
    check_region(view(), Region(start, end))


@pytest.mark.parametrize(
    ("start", "end", "why"),
    [
        (0, 9, "8 messages"),
        (0, 4, "end = 4"),
        (4, 6, "start = 4"),
        (6, 8, "always stay"),
    ],
)
def test_a_bad_region_is_refused(start: int, end: int, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        check_region(view(), Region(start, end))
    assert refused.value.param == "region"


def test_a_region_with_an_open_call_is_refused() -> None:
    history = (said("user"), said("assistant"), call("a"), said("user"))
    with pytest.raises(InvalidRequest, match=r"waits|separates|stay"):
        check_region(view(history), Region(0, 3))


def test_a_region_and_a_summary_are_nested_or_disjoint() -> None:
    summarised = view(HISTORY, (1, 3))
    for region in (Region(0, 1), Region(0, 3), Region(1, 3), Region(0, 6), Region(3, 6)):
        check_region(summarised, region)
    for region in (Region(0, 2), Region(2, 6)):
        with pytest.raises(InvalidRequest, match=r"1\.\.3"):
            check_region(summarised, region)


def test_the_answer_has_the_fields_that_the_design_names() -> None:
    landed = Result("c", None, 5, 3, "id", 2, 100, 40).as_json()
    assert landed == {
        "conversation_id": "c",
        "compacted": True,
        "reason": None,
        "removed_message_count": 5,
        "preserved_message_count": 3,
        "summary_updated": True,
        "checkpoint_id": "id",
        "generation": 2,
        "tokens_before": 100,
        "total_tokens": 40,
    }
    kept = Result("c", Untouched.NOT_ENOUGH_MESSAGES, 0, 8, None, 0, 100, 100).as_json()
    assert (kept["compacted"], kept["reason"]) == (False, "not_enough_messages")
