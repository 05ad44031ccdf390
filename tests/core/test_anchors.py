"""Which reported sizes are read, believed and learned from, and what total they give."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.anchors import (
    RATIO_MAX,
    RATIO_MIN,
    Anchor,
    all_scaled,
    holds_at,
    ids_below,
    is_believable,
    learned_ratio,
    reported_prompt_tokens,
    scaled,
    total_tokens,
)
from proxy.core.replacements import Replacement, ReplacementKind

ANCHOR = Anchor(reported_tokens=5000, counted_tokens=4000, replacement_ids=frozenset())


def replacement(name: str, start: int, end: int) -> Replacement:
    return Replacement(name, 1, ReplacementKind.SUMMARY, start, end, b"", {})


@pytest.mark.parametrize(
    ("usage", "prompt_tokens"),
    [
        # OpenAI: cached tokens are a part of the prompt.
        ({"prompt_tokens": 900, "completion_tokens": 5, "total_tokens": 905}, 900),
        ({"prompt_tokens": 900, "prompt_tokens_details": {"cached_tokens": 800}}, 900),
        ({"input_tokens": 900, "input_tokens_details": {"cached_tokens": 800}}, 900),
        # DeepSeek: hits and misses are the prompt.
        (
            {
                "prompt_tokens": 900,
                "prompt_cache_hit_tokens": 800,
                "prompt_cache_miss_tokens": 100,
                "total_tokens": 950,
            },
            900,
        ),
        ({"prompt_cache_hit_tokens": 800, "prompt_cache_miss_tokens": 100}, 900),
        # Anthropic: read and written tokens stand outside.
        (
            {
                "input_tokens": 10,
                "cache_read_input_tokens": 8000,
                "cache_creation_input_tokens": 90,
                "output_tokens": 3,
            },
            8100,
        ),
        ({"input_tokens": 0, "cache_read_input_tokens": 8000}, 8000),
        # Gateways: outside when the total says so, or when they could not fit inside.
        ({"prompt_tokens": 10, "cache_read_input_tokens": 8000, "total_tokens": 15}, 8010),
        (
            {
                "prompt_tokens": 9000,
                "completion_tokens": 7,
                "cache_read_input_tokens": 8000,
                "total_tokens": 17_007,
            },
            17_000,
        ),
        ({"prompt_tokens": 9000, "cache_read_input_tokens": 8000}, 17_000),
        (
            {
                "prompt_tokens": 9000,
                "completion_tokens": 7,
                "cache_read_input_tokens": 8000,
                "total_tokens": 9007,
            },
            9000,
        ),
        (
            {
                "prompt_tokens": 9000,
                "cache_read_input_tokens": 8000,
                "prompt_tokens_details": {"cached_tokens": 8000},
            },
            9000,
        ),
        ({"prompt_tokens": 900.0}, 900),
        # Nothing that can be read.
        ({}, None),
        ({"prompt_tokens": 0}, None),
        ({"prompt_tokens": None, "prompt_tokens_details": None}, None),
        ({"prompt_tokens": True}, None),
        ({"prompt_tokens": -4}, None),
        ({"prompt_tokens": "900"}, None),
        ({"prompt_tokens": 10**30}, None),
        ({"prompt_tokens": float("nan")}, None),
    ],
)
def test_the_prompt_size_holds_every_cached_token_once(
    usage: dict[str, Any], prompt_tokens: int | None
) -> None:
    assert reported_prompt_tokens(usage) == prompt_tokens


@pytest.mark.parametrize(
    ("reported", "counted", "images", "believable"),
    [
        (6000, 10_000, 0, True),
        (5999, 10_000, 0, False),
        (3000, 10_000, 5000, True),
        (2999, 10_000, 5000, False),
        (90_000, 10_000, 0, True),
    ],
)
def test_under_60_percent_of_our_text_is_not_believed(
    reported: int, counted: int, images: int, believable: bool
) -> None:
    assert is_believable(reported, counted, images) is believable


@pytest.mark.parametrize(
    ("reported", "counted", "images", "ratio", "from_refusal"),
    [
        (2400, 2000, 0, 1.2, 1.2),
        (1000, 1000, 0, None, None),
        (1001, 1001, 0, 1.0, 1.0),
        (900, 2000, 0, None, None),
        (1300, 2000, 0, 0.8, None),
        (9000, 2000, 0, 3.0, None),
        (6000, 2000, 0, 3.0, 3.0),
        (1600, 2000, 0, 0.8, 0.8),
        (2600, 2000, 500, 1.3, 1.3),
        (2600, 2000, 501, None, None),
        (9000, 300, 0, None, None),
    ],
)
def test_what_a_reported_size_teaches(
    reported: int, counted: int, images: int, ratio: float | None, from_refusal: float | None
) -> None:
    assert learned_ratio(reported, counted, images) == ratio
    assert learned_ratio(reported, counted, images, from_refusal=True) == from_refusal


@given(st.integers(1, 10**7), st.integers(1, 10**7), st.booleans())
def test_a_ratio_is_always_bounded(reported: int, counted: int, from_refusal: bool) -> None:
    ratio = learned_ratio(reported, counted, from_refusal=from_refusal)
    assert ratio is None or RATIO_MIN <= ratio <= RATIO_MAX


class TestTotal:
    def test_without_an_anchor_is_our_scaled_count(self) -> None:
        assert total_tokens(1000, anchor=None, ratio=1.0) == 1000
        assert total_tokens(1001, anchor=None, ratio=1.5) == 1502

    def test_with_an_anchor_is_what_was_reported_and_the_scaled_growth(self) -> None:
        assert total_tokens(4000, anchor=ANCHOR, ratio=1.25) == 5000
        assert total_tokens(4100, anchor=ANCHOR, ratio=1.25) == 5125

    def test_falls_with_a_request_that_shrank(self) -> None:
        assert total_tokens(3900, anchor=ANCHOR, ratio=1.25) == 4875
        assert total_tokens(0, anchor=ANCHOR, ratio=3.0) == 0

    @given(st.integers(0, 10**6), st.integers(0, 10**4), st.floats(RATIO_MIN, RATIO_MAX))
    def test_never_falls_when_the_count_grows(self, counted: int, more: int, ratio: float) -> None:
        for anchor in (None, ANCHOR):
            before = total_tokens(counted, anchor=anchor, ratio=ratio)
            assert total_tokens(counted + more, anchor=anchor, ratio=ratio) >= before


def test_scaling_rounds_up() -> None:
    assert [scaled(count, 0.8) for count in (0, 1, 10)] == [0, 1, 8]


class TestVoiding:
    def test_a_replacement_below_the_anchor_voids_it(self) -> None:
        assert holds_at(ANCHOR, 6, [])
        assert not holds_at(ANCHOR, 6, [replacement("a", 0, 4)])

    def test_one_that_no_longer_shows_voids_it_too(self) -> None:
        anchor = Anchor(5000, 4000, frozenset({"a"}))
        assert holds_at(anchor, 6, [replacement("a", 0, 4)])
        assert not holds_at(anchor, 6, [])
        assert not holds_at(anchor, 6, [replacement("b", 0, 6)])

    def test_one_after_the_anchor_is_growth(self) -> None:
        assert holds_at(ANCHOR, 6, [replacement("a", 6, 7)])

    def test_ids_below_are_those_that_begin_before(self) -> None:
        shown = [replacement("a", 0, 4), replacement("b", 5, 6), replacement("c", 6, 7)]
        assert ids_below(shown, 6) == {"a", "b"}


@given(st.lists(st.integers(0, 10**6)).map(tuple), st.floats(0.8, 3.0) | st.just(1.0))
def test_many_counts_are_scaled_as_each_is(counts: tuple[int, ...], ratio: float) -> None:
    assert all_scaled(counts, ratio) == tuple(scaled(tokens, ratio) for tokens in counts)
