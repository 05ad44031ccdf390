"""Which images leave the request: always the oldest, the newest user message's last of all."""

from dataclasses import replace
from typing import Any

import pytest

from proxy.core.compaction import View
from proxy.core.images import PLACEHOLDER_TOKENS
from proxy.core.offloading import (
    SurfaceImage,
    in_offload_order,
    offload_after_refusal,
    offload_for_summary,
    offload_for_tokens,
    offloads,
)
from proxy.core.overflow import Refusal, RefusalKind
from proxy.core.replacements import NewReplacement, ReplacementKind
from tests.core.views import view_of
from tests.strategies import assistant, user

HISTORY = [user("a" * 100), assistant("b"), user("c" * 100), assistant("d"), user("e" * 100)]
VIEW: View = view_of(HISTORY)


def image(position: int, index: int = 0, *, size: int = 4000, tokens: int = 50) -> SurfaceImage:
    """`tokens`: more than what its placeholder costs."""
    price = tokens + PLACEHOLDER_TOKENS
    return SurfaceImage(position, (index,), price, size, "image/png", 640, 480)


OLD, OLD2, MIDDLE, NEWEST = image(0), image(0, 1), image(2), image(4)
ALL = (NEWEST, MIDDLE, OLD2, OLD)


def taken(new: tuple[NewReplacement, ...]) -> list[tuple[int, int]]:
    """Position and part of every image that leaves."""
    return sorted((r.start, part["path"][0]) for r in new for part in r.payload["parts"])


def budget(**more: Any) -> Refusal:
    return Refusal(RefusalKind.IMAGE_BUDGET, **more)


def too_large(**more: Any) -> Refusal:
    return Refusal(RefusalKind.PAYLOAD_TOO_LARGE, **more)


def test_the_oldest_go_first_and_the_newest_user_messages_last() -> None:
    assert in_offload_order(VIEW, ALL) == (OLD, OLD2, MIDDLE, NEWEST)


def test_a_tool_result_after_the_newest_user_message_goes_before_its_images() -> None:
    view = view_of([*HISTORY, assistant("f"), {"role": "tool", "content": "g"}])
    assert in_offload_order(view, (NEWEST, image(6))) == (image(6), NEWEST)


def test_an_offload_names_place_type_and_size_and_nothing_of_the_client() -> None:
    first, second = offloads(VIEW, ALL[1:])
    assert first.kind is ReplacementKind.OFFLOAD
    assert (first.start, first.end, second.start) == (0, 1, 2)
    assert first.end_fingerprint == VIEW.chain[0]
    assert first.payload["parts"][0] == {
        "path": [1],
        "media_type": "image/png",
        "width_px": 640,
        "height_px": 480,
    }


class TestForTokens:
    @pytest.mark.parametrize(
        ("target", "expected"),
        [
            (VIEW.total_tokens, []),
            (VIEW.total_tokens - 1, [(0, 0)]),
            (VIEW.total_tokens - 50, [(0, 0)]),
            (VIEW.total_tokens - 51, [(0, 0), (0, 1)]),
            (VIEW.total_tokens - 150, [(0, 0), (0, 1), (2, 0)]),
        ],
    )
    def test_as_many_of_the_oldest_as_are_needed(
        self, target: int, expected: list[tuple[int, int]]
    ) -> None:
        assert taken(offload_for_tokens(VIEW, ALL, target)) == expected

    def test_none_when_they_cannot_reach_it_without_the_newest(self) -> None:
        assert offload_for_tokens(VIEW, ALL, VIEW.total_tokens - 151) == ()

    def test_an_image_that_costs_no_more_than_its_placeholder_stays(self) -> None:
        cheap = image(0, tokens=0)
        assert taken(offload_for_tokens(VIEW, (cheap, MIDDLE), VIEW.total_tokens - 50)) == [(2, 0)]

    def test_none_without_images(self) -> None:
        assert offload_for_tokens(VIEW, (), 0) == ()


class TestAfterARefusal:
    def test_a_model_that_takes_no_images_loses_all(self) -> None:
        new = offload_after_refusal(VIEW, ALL, budget(takes_no_images=True), body_bytes=1)
        assert len(taken(new)) == 4

    def test_a_count_takes_as_many_as_are_over_it(self) -> None:
        new = offload_after_refusal(VIEW, ALL, budget(image_limit=3), body_bytes=1)
        assert taken(new) == [(0, 0)]

    def test_no_number_takes_half(self) -> None:
        assert taken(offload_after_refusal(VIEW, ALL, budget(), body_bytes=1)) == [(0, 0), (0, 1)]

    def test_a_limit_on_one_image_takes_those_over_it_whoever_sent_them(self) -> None:
        large = image(4, size=8000)
        refusal = budget(limit_bytes=5000)
        new = offload_after_refusal(VIEW, (OLD, MIDDLE, large), refusal, body_bytes=1)
        assert taken(new) == [(4, 0)]

    def test_a_limit_that_no_image_exceeds_takes_half(self) -> None:
        new = offload_after_refusal(VIEW, ALL, budget(limit_bytes=9000), body_bytes=1)
        assert taken(new) == [(0, 0), (0, 1)]

    def test_a_limit_in_pixels_takes_those_over_it_the_newest_users_last(self) -> None:
        wide, tall = replace(MIDDLE, width_px=9000), replace(NEWEST, height_px=9000)
        refusal = budget(limit_px=8000)
        for images, expected in (
            ((OLD, wide, tall), [(2, 0)]),
            ((OLD, MIDDLE, tall), [(4, 0)]),
            ((replace(OLD, width_px=None, height_px=None), OLD2), [(0, 0)]),
        ):
            new = offload_after_refusal(VIEW, images, refusal, body_bytes=1)
            assert taken(new) == expected

    def test_a_limit_on_the_body_takes_the_oldest_until_it_fits(self) -> None:
        refusal = too_large(limit_bytes=10_000)
        new = offload_after_refusal(VIEW, ALL, refusal, body_bytes=17_000)
        assert taken(new) == [(0, 0), (0, 1)]


class TestForASummary:
    def test_images_after_the_range_stay(self) -> None:
        new = offload_for_summary(VIEW, ALL, budget(), end=2, body_bytes=1)
        assert taken(new) == [(0, 0), (0, 1)]

    def test_a_range_without_images_loses_none(self) -> None:
        assert offload_for_summary(VIEW, (NEWEST,), budget(), end=2, body_bytes=1) == ()

    def test_a_model_that_takes_none_loses_those_after_the_range_too(self) -> None:
        new = offload_for_summary(VIEW, ALL, budget(takes_no_images=True), end=2, body_bytes=1)
        assert len(taken(new)) == 4

    def test_a_stated_number_takes_as_many_of_the_range_as_needed(self) -> None:
        new = offload_for_summary(VIEW, ALL, budget(image_limit=1), end=2, body_bytes=1)
        assert taken(new) == [(0, 0)]
