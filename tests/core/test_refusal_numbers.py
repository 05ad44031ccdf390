"""A number's role follows from the words beside it."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.overflow import SignTable, load_table
from proxy.core.refusal_numbers import NUMBERS_MAX, Stated, readable

READER = SignTable(load_table()).numbers


def tokens(text: str) -> Stated:
    return READER.tokens(readable(text), {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5,958,968 tokens", "5958968 tokens"),
        ("145.210 tokens and 145 210 tokens", "145210 tokens and 145210 tokens"),
        ("version 2.0 or 1.5", "version 2.0 or 1.5"),
        ("[1, 204800]", "[1, 204800]"),
        ("[1,128]", "[1,128]"),
        ("160k of text, 1.5M, 12.8万", "160000 of text, 1500000, 128000"),
        ("gpt-4-32k", "gpt-4-32k"),
        ("the `prompt`\n is “long”", "the prompt is long"),
        ("see https://example.com/9000/rate-limits now", "see now"),
        ("\u212aelvin \uff11\uff12", "Kelvin 12"),
        ("data:image/png;base64,AAAA/+= x", "x"),
        ("'content' isn't", "content isn't"),
    ],
)
def test_a_text_is_made_readable(text: str, expected: str) -> None:
    assert readable(text) == expected


@pytest.mark.parametrize(
    ("text", "window", "prompt", "output"),
    [
        ("context window: 9000", 9000, None, None),
        ("the prompt has 9500 tokens", None, 9500, None),
        ("100 tokens for the completion", None, None, 100),
        ("you requested 9500 tokens", None, 9500, None),
        ("you requested 9500 tokens, lower max_tokens", None, None, None),
        ("9500 of text input, 5 of tool input", None, 9505, None),
        ("your context length is 9500, the limit is 9000", 9000, 9500, None),
        ("the prompt has 9500 tokens, 9000 in the messages", None, 9500, None),
        ("tokens: 9500/9000", 9000, 9500, None),
        ("exceeded by 12 tokens", None, None, None),
        ("error code 5021: nothing", None, None, None),
        ("at most 4000 completion tokens", None, None, None),
        ("maximum is 0 tokens", None, None, None),
    ],
)
def test_roles(text: str, window: int | None, prompt: int | None, output: int | None) -> None:
    stated = tokens(text)
    assert (stated.window_tokens, stated.prompt_tokens, stated.requested_output_tokens) == (
        window,
        prompt,
        output,
    )


def test_listed_figures_fill_in_what_the_text_lacks() -> None:
    stated = READER.tokens("no room", {"n_ctx": 512, "n_prompt_tokens": 700})
    assert (stated.window_tokens, stated.prompt_tokens) == (512, 700)
    assert READER.tokens("no room", {"n_ctx": -1}).window_tokens is None


def test_a_listing_is_read_in_part() -> None:
    text = " ".join(f"item 7{n}," for n in range(2 * NUMBERS_MAX)) + " context window: 9000"
    assert tokens(text).window_tokens is None


def test_byte_units_scale() -> None:
    for text, expected in (
        ("limit is 10 MB", 10 * 1024**2),
        ("limit is 4.5MB", 4_718_592),
        ("at most 512 bytes", 512),
        ("20 KB max", 20 * 1024),
    ):
        stated = Stated()
        READER.sizes(text, stated, {})
        assert stated.limit_bytes == expected
    stated = Stated()
    READER.sizes("too large", stated, {"limit": 100, "length": 700})
    assert (stated.limit_bytes, stated.actual_bytes) == (100, 700)
    stated = Stated()
    READER.sizes("nothing", stated, {})
    READER.images("nothing", stated)
    assert (stated.limit_bytes, stated.image_limit) == (None, None)


def test_the_table_is_well_formed() -> None:
    table = load_table()
    roles = {row["role"] for row in table["cue"]}
    assert roles == {
        "ignore", "cap", "total", "output", "prompt_least", "prompt", "part", "window",
    }  # fmt: skip
    assert all(row.get("source") for row in table["sign"])
    with pytest.raises(KeyError):
        SignTable(tomllib.loads("[words]\n[[sign]]\nname='x'\n"))


@given(st.text(max_size=200))
def test_any_text_can_be_read(text: str) -> None:
    plain = readable(text)
    assert isinstance(tokens(text), Stated)
    assert READER.output(plain) is None or READER.output(plain) >= 0  # type: ignore[operator]
    READER.images(plain, Stated())
    READER.sizes(plain, Stated(), {})


@pytest.mark.parametrize(
    ("text", "limit_px"),
    [
        ("At least one of the image dimensions exceed max allowed size: 8000 pixels", 8000),
        ("image dimensions exceed max allowed size for many-image requests: 2000 pixels", 2000),
        ("The image is too large. Maximum is 4096x4096 pixels.", 4096),
        ("Image width must be at most 2048px", 2048),
        ("image has 36000000 pixels, too many", None),
        ("image exceeds 5 MB maximum", None),
        ("At most 5 image(s) may be provided", None),
    ],
)
def test_the_longest_side_that_an_image_may_have(text: str, limit_px: int | None) -> None:
    stated = Stated()
    READER.pixels(readable(text), stated)
    assert stated.limit_px == limit_px
