"""Limits: who is asked first, and what a refusal may teach."""

import pytest

from proxy.core.budget import Policy
from proxy.core.limits import (
    Configured,
    LimitKind,
    ModelLimits,
    Source,
    StatedLimit,
    contradicted_setting,
    describe,
    outgrown,
    resolve,
    worth_learning,
)
from proxy.core.listings import Listed

LISTED = Listed(window_tokens=65_536, max_output_tokens=4_096, vision=True)
CATALOGUED = Listed(window_tokens=400_000, input_limit_tokens=272_000, max_output_tokens=128_000)


def resolved(
    configured: Configured = Configured(),  # noqa: B008 - a frozen value
    *,
    learned: dict[LimitKind, int] | None = None,
    listed: Listed | None = None,
    catalogued: Listed | None = None,
) -> ModelLimits:
    return resolve(configured, learned=learned or {}, listed=listed, catalogued=catalogued)


class TestOrder:
    """The first that answers: the setting, the listing, the catalogue, nobody."""

    def test_the_setting_wins(self) -> None:
        """Case R034."""
        limits = resolved(Configured(window_tokens=32_768), listed=LISTED, catalogued=CATALOGUED)
        assert (limits.window_tokens, limits.window_source) == (32_768, Source.CONFIGURED)

    def test_a_setting_above_every_other_wins_too(self) -> None:
        """Case R038: the catalogue's prompt limit does not come with somebody else's window."""
        limits = resolved(Configured(window_tokens=1_000_000), catalogued=CATALOGUED)
        assert (limits.window_tokens, limits.input_limit_tokens) == (1_000_000, None)

    def test_then_the_listing(self) -> None:
        limits = resolved(listed=LISTED, catalogued=CATALOGUED)
        assert (limits.window_tokens, limits.window_source) == (65_536, Source.LISTED)
        assert limits.input_limit_tokens is None
        assert limits.vision is True

    def test_a_listing_without_a_window_says_nothing(self) -> None:
        limits = resolved(listed=Listed(max_output_tokens=7), catalogued=CATALOGUED)
        assert (limits.window_tokens, limits.window_source) == (400_000, Source.CATALOGUED)
        assert (limits.input_limit_tokens, limits.input_limit_source) == (
            272_000,
            Source.CATALOGUED,
        )
        assert (limits.max_output_tokens, limits.max_output_source) == (7, Source.LISTED)

    def test_nobody_knows(self) -> None:
        """Case R035: no assumed window; compaction waits for a refusal."""
        limits = resolved()
        assert (limits.window_tokens, limits.window_source) == (None, Source.UNKNOWN)
        assert not limits.budget(0).valid

    def test_a_prompt_limit_that_the_operator_wrote_needs_no_window(self) -> None:
        limits = resolved(Configured(input_limit_tokens=8_000))
        assert limits.budget(0).trigger_tokens == 6_400
        both = resolved(Configured(input_limit_tokens=8_000), catalogued=CATALOGUED)
        assert (both.window_tokens, both.input_limit_tokens) == (400_000, 8_000)


class TestLearned:
    """A learned limit lowers what was known, and never raises it."""

    @pytest.mark.parametrize("known", [Configured(window_tokens=32_768), Configured()])
    def test_it_lowers(self, known: Configured) -> None:
        limits = resolved(known, learned={LimitKind.WINDOW: 16_000}, listed=LISTED)
        assert (limits.window_tokens, limits.window_source) == (16_000, Source.LEARNED)

    def test_it_does_not_raise(self) -> None:
        limits = resolved(Configured(window_tokens=8_000), learned={LimitKind.WINDOW: 16_000})
        assert (limits.window_tokens, limits.window_source) == (8_000, Source.CONFIGURED)

    def test_a_prompt_limit_is_kept_apart(self) -> None:
        """Case R037."""
        limits = resolved(Configured(window_tokens=400_000), learned={LimitKind.INPUT: 272_000})
        assert (limits.window_tokens, limits.input_limit_tokens) == (400_000, 272_000)
        budget = limits.budget(8_192)
        assert (budget.prompt_limit_tokens, budget.trigger_tokens) == (272_000, 217_600)

    def test_a_prompt_limit_over_the_window_says_nothing(self) -> None:
        limits = resolved(learned={LimitKind.INPUT: 70_000}, listed=LISTED)
        assert limits.input_limit_tokens is None


