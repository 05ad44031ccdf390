"""Prices equal the published formulas, written out here a second time and in another way."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proxy.core.image_prices import (
    MAX_SIDE_PX,
    NOMINAL_HEIGHT_PX,
    NOMINAL_WIDTH_PX,
    UNKNOWN_IMAGE_TOKENS,
    ImageFamily,
    image_family,
    price_image,
)

SIZES = (
    (64, 64),
    (384, 384),
    (385, 384),
    (512, 512),
    (768, 1024),
    (960, 540),
    (1024, 1024),
    (1280, 800),
    (1920, 1080),
    (1800, 2400),
    (1170, 2532),
    (4032, 3024),
)


def tiles(base: int, tile: int) -> Callable[[int, int, str], int]:
    """OpenAI: scale into 2048 x 2048, shortest side to 768, count squares of 512."""

    def price(width: int, height: int, detail: str) -> int:
        if detail == "low":
            return base
        scale = min(
            Fraction(1), Fraction(2048, max(width, height)), Fraction(768, min(width, height))
        )
        squares = math.ceil(int(width * scale) / 512) * math.ceil(int(height * scale) / 512)
        return base + tile * squares

    return price


def patches(
    multiplier: str, limits: dict[str, tuple[int, int | None]]
) -> Callable[[int, int, str], int]:
    """OpenAI: the steps A to D of "Patch-based image tokenization", in floats as printed."""

    def price(width: int, height: int, detail: str) -> int:
        side, budget = limits.get(detail, limits["auto"])
        if max(width, height) > side:
            scale = side / max(width, height)
            width, height = math.floor(width * scale + 0.5), math.floor(height * scale + 0.5)
        count = math.ceil(width / 32) * math.ceil(height / 32)
        if budget is not None and count > budget:
            shrink = math.sqrt(32**2 * budget / (width * height))
            shrink *= min(
                math.floor(width * shrink / 32) / (width * shrink / 32),
                math.floor(height * shrink / 32) / (height * shrink / 32),
            )
            # Half a thousandth of a pixel: one side is a whole number of patches but for rounding.
            resized = [math.floor(length * shrink + 0.0005) for length in (width, height)]
            count = math.ceil(resized[0] / 32) * math.ceil(resized[1] / 32)
        return math.ceil(count * Fraction(multiplier))

    return price


def claude(max_edge: int, max_tokens: int) -> Callable[[int, int, str], int]:
    """Anthropic: the largest size of the same shape within both limits, found one by one."""

    def tokens(width: int, height: int) -> int:
        return math.ceil(width / 28) * math.ceil(height / 28)

    def price(width: int, height: int, detail: str) -> int:
        long, short = max(width, height), min(width, height)
        for edge in range(long, 0, -1):
            other = short if edge == long else max(1, round(edge / (long / short)))
            if math.ceil(edge / 28) * 28 <= max_edge and tokens(edge, other) <= max_tokens:
                return tokens(edge, other)
        raise AssertionError("one pixel always fits")

    return price


def gemini(width: int, height: int, detail: str) -> int:
    """Google: 258 when both sides are at most 384, else 258 for each crop."""
    if width <= 384 and height <= 384:
        return 258
    unit = max(256, math.floor(min(width, height) / 1.5))
    return 258 * math.ceil(width / unit) * math.ceil(height / unit)


def qwen(factor: int, fewest_pixels: int, most_pixels: int) -> Callable[[int, int, str], int]:
    """Qwen: `smart_resize`, then a token for each square of the factor, and two marks."""

    def price(width: int, height: int, detail: str) -> int:
        h_bar, w_bar = round(height / factor) * factor, round(width / factor) * factor
        if h_bar * w_bar > most_pixels:
            beta = math.sqrt(height * width / most_pixels)
            h_bar = math.floor(height / beta / factor) * factor
            w_bar = math.floor(width / beta / factor) * factor
        elif h_bar * w_bar < fewest_pixels:
            beta = math.sqrt(fewest_pixels / (height * width))
            h_bar = math.ceil(height * beta / factor) * factor
            w_bar = math.ceil(width * beta / factor) * factor
        return h_bar * w_bar // factor**2 + 2

    return price


SMALL: dict[str, tuple[int, int | None]] = {"auto": (2048, 1536)}
LARGE: dict[str, tuple[int, int | None]] = {"auto": (2048, 6144)}

PUBLISHED: dict[str, Callable[[int, int, str], int]] = {
    "gpt-4o": tiles(85, 170),
    "gpt-4.1": tiles(85, 170),
    "gpt-4.5-preview": tiles(85, 170),
    "gpt-4o-mini": tiles(2833, 5667),
    "gpt-5": tiles(70, 140),
    "gpt-5.1": tiles(70, 140),
    "o1": tiles(75, 150),
    "o3": tiles(75, 150),
    "computer-use-preview": tiles(65, 129),
    "gpt-4.1-mini": patches("1.62", LARGE),
    "gpt-4.1-nano": patches("2.46", SMALL),
    "o4-mini": patches("1.72", SMALL),
    "gpt-5-mini": patches("1.2", SMALL),
    "gpt-5-nano": patches("1.5", SMALL),
    "gpt-5.2": patches("1.2", LARGE),
    "gpt-5.4": patches(
        "1.2", {"low": (2048, 6144), "auto": (2048, 2500), "original": (6000, 10_000)}
    ),
    "gpt-5.5": patches("1.2", {"low": (512, None), "high": (2048, 2500), "auto": (6000, 10_000)}),
    "gpt-5.6-sol": patches(
        "1.2", {"low": (512, None), "high": (2048, 2500), "auto": (65_535, None)}
    ),
    "claude-sonnet-4-5": claude(1568, 1568),
    "claude-opus-4-7": claude(2576, 4784),
    "gemini-2.5-flash": gemini,
    "gemini-3-pro-preview": lambda width, height, detail: 1120,
    "qwen2.5-vl-72b-instruct": qwen(28, 4 * 28 * 28, 16_384 * 28 * 28),
    "qwen3-vl-plus": qwen(32, 64 * 32 * 32, 16_384 * 32 * 32),
}


@pytest.mark.parametrize("model", PUBLISHED)
@pytest.mark.parametrize(("width_px", "height_px"), SIZES)
def test_the_price_is_that_of_the_published_formula(
    model: str, width_px: int, height_px: int
) -> None:
    for detail in ("auto", "low", "high", "original"):
        expected = PUBLISHED[model](width_px, height_px, detail)
        assert price_image(model, width_px, height_px, detail) == expected, detail


def test_the_table_covers_every_family() -> None:
    assert {image_family(model) for model in PUBLISHED} == set(ImageFamily) - {ImageFamily.UNKNOWN}


@given(st.sampled_from(sorted(PUBLISHED)), st.integers(28, 4000), st.integers(28, 4000))
def test_other_sizes_agree_too(model: str, width_px: int, height_px: int) -> None:
    """Up to four times as long as wide: beyond that our bounds begin, which no formula has."""
    assume(max(width_px, height_px) <= 4 * min(width_px, height_px))
    assert price_image(model, width_px, height_px) == PUBLISHED[model](width_px, height_px, "auto")


@pytest.mark.parametrize(
    ("model", "width_px", "height_px", "detail", "tokens"),
    [
        ("gpt-4o", 1024, 1024, "high", 765),
        ("gpt-4o", 2048, 4096, "high", 1105),
        ("gpt-4o", 4096, 8192, "low", 85),
        ("gpt-5.4", 1024, 1024, "high", 1229),
        ("gpt-5.4", 2048, 2048, "high", 3000),
        ("o4-mini", 1800, 2400, "high", math.ceil(1452 * 1.72)),
        ("claude-sonnet-4-5", 200, 200, None, 64),
        ("claude-sonnet-4-5", 1000, 1000, None, 1296),
        ("claude-sonnet-4-5", 1920, 1080, None, 1560),
        ("claude-sonnet-4-5", 2000, 1500, None, 1564),
        ("claude-opus-4-8", 1920, 1080, None, 2691),
        ("claude-opus-4-8", 2000, 1500, None, 3888),
        ("claude-opus-4-8", 3840, 2160, None, 4784),
        ("gemini-2.5-pro", 960, 540, None, 6 * 258),
    ],
)
def test_the_providers_own_examples_come_out(
    model: str, width_px: int, height_px: int, detail: str | None, tokens: int
) -> None:
    assert price_image(model, width_px, height_px, detail) == tokens


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("openai/gpt-4o", ImageFamily.GPT_4O),
        ("gpt-4o-2024-11-20", ImageFamily.GPT_4O),
        ("chatgpt-4o-latest", ImageFamily.GPT_4O),
        ("GPT-4.1", ImageFamily.GPT_4O),
        ("my-gpt-4o-deployment", ImageFamily.GPT_4O),
        ("ft:gpt-4o-mini-2024-07-18:acme::abc", ImageFamily.GPT_4O_MINI),
        ("openai/gpt-4.1-mini:free", ImageFamily.GPT_4_1_MINI),
        ("gpt-5-2025-08-07", ImageFamily.GPT_5),
        ("gpt-5-mini-2025-08-07", ImageFamily.GPT_5_MINI),
        ("gpt-5.1-codex-mini", ImageFamily.GPT_5_MINI),
        ("gpt-5.2-codex", ImageFamily.GPT_5_2),
        ("gpt-5.4-nano", ImageFamily.GPT_5_4),
        ("gpt-6-astra", ImageFamily.GPT_5_6),
        ("o1-2024-12-17", ImageFamily.O_SERIES),
        ("o3-pro", ImageFamily.O_SERIES),
        ("o3-mini", ImageFamily.UNKNOWN),
        ("marco-o1", ImageFamily.UNKNOWN),
        ("gpt-oss-120b", ImageFamily.UNKNOWN),
        ("anthropic/claude-3.7-sonnet:thinking", ImageFamily.CLAUDE),
        ("us.anthropic.claude-3-5-sonnet-20240620-v1:0", ImageFamily.CLAUDE),
        ("claude-sonnet-4-20250514", ImageFamily.CLAUDE),
        ("claude-opus-4-7@20260416", ImageFamily.CLAUDE_HIGH_RESOLUTION),
        ("claude-opus-5-5", ImageFamily.CLAUDE_HIGH_RESOLUTION),
        ("claude-sonnet-latest", ImageFamily.CLAUDE_HIGH_RESOLUTION),
        ("models/gemini-2.0-flash-001", ImageFamily.GEMINI),
        ("google/gemini-3.1-pro-preview", ImageFamily.GEMINI_3),
        ("gemini-flash-latest", ImageFamily.GEMINI_3),
        ("Qwen/Qwen2-VL-7B-Instruct", ImageFamily.QWEN_VL),
        ("accounts/fireworks/models/qwen2p5-vl-32b-instruct", ImageFamily.QWEN_VL),
        ("qwen2.5vl:7b", ImageFamily.QWEN_VL),
        ("qwen-vl-max", ImageFamily.QWEN_VL),
        ("qwen3-vl:235b", ImageFamily.QWEN_3_VL),
        ("qwen/qwen3.5-397b-a17b", ImageFamily.QWEN_3_VL),
        ("qwen3-coder", ImageFamily.UNKNOWN),
        ("", ImageFamily.UNKNOWN),
    ],
)
def test_names_resolve_through_prefixes_tags_and_dates(name: str, family: ImageFamily) -> None:
    assert image_family(name) is family


@pytest.mark.parametrize("size", [(None, None), (None, 5), (5, None), (0, 5), (5, -1)])
def test_an_unknown_size_is_priced_as_the_nominal_one(size: tuple[int | None, int | None]) -> None:
    for family in ImageFamily:
        nominal = price_image(family, NOMINAL_WIDTH_PX, NOMINAL_HEIGHT_PX)
        assert price_image(family, *size) == nominal


def test_an_unknown_family_has_one_price() -> None:
    assert price_image("llama-4-scout", 10, 10) == UNKNOWN_IMAGE_TOKENS
    assert price_image("llama-4-scout", None, None, "low") == UNKNOWN_IMAGE_TOKENS


def test_low_detail_needs_no_size() -> None:
    assert price_image("gpt-4o", None, None, "low") == 85
    assert price_image("gpt-4o-mini", None, None, "LOW") == 2833


@given(
    st.one_of(st.text(), st.sampled_from(list(ImageFamily))),
    st.none() | st.integers(),
    st.none() | st.integers(),
    st.none() | st.text() | st.sampled_from(["low", "high", "original"]),
)
def test_no_price_raises_is_negative_or_grows_without_bound(
    model: str, width_px: int | None, height_px: int | None, detail: str | None
) -> None:
    assert 0 < price_image(model, width_px, height_px, detail) <= 50_000


@given(st.sampled_from(list(ImageFamily)), st.integers(1, MAX_SIDE_PX), st.integers(1, MAX_SIDE_PX))
def test_a_turned_image_costs_the_same(family: ImageFamily, width_px: int, height_px: int) -> None:
    assert price_image(family, width_px, height_px) == price_image(family, height_px, width_px)
