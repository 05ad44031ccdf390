"""Which recovery a refusal asks for, and when the first error stands."""

import pytest

from proxy.core.overflow import EMPTY_LENGTH_STOP, Refusal, RefusalKind
from proxy.core.recovery import (
    MAX_IMAGE_REPLAYS,
    Replays,
    Step,
    believed,
    next_step,
    shows_first_error,
)

OVERFLOW = Refusal(RefusalKind.CONTEXT_OVERFLOW)
IMAGES = Refusal(RefusalKind.IMAGE_BUDGET)
BYTES = Refusal(RefusalKind.PAYLOAD_TOO_LARGE)
OUTPUT = Refusal(RefusalKind.OUTPUT_LIMIT)
OTHER = Refusal(RefusalKind.OTHER)
SPENT = Replays(context=1)
ALL_IMAGES = Replays(image=MAX_IMAGE_REPLAYS)


@pytest.mark.parametrize(
    ("refusal", "replays", "images", "step"),
    [
        (None, Replays(), 3, Step.RELAY),
        (OTHER, Replays(), 3, Step.RELAY),
        (OUTPUT, Replays(), 3, Step.RELAY),
        (OVERFLOW, Replays(), 0, Step.COMPACT),
        (OVERFLOW, SPENT, 0, Step.RELAY),
        (OVERFLOW, Replays(image=4), 0, Step.COMPACT),
        (IMAGES, Replays(), 1, Step.OFFLOAD),
        (IMAGES, Replays(), 0, Step.RELAY),
        (IMAGES, SPENT, 1, Step.OFFLOAD),
        (IMAGES, ALL_IMAGES, 1, Step.RELAY),
        (BYTES, Replays(), 1, Step.OFFLOAD),
        (BYTES, Replays(), 0, Step.RELAY),
    ],
)
def test_the_step_follows_from_the_refusal_and_what_was_spent(
    refusal: Refusal | None, replays: Replays, images: int, step: Step
) -> None:
    assert next_step(refusal, replays, max_context_replays=1, images=images) is step


def test_no_replay_at_all_may_be_allowed() -> None:
    assert next_step(OVERFLOW, Replays(), max_context_replays=0, images=0) is Step.RELAY


def test_replays_are_counted_apart() -> None:
    replays = Replays().counting(Step.COMPACT).counting(Step.OFFLOAD).counting(Step.OFFLOAD)
    assert replays == Replays(context=1, image=2)
    assert replays.total == 3


def empty_stop(prompt_tokens: int | None = None) -> Refusal:
    return Refusal(
        RefusalKind.CONTEXT_OVERFLOW, prompt_tokens=prompt_tokens, sign=EMPTY_LENGTH_STOP
    )


class TestAnEmptyAnswerThatStoppedByLength:
    def test_it_is_an_overflow_when_the_window_is_unknown(self) -> None:
        assert believed(empty_stop(), window_tokens=None, counted_tokens=5) == empty_stop()

    @pytest.mark.parametrize(("prompt", "is_one"), [(989, False), (990, True), (1000, True)])
    def test_it_is_one_when_the_prompt_fills_the_window(self, prompt: int, is_one: bool) -> None:
        by_provider = believed(empty_stop(prompt), window_tokens=1000, counted_tokens=1)
        by_us = believed(empty_stop(), window_tokens=1000, counted_tokens=prompt)
        assert (by_provider is not None) is is_one
        assert (by_us is not None) is is_one

    def test_it_is_none_when_nobody_knows_the_prompt(self) -> None:
        assert believed(empty_stop(), window_tokens=1000, counted_tokens=None) is None

    def test_other_refusals_are_believed(self) -> None:
        assert believed(OVERFLOW, window_tokens=1000, counted_tokens=1) is OVERFLOW


@pytest.mark.parametrize(
    ("refusal", "replays", "first"),
    [
        (None, SPENT, False),
        (OTHER, SPENT, False),
        (OVERFLOW, SPENT, True),
        (OUTPUT, SPENT, True),
        (IMAGES, SPENT, True),
        (BYTES, SPENT, False),
        (BYTES, Replays(image=1), True),
    ],
)
def test_one_more_refusal_shows_the_first_error(
    refusal: Refusal | None, replays: Replays, first: bool
) -> None:
    """A success, 429 or 5xx after a replay is the answer."""
    assert shows_first_error(refusal, replays) is first
