"""What is planned keeps what must stay, takes only whole units, and knows what cannot go."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.compaction import (
    FRAME_TOKENS,
    MIN_SUMMARY_TOKENS,
    SHRUNK_CHARS,
    Cause,
    Words,
    as_shrink,
    earlier_summary,
    edit,
    first_user,
    floor_tokens,
    newest_user,
    plan_prune,
    plan_range,
    plan_region,
    shrink_candidates,
    shrink_chars,
    told_from,
    verbatim_positions,
    with_digest,
    with_summary,
)
from proxy.core.messages import text_of
from proxy.core.pruning import PRUNE_HEAD, PRUNE_OVER, PRUNE_TAIL, shrink_to
from proxy.core.replacements import Replacement, ReplacementKind
from proxy.core.surface import RANGE_KINDS
from tests.core.views import aim, price, stored, view_of
from tests.strategies import (
    PIXEL,
    assistant,
    calls,
    conversations,
    histories,
    replacement_sets,
    result,
    user,
)
from tests.validator import keeps_newest_user, violations

WORDS = Words()
IMAGE = {"type": "image_url", "image_url": {"url": PIXEL}}
LONG = "x" * 20_000


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def summarised(history: list[dict[str, Any]], end: int, text: str = "summary") -> Replacement:
    """A summary of the first `end` messages, as planned by hand."""
    view = view_of(history)
    tail = sum(view.history_tokens[end:])
    plan = plan_range(view, aim(Cause.MANUAL), WORDS, len, tail_tokens=tail)
    assert plan is not None
    assert plan.end == end
    return stored(with_summary(view, plan, WORDS, text))


# Which messages stay word for word.


def test_identical_instructions_stay_once_the_last() -> None:
    history = [system("a"), user("u"), system("b"), system("a"), user("v"), assistant()]
    view = view_of(history)
    assert verbatim_positions(view, 4, 1000) == ((2, 3), ())


def test_instructions_over_the_cap_are_left_out_oldest_first() -> None:
    history = [user("u"), system("a" * 50), system("b" * 50), system("c" * 50), user(), assistant()]
    assert verbatim_positions(view_of(history), 4, 100) == ((2, 3), (1,))
    assert verbatim_positions(view_of(history), 4, 99) == ((3,), (1, 2))
    assert verbatim_positions(view_of(history), 4, 0) == ((), (1, 2, 3))


def test_the_newest_real_user_message_stays_when_the_cut_left_it_behind() -> None:
    run = [user("do it"), calls("a"), result("a"), calls("b"), result("b")]
    assert verbatim_positions(view_of(run), 3, 0) == ((0,), ())
    blank = [user("do it"), user("  "), calls("a"), result("a"), assistant()]
    assert verbatim_positions(view_of(blank), 4, 0) == ((0,), ())
    followed = [user("do it"), assistant(), user("more")]
    assert verbatim_positions(view_of(followed), 2, 0) == ((), ())


def test_developer_messages_are_instructions_too() -> None:
    history = [user(), {"role": "developer", "content": "d"}, assistant(), user("v")]
    assert verbatim_positions(view_of(history), 3, 10) == ((1,), ())


def test_first_and_newest_user_messages_have_something_in_them() -> None:
    history = [user(""), assistant(), user([IMAGE]), user("x"), user(" "), assistant()]
    assert (first_user(history), newest_user(history)) == (2, 3)
    assert first_user([]) is newest_user([assistant()]) is None


# The floor.


def test_the_floor_is_what_no_compaction_can_remove() -> None:
    history = [
        user("f" * 100),
        system("s" * 40),
        assistant("a" * 500),
        user("q" * 30),
        assistant("z" * 70),
    ]
    view = view_of(history, fixed_tokens=1000)
    # head and tools, newest unit, instruction, newest user, first user, frame
    assert floor_tokens(view, aim(), WORDS) == 1000 + 70 + 40 + 30 + 100 + FRAME_TOKENS


def test_the_first_message_counts_up_to_its_share() -> None:
    view = view_of([user("f" * 1000), assistant("a"), user("q")])
    assert floor_tokens(view, aim(), WORDS) == 1 + 4000 // 16 + FRAME_TOKENS
    assert floor_tokens(view, aim(), Words(keep_first_tokens=9)) == 1 + 9 + FRAME_TOKENS
    assert floor_tokens(view, aim(share_tokens=-5000), WORDS) == 1 + FRAME_TOKENS


def test_where_nothing_can_be_cut_the_floor_is_everything() -> None:
    assert floor_tokens(view_of([], fixed_tokens=7), aim(), WORDS) == 7
    one = view_of([calls("a"), result("a", "x" * 50)], fixed_tokens=7)
    assert floor_tokens(one, aim(), WORDS) == 57
    open_first = view_of([calls("a", "b"), result("a", "x" * 50), user("wait")])
    assert floor_tokens(open_first, aim(), WORDS) == 54


def test_a_shrunk_floor_counts_oversized_results_of_the_tail_as_cut() -> None:
    history = [user("q"), assistant(), calls("a"), result("a", LONG)]
    whole = floor_tokens(view_of(history), aim(), WORDS)
    shrunk = floor_tokens(view_of(history), aim(), WORDS, shrunk=True)
    assert whole - shrunk == len(LONG) - SHRUNK_CHARS
    not_oversized = [*history[:3], result("a", "x" * PRUNE_OVER)]
    view = view_of(not_oversized)
    assert floor_tokens(view, aim(), WORDS) == floor_tokens(view, aim(), WORDS, shrunk=True)


def test_a_result_already_pruned_can_still_be_shrunk() -> None:
    history = [user("q"), assistant(), calls("a"), result("a", LONG)]
    (prune,) = plan_prune(view_of(history), newest_too=True)
    pruned = view_of(history, stored(prune))
    assert floor_tokens(pruned, aim(), WORDS, shrunk=True) <= floor_tokens(
        view_of(history), aim(), WORDS, shrunk=True
    )
    assert shrink_candidates(pruned) == (3,)


# The range.


def turns(count: int, size: int = 100) -> list[dict[str, Any]]:
    return [
        message
        for number in range(count)
        for message in (user(f"{number}".ljust(size, ".")), assistant(f"{number}".ljust(size, ",")))
    ]


def test_the_range_starts_at_the_head_and_leaves_the_retained_tail() -> None:
    history = turns(10)
    view = view_of(history)
    plan = plan_range(view, aim(), WORDS, len)
    assert plan is not None
    assert plan.end == 15
    assert plan.range_tokens == plan.new_tokens == 1500
    assert plan.end_fingerprint == view.chain[14]
    assert plan.summary_cap_tokens == min(8192, 4000 // 6, 1500 // 2)
    assert plan.kept == ()
    assert plan.dropped_instructions == 0
    assert plan.kept_words.first == {"position": 0, "head": 100, "tail": 0}


def test_what_stays_word_for_word_is_not_new_material() -> None:
    """A run of tool rounds behind one long request: only the rounds can be summarised."""
    rounds = [message for n in range(3) for message in (calls(f"c{n}"), result(f"c{n}", "x" * 100))]
    view = view_of([user("u" * 900), *rounds])
    plan = plan_range(view, aim(), WORDS, len, tail_tokens=0)
    assert plan is not None
    assert plan.kept == (0,)
    assert plan.range_tokens == 900 + 2 * 100
    assert plan.new_tokens == 2 * 100


def test_under_pressure_the_tail_is_at_most_a_quarter_of_the_share() -> None:
    history = turns(10)
    plan = plan_range(view_of(history), aim(retain_tokens=1500, share_tokens=2000), WORDS, len)
    assert plan is not None
    assert plan.end == 15
    manual = plan_range(
        view_of(history), aim(Cause.OVERFLOW, retain_tokens=1500, share_tokens=2000), WORDS, len
    )
    assert manual is not None
    assert manual.end == 5


def test_a_given_tail_overrules_retention() -> None:
    history = turns(10)
    for keep_messages in (None, 12):
        wanted = aim(keep_messages=keep_messages)
        plan = plan_range(view_of(history), wanted, WORDS, len, tail_tokens=0)
        assert plan is not None
        assert plan.end == 19
    kept = plan_range(view_of(history), aim(keep_messages=12), WORDS, len)
    assert kept is not None
    assert kept.end == 8


def test_an_earlier_summary_is_merged_into_the_next_range() -> None:
    history = turns(10)
    earlier = summarised(history, 6, "what was before")
    view = view_of(history, earlier)
    assert view.leading_end() == 6
    assert (earlier_summary(view), told_from(view)) == ("what was before", 6)
    plan = plan_range(view, aim(), WORDS, len)
    assert plan is not None
    assert plan.end == 15
    assert plan.new_tokens == 900
    frame = price(view.surface.items[0].message)
    assert plan.range_tokens == 900 + frame
    assert plan.kept_words.first is not None
    assert plan.kept_words.first["position"] == 0


def test_only_an_earlier_summary_left_to_replace_is_nothing() -> None:
    history = turns(10)
    view = view_of(history, summarised(history, 15))
    assert plan_range(view, aim(), WORDS, len) is None
    assert plan_range(view, aim(retain_tokens=900), WORDS, len) is None
    assert plan_range(view_of([]), aim(), WORDS, len) is None
    assert plan_range(view_of([user(LONG)]), aim(), WORDS, len) is None


def test_a_region_chosen_by_hand_takes_nothing_outside_it() -> None:
    history = [user("first"), system("outside"), *turns(4), system("inside"), *turns(4)]
    view = view_of(history)
    plan = plan_region(view, aim(Cause.MANUAL), WORDS, len, bounds=(2, 12))
    assert (plan.start, plan.end, plan.kept) == (2, 12, (10,))
    assert plan.range_tokens == sum(view.history_tokens[2:12])
    assert plan.new_tokens == plan.range_tokens - view.history_tokens[10]
    after = view_of(history, stored(with_summary(view, plan, WORDS, "s")))
    assert [item.position for item in after.surface.items[:4]] == [0, 1, None, 10]
    assert violations(history, [item.message for item in after.surface.items]) == []


def test_a_plan_says_how_many_instructions_found_no_room() -> None:
    history = [user(), *(system(f"{n}" * 300) for n in range(4)), *turns(5)]
    plan = plan_range(view_of(history), aim(), WORDS, len)
    assert plan is not None
    assert plan.kept == (4,)
    assert plan.dropped_instructions == 3


def test_the_summary_cap_has_a_least_value() -> None:
    history = [user("a"), assistant("b"), user("c")]
    plan = plan_range(view_of(history), aim(share_tokens=-10), WORDS, len, tail_tokens=0)
    assert plan is not None
    assert plan.summary_cap_tokens == MIN_SUMMARY_TOKENS
    assert plan.kept_words.first is None


def test_a_digest_tells_its_range_and_the_next_one_tells_it_again() -> None:
    history = turns(10)
    view = view_of(history)
    plan = plan_range(view, aim(), WORDS, len)
    assert plan is not None
    digest = stored(with_digest(view, plan, WORDS, len))
    assert digest.kind is ReplacementKind.DIGEST
    assert json.loads(json.dumps(digest.payload)) == digest.payload
    folded = view_of(history, digest)
    assert (earlier_summary(folded), told_from(folded)) == ("", 0)
    assert folded.total_tokens < view.total_tokens


def test_a_digest_behind_a_summary_keeps_the_summary() -> None:
    history = turns(12)
    view = view_of(history, summarised(history, 6, "what was before"))
    plan = plan_range(view, aim(), WORDS, len)
    assert plan is not None
    digest = stored(with_digest(view, plan, WORDS, len), 2)
    folded = view_of(history, *view.applied, digest)
    assert (earlier_summary(folded), told_from(folded)) == ("what was before", 6)
    assert "what was before" in text_of(folded.surface.items[0].message)


def test_nothing_of_the_clients_words_is_stored() -> None:
    history = [user("Always say please. secret-a"), system("secret-b"), *turns(5), user("secret-c")]
    view = view_of(history)
    plan = plan_range(view, aim(), WORDS, len, tail_tokens=0)
    assert plan is not None
    for new in (with_summary(view, plan, WORDS, "s"), with_digest(view, plan, WORDS, len)):
        assert "secret" not in json.dumps(new.payload)
    assert not plan_prune(view, newest_too=True)


@given(histories, st.data(), st.integers(0, 80), st.booleans())
def test_a_landed_plan_is_a_valid_surface(
    history: list[dict[str, Any]], data: st.DataObject, tail_tokens: int, merge: bool
) -> None:
    """On top of whatever was replaced before: no new violation, the newest user message there,
    the frame leading, and the same bytes for the same plan."""
    view = view_of(history, *data.draw(replacement_sets(history)))
    words = Words(role_alternation=merge)
    plan = plan_range(view, aim(), words, len, tail_tokens=tail_tokens)
    if plan is None:
        return
    assert plan == plan_range(view, aim(), words, len, tail_tokens=tail_tokens)
    for new in (with_summary(view, plan, words, "s"), with_digest(view, plan, words, len)):
        assert new.end_fingerprint == view.chain[new.end - 1]
        after = view_of(history, *view.applied, stored(new, 99))
        messages = [item.message for item in after.surface.items]
        assert violations(history, messages) == []
        leading = after.surface.leading()
        assert leading is not None
        assert leading.end >= plan.end
        if [r for r in after.surface.visible if r.kind in RANGE_KINDS] == [stored(new, 99)]:
            assert keeps_newest_user(history, messages)
    assert not any(unit.open for unit in view.units() if unit.end <= plan.end)


# Prunes and shrinks.


def pruned_positions(history: list[dict[str, Any]], *, newest_too: bool) -> list[int]:
    return [new.start for new in plan_prune(view_of(history), newest_too=newest_too)]


def test_the_newest_unit_is_pruned_only_when_asked() -> None:
    history = [calls("a"), result("a", LONG), calls("b"), result("b", LONG)]
    assert pruned_positions(history, newest_too=False) == [1]
    assert pruned_positions(history, newest_too=True) == [1, 3]
    assert pruned_positions([], newest_too=True) == []


def test_a_prune_takes_the_middle_and_is_not_planned_again() -> None:
    history = [calls("a"), result("a", LONG), assistant()]
    view = view_of(history)
    (new,) = plan_prune(view, newest_too=False)
    assert (new.kind, new.start, new.end) == (ReplacementKind.PRUNE, 1, 2)
    assert new.end_fingerprint == view.chain[1]
    after = view_of(history, stored(new))
    kept = text_of(after.surface.items[1].message)
    assert PRUNE_HEAD + PRUNE_TAIL < len(kept) < PRUNE_HEAD + PRUNE_TAIL + 200
    assert plan_prune(after, newest_too=True) == ()


def test_a_result_that_lost_its_image_can_still_be_pruned() -> None:
    """And the placeholder is not taken for a text of the tool's."""
    texts = [{"type": "text", "text": LONG}, IMAGE, {"type": "text", "text": LONG}]
    history = [calls("a"), result("a", texts), assistant()]
    view = view_of(history)
    gone = edit(view, 1, ReplacementKind.OFFLOAD, {"parts": [{"path": [1]}]})
    (new,) = plan_prune(view_of(history, stored(gone)), newest_too=False)
    assert [cut["part"] for cut in new.payload["cuts"]] == [0, 2]
    after = view_of(history, stored(gone), stored(new, 2))
    assert "image was attached here" in after.surface.items[1].message["content"][1]["text"]
    assert plan_prune(after, newest_too=False) == ()