def test_headroom_is_automatic_for_a_window_that_nobody_wrote() -> None:
    learned = {LimitKind.WINDOW: 20_000}
    assert resolved(Configured(window_tokens=200_000)).budget(0).headroom_tokens == 65_536
    lowered = resolved(Configured(window_tokens=200_000), learned=learned)
    assert lowered.budget(0).headroom_tokens == 2_500


def test_only_the_operator_s_output_limit_is_reserved() -> None:
    listed = resolved(listed=LISTED)
    assert (listed.max_output_tokens, listed.output_reserve({})) == (4_096, 0)
    written = resolved(Configured(max_output_tokens=100), listed=LISTED)
    assert (written.output_reserve({}), written.output_reserve({"max_tokens": 5})) == (100, 5)


class TestWorthLearning:
    """L >= 1024, below what is known, and our count + O at least two thirds of it."""

    @pytest.mark.parametrize(
        ("tokens", "counted", "output", "worth"),
        [
            (16_000, 10_560, 0, True),
            (16_000, 10_559, 0, False),
            (16_000, 10_000, 560, True),
            (1_024, 1_000, 0, True),
            (1_023, 1_000, 0, False),
            (32_767, 40_000, 0, True),
            (32_768, 40_000, 0, False),
            (40_000, 40_000, 0, False),
        ],
    )
    def test_of_a_window(self, tokens: int, counted: int, output: int, worth: bool) -> None:
        known = resolved(Configured(window_tokens=32_768))
        assert worth_learning(StatedLimit(tokens, counted, output), known) is worth

    def test_and_what_is_stated_of_a_prompt_bounds_itself(self) -> None:
        assert StatedLimit(1, 1, 1).kind is LimitKind.WINDOW
        assert StatedLimit(1, 1, 1, input_only=True).kind is LimitKind.INPUT

    def test_any_plausible_limit_where_nothing_is_known(self) -> None:
        assert worth_learning(StatedLimit(500_000, 400_000, 0), resolved())

    def test_of_a_prompt_limit_output_does_not_count(self) -> None:
        known = resolved(Configured(window_tokens=400_000))
        assert worth_learning(StatedLimit(272_000, 200_000, 0, input_only=True), known)
        assert not worth_learning(StatedLimit(272_000, 100_000, 100_000, input_only=True), known)

    def test_a_prompt_limit_is_compared_with_the_known_one(self) -> None:
        known = resolved(catalogued=CATALOGUED)
        assert not worth_learning(StatedLimit(272_000, 280_000, 0, input_only=True), known)
        assert worth_learning(StatedLimit(250_000, 280_000, 0, input_only=True), known)

    def test_a_limit_stated_again_holds_on(self) -> None:
        learned = resolved(learned={LimitKind.WINDOW: 16_000})
        assert worth_learning(StatedLimit(16_000, 17_000, 0), learned)
        assert not worth_learning(StatedLimit(16_001, 17_000, 0), learned)


def test_a_setting_is_contradicted_by_a_lower_limit() -> None:
    written = Configured(window_tokens=32_768, input_limit_tokens=24_000)
    assert contradicted_setting(StatedLimit(16_000, 1, 1), written) == 32_768
    assert contradicted_setting(StatedLimit(16_000, 1, 1, input_only=True), written) == 24_000
    assert contradicted_setting(StatedLimit(16_000, 1, 1), Configured()) is None
    assert contradicted_setting(StatedLimit(40_000, 1, 1), written) is None


def test_a_success_above_a_limit_refutes_it() -> None:
    learned = {LimitKind.WINDOW: 16_000, LimitKind.INPUT: 12_000}
    assert outgrown(learned, 12_000, 4_000) == ()
    assert outgrown(learned, 12_001, 0) == (LimitKind.INPUT,)
    assert outgrown(learned, 12_000, 4_001) == (LimitKind.WINDOW,)


def test_what_holds_is_described_in_plain_values() -> None:
    configured = Configured(
        window_tokens=131_072, policy=Policy(headroom_tokens=65_536), max_output_tokens=8_192
    )
    limits = resolved(configured)
    said = describe(limits, limits.output_reserve({}))
    assert said["window_source"] == "configured"
    assert (said["trigger"], said["retain"], said["valid"]) == (57_344, 19_660, True)
    assert said["problem"] is None
    assert "context_window" in describe(resolved(), 0)["problem"]
