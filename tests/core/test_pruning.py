"""The laws of pruning: only the middle of tool results goes, the same way every time."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.messages import text_of
from proxy.core.pruning import (
    PRUNE_HEAD,
    PRUNE_OVER,
    PRUNE_TAIL,
    Cut,
    apply_cuts,
    cut_text,
    cuts_from_payload,
    cuts_to_payload,
    holds_marker,
    oversized_parts,
    shrink_to,
)


def result(content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c1", "content": content, "x_unknown": 1}


def test_a_result_over_8192_keeps_4096_and_1024_and_says_how_much_is_gone() -> None:
    text = "a" * 5000 + "b" * 5000
    pruned = apply_cuts(result(text), oversized_parts(result(text)))
    assert pruned["content"].startswith("a" * PRUNE_HEAD + "\n\n[... ")
    assert pruned["content"].endswith(" ...]\n\n" + "b" * PRUNE_TAIL)
    assert f"[... {10000 - PRUNE_HEAD - PRUNE_TAIL} characters removed" in pruned["content"]
    assert list(pruned) == ["role", "tool_call_id", "content", "x_unknown"]


def test_8192_code_points_are_not_over() -> None:
    assert oversized_parts(result("x" * PRUNE_OVER)) == ()
    assert oversized_parts(result("x" * (PRUNE_OVER + 1))) != ()


def test_only_results_are_pruned() -> None:
    long = "x" * 20000
    assert oversized_parts({"role": "user", "content": long}) == ()
    assert oversized_parts({"role": "assistant", "content": long}) == ()
    assert oversized_parts({"role": "function", "name": "f", "content": long}) != ()


def test_content_that_is_no_text_is_left_alone() -> None:
    for content in (None, 7, {"a": 1}, [], [{"type": "image_url", "image_url": {"url": "u"}}]):
        message = result(content)
        assert oversized_parts(message) == ()
        assert shrink_to(message, 0) == ()
        assert apply_cuts(message, (Cut(0, 1, 1),))["content"] == content


def test_other_parts_stay_in_place() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    message = result(
        [
            image,
            {"type": "text", "text": "x" * 9000, "cache_control": {"type": "ephemeral"}},
            image,
            "y" * 9000,
            {"type": "refusal", "refusal": "z" * 9000},
        ]
    )
    pruned = apply_cuts(message, oversized_parts(message))
    assert [part for part in pruned["content"] if part == image] == [image, image]
    assert pruned["content"][0] == pruned["content"][2] == image
    assert list(pruned["content"][1]) == ["type", "text", "cache_control"]
    assert pruned["content"][1]["text"].startswith("x" * PRUNE_HEAD)
    assert "x" * (PRUNE_HEAD + 1) not in pruned["content"][1]["text"]
    assert holds_marker(pruned["content"][3])
    assert pruned["content"][4]["refusal"].endswith("z" * PRUNE_TAIL)


def test_a_result_in_many_small_parts_is_measured_as_a_whole() -> None:
    message = result([{"type": "text", "text": str(i % 10) * 2000} for i in range(10)])
    pruned = apply_cuts(message, oversized_parts(message))
    assert len(text_of(pruned)) < 7000
    assert pruned["content"][0]["text"] == "0" * 2000
    assert pruned["content"][9]["text"].endswith("9" * PRUNE_TAIL)


def test_r141_a_notice_that_came_back_is_not_pruned_again() -> None:
    """R141: the other results are still pruned."""
    notice = cut_text("x" * 40000, 9000, 9000)
    assert oversized_parts(result(notice)) == ()
    mixed = result([{"type": "text", "text": notice}, {"type": "text", "text": "y" * 9000}])
    assert [cut.part for cut in oversized_parts(mixed)] == [1]


def test_r086_a_pruned_result_keeps_its_bytes() -> None:
    """R086: the same cut on the same message is the same text, whatever else was added later."""
    message = result("line\n" * 4000)
    cuts = oversized_parts(message)
    stored = json.loads(json.dumps(cuts_to_payload(cuts)))
    assert apply_cuts(message, cuts_from_payload(stored)) == apply_cuts(message, cuts)


def test_a_shrink_replaces_an_earlier_cut() -> None:
    message = result("x" * 20000)
    prune, shrink = oversized_parts(message), shrink_to(message, 1000)
    assert apply_cuts(message, (*prune, *shrink)) == apply_cuts(message, shrink)
    assert f"[... {20000 - shrink[0].head - shrink[0].tail} " in text_of(
        apply_cuts(message, (*prune, *shrink))
    )


def test_a_shrink_keeps_three_quarters_at_the_start() -> None:
    message = result("x" * 50000)
    (cut,) = shrink_to(message, 4000)
    assert len(text_of(apply_cuts(message, (cut,)))) <= 4000
    assert abs(cut.head - 3 * cut.tail) <= 4


def test_a_shrink_to_nothing_leaves_the_marker() -> None:
    message = result([{"type": "text", "text": "x" * 500}, {"type": "text", "text": "y" * 500}])
    shrunk = apply_cuts(message, shrink_to(message, 0))
    assert "x" not in text_of(shrunk).replace("characters", "")
    assert all(holds_marker(part["text"]) for part in shrunk["content"])


def test_cuts_of_parts_that_are_not_there_change_nothing() -> None:
    message = result([{"type": "text", "text": "x"}, {"type": "image_url", "image_url": "u"}])
    assert apply_cuts(message, (Cut(1, 0, 0), Cut(9, 0, 0), Cut(-1, 0, 0))) == message
    assert apply_cuts(result("abc"), (Cut(3, 0, 0),)) == result("abc")
    assert apply_cuts(message, ()) == message


def test_a_cut_falls_between_code_points() -> None:
    """Emoji outside the basic plane are one code point each; none is halved."""
    pruned = apply_cuts(result("😀" * 9000), oversized_parts(result("😀" * 9000)))
    assert json.loads(json.dumps(pruned)) == pruned
    pruned["content"].encode()


@given(st.text(max_size=400), st.integers(-5, 400), st.integers(-5, 400))
def test_a_cut_never_makes_a_text_longer(text: str, head: int, tail: int) -> None:
    assert len(cut_text(text, head, tail)) <= len(text)


@given(st.lists(st.text(max_size=300), max_size=5), st.integers(0, 800))
def test_a_shrink_never_makes_a_message_longer(texts: list[str], max_chars: int) -> None:
    message = result([{"type": "text", "text": text} for text in texts])
    shrunk = apply_cuts(message, shrink_to(message, max_chars))
    assert len(text_of(shrunk)) <= len(text_of(message))


def test_a_mark_in_tool_output_saves_only_itself() -> None:
    """A forged marker keeps its own part from the prune, and a shrink still cuts it."""
    forged = "[... 5 characters removed from this tool result to save room ...]" + "x" * 9000
    assert oversized_parts(result(forged)) == ()
    assert len(text_of(apply_cuts(result(forged), shrink_to(result(forged), 2000)))) <= 2000