def test_what_a_summary_hides_is_not_pruned() -> None:
    history = [calls("a"), result("a", LONG), *turns(8)]
    view = view_of(history, summarised(history, 4))
    assert plan_prune(view, newest_too=True) == ()


def test_the_last_resort_takes_the_newest_oversized_result_of_the_tail_first() -> None:
    history = [calls("old"), result("old", LONG), calls("a", "b"), result("a", LONG)]
    history += [result("b", LONG)]
    assert shrink_candidates(view_of(history)) == (4, 3)
    assert shrink_candidates(view_of([*history, user()])) == ()
    assert shrink_candidates(view_of([])) == ()


def test_the_last_resort_reaches_what_an_open_unit_holds() -> None:
    """Nothing from there on can be replaced, and the floor counts it as shrunk."""
    history = [user(), calls("a", "b"), result("a", LONG), user("wait")]
    assert shrink_candidates(view_of(history)) == (2,)


def test_a_shrink_leaves_what_fits_and_a_least_rest() -> None:
    history = [user(), calls("a"), result("a", LONG)]
    view = view_of(history)
    chars = shrink_chars(view, 2, over_tokens=5000)
    assert chars == 20_000 - 5000 - 500 - 64
    assert shrink_chars(view, 2, over_tokens=50_000) == SHRUNK_CHARS
    new = as_shrink(view, 2, shrink_to(history[2], chars))
    after = view_of(history, stored(new))
    assert view.total_tokens - after.total_tokens >= 5000
    assert shrink_candidates(after) == (2,)
    least = as_shrink(view, 2, shrink_to(history[2], SHRUNK_CHARS))
    assert shrink_candidates(view_of(history, stored(new), stored(least, 2))) == ()


