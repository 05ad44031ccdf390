"""The surface is a pure function of history and replacements, and as valid as what was sent."""

import copy
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.messages import Message, head_length
from proxy.core.ranges import pair, settled
from proxy.core.replacements import Replacement, ReplacementKind
from proxy.core.surface import (
    RANGE_KINDS,
    Surface,
    apply_edits,
    apply_offload,
    continued,
    fold,
    matching,
    planned_ids,
)
from tests.strategies import (
    PIXEL,
    assistant,
    calls,
    conversations,
    histories,
    history_chain,
    replacement_sets,
    result,
    user,
)
from tests.validator import violations

CONVERSATIONS = Path(__file__).parents[3] / "shared" / "conversations"
IMAGE = {"type": "image_url", "image_url": {"url": PIXEL}}
HISTORY: list[dict[str, Any]] = [
    user("first"),  # 0
    calls("a"),  # 1
    result("a", "x" * 300),  # 2
    assistant("done"),  # 3
    user("second"),  # 4
    calls("b"),  # 5
    result("b", "y" * 300),  # 6
    user("third"),  # 7
]


def stored(
    history: list[dict[str, Any]],
    start: int,
    end: int,
    *,
    order: int = 1,
    kind: ReplacementKind = ReplacementKind.SUMMARY,
    **payload: Any,
) -> Replacement:
    frame = {
        "format": 1,
        "summary": f"summary {order}",
        "first": None,
        "rules": [],
        "left_out": 0,
        "kept": [],
        "merge": False,
        "fence": "=====",
    }
    return Replacement(
        id=f"id{order}",
        order=order,
        kind=kind,
        start=start,
        end=end,
        end_fingerprint=history_chain(history)[end - 1],
        payload={**frame, **payload} if kind in RANGE_KINDS else payload,
    )


def prune(history: list[dict[str, Any]], at: int, head: int, tail: int, order: int) -> Replacement:
    cuts = [{"part": 0, "head": head, "tail": tail}]
    return stored(history, at, at + 1, order=order, kind=ReplacementKind.PRUNE, cuts=cuts)


def offload(history: list[dict[str, Any]], at: int, *path: int, order: int = 1) -> Replacement:
    parts = [{"path": list(path), "media_type": "image/png", "width_px": 1, "height_px": 2}]
    return stored(history, at, at + 1, order=order, kind=ReplacementKind.OFFLOAD, parts=parts)


def folded(history: list[dict[str, Any]], *replacements: Replacement) -> Surface:
    return fold(history, pair(history), matching(history_chain(history), replacements))


def positions(surface: Surface) -> list[int | None]:
    return [item.position for item in surface.items]


def texts(surface: Surface) -> list[Any]:
    return [item.message["content"] for item in surface.items]


# What shows.


def test_without_replacements_the_surface_is_the_history_as_sent() -> None:
    surface = folded(HISTORY)
    assert not surface.replaced
    assert [item.message for item in surface.items] == HISTORY
    assert all(item.as_sent for item in surface.items)
    assert surface.leading() is None


def test_a_range_gives_way_to_one_user_message() -> None:
    summary = stored(HISTORY, 0, 4)
    surface = folded(HISTORY, summary)
    assert positions(surface) == [None, 4, 5, 6, 7]
    assert surface.items[0].message["role"] == "user"
    assert "summary 1" in texts(surface)[0]
    assert surface.visible == (summary,)
    assert surface.leading() == summary
    assert [item.as_sent for item in surface.items] == [False, True, True, True, True]


def test_the_outermost_range_shows_and_hides_what_is_inside() -> None:
    """A late, shorter summary never displaces a longer one."""
    outer, inner = stored(HISTORY, 0, 7, order=1), stored(HISTORY, 0, 4, order=2)
    edit = prune(HISTORY, 2, 10, 10, order=3)
    assert folded(HISTORY, outer, inner, edit).visible == (outer,)
    assert folded(HISTORY, edit, inner, outer).visible == (outer,)


def test_of_equal_ranges_the_first_made_shows() -> None:
    first, second = stored(HISTORY, 0, 4, order=1), stored(HISTORY, 0, 4, order=2)
    digest = stored(HISTORY, 0, 4, order=0, kind=ReplacementKind.DIGEST, digest=[])
    assert folded(HISTORY, second, first).visible == (first,)
    assert folded(HISTORY, second, first, digest).visible == (digest,)


def test_disjoint_ranges_all_show_in_history_order() -> None:
    one, two = stored(HISTORY, 4, 7, order=1), stored(HISTORY, 0, 1, order=2)
    surface = folded(HISTORY, one, two)
    assert surface.visible == (two, one)
    assert positions(surface) == [None, 1, 2, 3, None, 7]
    assert surface.leading() == two