@given(conversations(), st.sampled_from([100, 9000, 30_000]), st.booleans())
def test_prunes_make_no_violation_and_never_more_text(
    history: list[dict[str, Any]], size: int, newest_too: bool
) -> None:
    grown = [
        {**message, "content": "r" * size} if message["role"] in ("tool", "function") else message
        for message in history
    ]
    view = view_of(grown)
    rows = [stored(n, o) for o, n in enumerate(plan_prune(view, newest_too=newest_too))]
    after = view_of(grown, *rows)
    assert violations(grown, [item.message for item in after.surface.items]) == []
    assert after.total_tokens <= view.total_tokens
    assert bool(rows) == (after.total_tokens < view.total_tokens)
    assert plan_prune(after, newest_too=newest_too) == ()


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_has_a_tail(cause: Cause) -> None:
    wanted = aim(cause, retain_tokens=3000, share_tokens=4000)
    assert wanted.tail_tokens() == (1000 if cause is Cause.PRESSURE else 3000)


def test_prices_are_scaled_where_a_plan_asks_for_them() -> None:
    history = [user("a" * 10), assistant("b" * 7)]
    view = replace(view_of(history), ratio=1.5)
    assert view.history_tokens == view.item_tokens == (15, 11)
    assert view.item_tokens is view.item_tokens
    replaced = replace(view, item_counts=(3,))
    assert (replaced.item_tokens, replaced.history_tokens) == ((5,), (15, 11))