def test_a_revoked_replacement_does_not_show_and_what_it_hid_does() -> None:
    outer, inner = stored(HISTORY, 0, 7, order=1), stored(HISTORY, 0, 4, order=2)
    assert folded(HISTORY, replace(outer, revoked=True), inner).visible == (inner,)


def test_a_backoff_changes_nothing() -> None:
    backoff = stored(HISTORY, 0, 4, kind=ReplacementKind.BACKOFF, total_tokens=1)
    assert not folded(HISTORY, backoff).replaced


def test_kept_messages_follow_the_frame_in_history_order() -> None:
    history = [user("a"), {"role": "system", "content": "s"}, assistant(), user("b"), assistant()]
    surface = folded(history, stored(history, 0, 4, kept=[1, 3]))
    assert positions(surface) == [None, 1, 3, 4]
    assert all(item.as_sent for item in surface.items[1:])


def test_an_offloaded_image_is_gone_from_a_kept_message_too() -> None:
    history = [user([IMAGE, {"type": "text", "text": "look"}]), assistant("a"), assistant("b")]
    summary, gone = stored(history, 0, 2, kept=[0], order=1), offload(history, 0, 0, order=2)
    surface = folded(history, summary, gone)
    assert surface.items[1].message["content"][0]["type"] == "text"
    assert surface.items[1].message["content"][1] == {"type": "text", "text": "look"}
    assert not surface.items[1].as_sent
    assert surface.visible == (summary, gone)


# Edits.


def test_a_prune_changes_the_content_and_nothing_else() -> None:
    history = [calls("a"), {**result("a", "x" * 300), "x_unknown": 1.0, "is_error": False}]
    surface = folded(history, prune(history, 1, 10, 10, order=1))
    message = surface.items[1].message
    assert list(message) == ["role", "tool_call_id", "content", "x_unknown", "is_error"]
    assert message["content"].startswith("x" * 10 + "\n\n[... 280 characters removed")
    assert surface.items[0].as_sent
    assert not surface.items[1].as_sent


def test_a_shrink_replaces_an_earlier_cut_whatever_their_order_of_arrival() -> None:
    early, late = prune(HISTORY, 2, 100, 20, order=1), prune(HISTORY, 2, 20, 10, order=2)
    for arrived in ((early, late), (late, early)):
        surface = folded(HISTORY, *arrived)
        assert texts(surface)[2].startswith("x" * 20 + "\n\n[... 270 ")
        assert surface.visible == (early, late)


def test_an_offload_puts_a_text_part_in_the_same_place() -> None:
    history = [user([{"type": "text", "text": "before"}, IMAGE, {"type": "text", "text": "after"}])]
    content = texts(folded(history, offload(history, 0, 1)))[0]
    assert [part["type"] for part in content] == ["text", "text", "text"]
    assert "image/png, 1 x 2 pixels" in content[1]["text"]
    assert content[0]["text"] == "before"
    assert content[2]["text"] == "after"
    assert history[0]["content"][1] == IMAGE


def test_prunes_and_offloads_of_one_message_all_apply() -> None:
    long = {"type": "text", "text": "x" * 300}
    history = [calls("a"), result("a", [long, IMAGE])]
    surface = folded(history, prune(history, 1, 10, 10, order=1), offload(history, 1, 1, order=2))
    content = texts(surface)[1]
    assert "280 characters removed" in content[0]["text"]
    assert "image/png" in content[1]["text"]


def test_an_image_inside_a_tool_result_part_is_reached() -> None:
    outer = {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE, {"type": "text"}]}
    message = {"role": "user", "content": [outer]}
    changed = apply_offload(message, {"parts": [{"path": [0, 0]}]})
    assert changed["content"][0]["content"][0]["type"] == "text"
    assert list(changed["content"][0]) == ["type", "tool_use_id", "content"]
    assert message["content"] == [outer]


@pytest.mark.parametrize(
    ("content", "path"),
    [
        ("text", [0]),
        (None, [0]),
        ([], [0]),
        ([IMAGE], [3]),
        ([{"type": "text", "text": "words"}], [0]),
        (["words"], [0]),
        ([IMAGE], [0, 1]),
        ([{"type": "tool_result", "content": "words"}], [0, 0]),
    ],
)
def test_an_offload_that_finds_no_image_changes_nothing(content: Any, path: list[int]) -> None:
    """An empty part may have come or gone since: the digest does not see it, the index does."""
    message = user(content)
    assert apply_offload(message, {"parts": [{"path": path}]}) == message


def test_edits_are_applied_in_the_order_given() -> None:
    assert apply_edits(HISTORY[2], []) == HISTORY[2]


# Merging for models that want roles to alternate.


def test_a_frame_is_merged_into_the_user_message_that_follows() -> None:
    summary = stored(HISTORY, 0, 4, merge=True)
    surface = folded(HISTORY, summary)
    assert positions(surface) == [4, 5, 6, 7]
    assert texts(surface)[0].endswith("\n\nsecond")
    assert "summary 1" in texts(surface)[0]
    assert not surface.items[0].as_sent
    assert surface.stretches[0].first == surface.stretches[0].last == 0


def test_a_frame_is_merged_into_a_kept_user_message() -> None:
    history = [user("long run"), calls("a"), result("a"), calls("b"), result("b")]
    surface = folded(history, stored(history, 0, 3, kept=[0], merge=True))
    assert positions(surface) == [0, 3, 4]
    assert texts(surface)[0].endswith("\n\nlong run")
    assert [item.message["role"] for item in surface.items] == ["user", "assistant", "tool"]


def test_a_frame_stands_alone_where_no_user_message_follows() -> None:
    summary = stored(HISTORY, 0, 1, merge=True)
    assert positions(folded(HISTORY, summary))[:2] == [None, 1]
    whole = stored(HISTORY, 0, 8, merge=True)
    assert positions(folded(HISTORY, whole)) == [None]


def test_parts_keep_their_place_behind_a_merged_frame() -> None:
    history = [user("a"), assistant(), user([IMAGE]), assistant()]
    content = texts(folded(history, stored(history, 0, 2, merge=True)))[0]
    assert content[0]["type"] == "text"
    assert content[1] == IMAGE


def test_no_frame_is_lost_between_ranges_side_by_side() -> None:
    one = stored(HISTORY, 0, 4, order=1, merge=True)
    two = stored(HISTORY, 4, 7, order=2, merge=True)
    surface = folded(HISTORY, one, two)
    assert positions(surface) == [None, 7]
    assert "summary 1" in texts(surface)[0]
    assert "summary 2" in texts(surface)[1]


# What never shows.


@pytest.mark.parametrize(("start", "end"), [(0, 2), (2, 4), (2, 3), (1, 2), (5, 6), (6, 8)])
def test_a_range_that_would_part_a_result_from_its_call_does_not_show(start: int, end: int) -> None:
    assert not folded(HISTORY, stored(HISTORY, start, end)).replaced


def test_an_inner_range_shows_where_the_outer_one_would_strand_a_result() -> None:
    inner, outer = stored(HISTORY, 0, 1), stored(HISTORY, 0, 2, order=2)
    assert folded(HISTORY, inner, outer).visible == (inner,)


def test_a_late_result_takes_back_the_range_that_held_its_abandoned_call() -> None:
    """And no frame is left standing inside the unit that the late result closed."""
    before = [user(), calls("a"), user("go on"), calls("b"), result("b"), user("and")]
    summary, inside = stored(before, 0, 3), stored(before, 2, 5, order=2)
    assert folded(before, summary).visible == (summary,)
    after = [*before[:5], result("a", "late"), user("and")]
    assert not folded(after, summary, inside).replaced
    assert violations(after, [i.message for i in folded(after, summary, inside).items]) == []


def test_replacements_of_an_edited_or_forked_history_do_not_match() -> None:
    summary, edit = stored(HISTORY, 0, 4), prune(HISTORY, 6, 10, 10, order=2)
    edited = [user("first!"), *HISTORY[1:]]
    forked = [*HISTORY[:4], user("another way"), *HISTORY[5:]]
    assert matching(history_chain(HISTORY), [summary, edit]) == (summary, edit)
    assert matching(history_chain(edited), [summary, edit]) == ()
    assert matching(history_chain(forked), [summary, edit]) == (summary,)
    assert matching(history_chain(HISTORY[:3]), [summary, edit]) == ()
    assert matching((), [summary]) == ()


def test_planned_ids_are_those_in_force_in_the_order_made() -> None:
    one, two = stored(HISTORY, 0, 4, order=1), stored(HISTORY, 0, 1, order=2)
    backoff = stored(HISTORY, 0, 4, order=3, kind=ReplacementKind.BACKOFF)
    gone = replace(stored(HISTORY, 0, 1, order=4), revoked=True)
    assert planned_ids([gone, backoff, two, one]) == ("id1", "id2")


# Laws.


def surface_and_set(
    data: st.DataObject, history: list[dict[str, Any]]
) -> tuple[Surface, tuple[Replacement, ...]]:
    made = data.draw(replacement_sets(history))
    return folded(history, *made), made


@given(histories, st.data())
def test_no_orphan_is_ever_made(history: list[dict[str, Any]], data: st.DataObject) -> None:
    """Nor any other new violation of what providers enforce, whatever replacements apply."""
    surface, _ = surface_and_set(data, history)
    assert violations(history, [item.message for item in surface.items]) == []


@given(histories, st.data())
def test_folding_is_deterministic_and_changes_nothing(
    history: list[dict[str, Any]], data: st.DataObject
) -> None:
    before = copy.deepcopy(history)
    surface, made = surface_and_set(data, history)
    shuffled = data.draw(st.permutations(made))
    again = folded(copy.deepcopy(history), *shuffled)
    assert again == surface
    assert [list(i.message) for i in again.items] == [list(i.message) for i in surface.items]
    assert history == before


@given(histories, histories, st.data())
def test_the_surface_is_prefix_stable_when_the_client_only_appends(
    history: list[dict[str, Any]], suffix: list[dict[str, Any]], data: st.DataObject
) -> None:
    """As long as the new messages do not reach back into what was replaced (a late result that
    joins units) and no range runs to the very end, where an orphan may follow. Plans make neither:
    the newest unit is always kept, and nothing is cut behind an open one."""
    made = data.draw(replacement_sets(history))
    made = tuple(r for r in made if r.kind not in RANGE_KINDS or r.end < len(history))
    surface, longer = folded(history, *made), folded([*history, *suffix], *made)
    whole = pair([*history, *suffix])
    if not any(whole.strands(r.start, r.end) for r in surface.visible if r.kind in RANGE_KINDS):
        assert longer.items[: len(surface.items)] == surface.items
        assert longer.visible == surface.visible
    appended = [p for p in positions(longer) if p is not None and p >= len(history)]
    assert appended == list(range(len(history), len(history) + len(suffix)))
    assert violations([*history, *suffix], [item.message for item in longer.items]) == []


@given(histories, histories, histories, st.data())
def test_a_surface_continued_is_the_surface_folded_anew(
    history: list[dict[str, Any]],
    first_end: list[dict[str, Any]],
    second_end: list[dict[str, Any]],
    data: st.DataObject,
) -> None:
    """Whatever came behind the messages that both have, from their last settled place on."""
    earlier, later = [*history, *first_end], [*history, *second_end]
    start = settled(later, len(history) if not first_end else len(history) - 1)
    made = tuple(r for r in data.draw(replacement_sets(history)) if r.end < start)
    before, after = folded(earlier, *made), folded(later, *made)
    assert continued(before, later, pair(later), start) == after


@given(histories, st.data())
def test_stretches_partition_history_and_surface(
    history: list[dict[str, Any]], data: st.DataObject
) -> None:
    surface, _ = surface_and_set(data, history)
    cuts = set(pair(history).cuts())
    position = index = 0
    for stretch in surface.stretches:
        assert (stretch.start, stretch.first) == (position, index)
        assert {stretch.start, stretch.end} <= cuts
        assert stretch.end > stretch.start
        assert stretch.last > stretch.first or stretch.replaced
        for item in surface.items[stretch.first : stretch.last]:
            assert item.position is None or stretch.start <= item.position < stretch.end
        position, index = stretch.end, stretch.last
    assert (position, index) == (len(history), len(surface.items))


@given(histories, st.data())
def test_what_stands_as_sent_is_the_clients_own_message(
    history: list[dict[str, Any]], data: st.DataObject
) -> None:
    surface, _ = surface_and_set(data, history)
    for item in surface.items:
        if item.as_sent:
            assert item.position is not None
            assert item.message is history[item.position]
    kept = [item.position for item in surface.items if item.position is not None]
    assert kept == sorted(set(kept))


@given(conversations(), st.data())
def test_visible_ranges_are_disjoint_and_outermost(
    history: list[dict[str, Any]], data: st.DataObject
) -> None:
    surface, made = surface_and_set(data, history)
    ranges = [r for r in surface.visible if r.kind in RANGE_KINDS]
    assert all(a.end <= b.start for a, b in pairwise(ranges))
    for candidate in made:
        if candidate.kind in RANGE_KINDS and not candidate.revoked:
            assert any(r.start < candidate.end and candidate.start < r.end for r in ranges)


def test_the_saved_conversations_fold_validly_at_every_cut() -> None:
    if not CONVERSATIONS.is_dir():
        pytest.skip("the saved conversations are not part of the repository")
    for path in sorted(CONVERSATIONS.glob("*.json")):
        messages: list[dict[str, Any]] = json.loads(path.read_text())["request"]["messages"]
        head, history = messages[: head_length(messages)], messages[head_length(messages) :]
        cuts = pair(history).cuts()[1:-1]
        for end in {cuts[len(cuts) * share // 8] for share in range(8)} if cuts else ():
            kept = [p for p in range(end) if history[p]["role"] in ("system", "developer")]
            surface = folded(history, stored(history, 0, end, kept=kept))
            forwarded: list[Message] = [*head, *(item.message for item in surface.items)]
            assert violations(messages, forwarded) == [], f"{path.name} {end}"
