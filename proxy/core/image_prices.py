"""What an image costs in tokens, by model family, pixel size and `detail`.

Every rule is the provider's published one; its docstring names the page. Where two editions of a
page differ, the later one holds. A size or a family that is not known has a stated price. No
price is negative, and none grows without bound: a header can claim any size.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import ceil, floor, isqrt, sqrt

UNKNOWN_IMAGE_TOKENS = 1600
"""Any image for a family without a rule: what a full-size one costs in the common families
(Claude 1568, gpt-4o 1445, Gemini 3 1120), rounded up."""

NOMINAL_WIDTH_PX = 1536
NOMINAL_HEIGHT_PX = 1024
"""The size taken for an image whose size is not known (remote URL, unreadable header): a common
size of screenshots and generated pictures. Chosen."""

MAX_SIDE_PX = 65_535
"""The longest side taken at its word: what JPEG and GIF can state."""

_LONGEST_MODEL_NAME = 256
"""Names are the client's; the cache of resolved names must not hold whatever it sends."""


class ImageFamily(StrEnum):
    """Models that price images alike."""

    GPT_4O = "gpt-4o"
    GPT_4O_MINI = "gpt-4o-mini"
    GPT_5 = "gpt-5"
    O_SERIES = "o-series"
    COMPUTER_USE = "computer-use"
    GPT_4_1_MINI = "gpt-4.1-mini"
    GPT_4_1_NANO = "gpt-4.1-nano"
    O4_MINI = "o4-mini"
    GPT_5_MINI = "gpt-5-mini"
    GPT_5_NANO = "gpt-5-nano"
    GPT_5_2 = "gpt-5.2"
    GPT_5_4 = "gpt-5.4"
    GPT_5_5 = "gpt-5.5"
    GPT_5_6 = "gpt-5.6"
    CLAUDE = "claude"
    CLAUDE_HIGH_RESOLUTION = "claude-high-resolution"
    GEMINI = "gemini"
    GEMINI_3 = "gemini-3"
    QWEN_VL = "qwen-vl"
    QWEN_3_VL = "qwen3-vl"
    UNKNOWN = "unknown"


def image_family(model: str) -> ImageFamily:
    """The family of a model name, through vendor prefixes, tags, dated and fine-tuned names."""
    return _family(model[-_LONGEST_MODEL_NAME:].lower())


def price_image(
    model: str | ImageFamily,
    width_px: int | None,
    height_px: int | None,
    detail: str | None = None,
) -> int:
    """The tokens of one image; without a usable size, those of the nominal size."""
    family = model if isinstance(model, ImageFamily) else image_family(model)
    rule = _RULES.get(family)
    if rule is None:
        return UNKNOWN_IMAGE_TOKENS
    if width_px is None or height_px is None or width_px < 1 or height_px < 1:
        width_px, height_px = NOMINAL_WIDTH_PX, NOMINAL_HEIGHT_PX
    level = detail.lower() if isinstance(detail, str) else "auto"
    return rule(min(width_px, MAX_SIDE_PX), min(height_px, MAX_SIDE_PX), level)


_Rule = Callable[[int, int, str], int]


@dataclass(frozen=True, slots=True)
class _Tiles:
    """A base price, and a price for each tile of 512 px after scaling down.

    Source: OpenAI, "Images and vision", "Tile-based image tokenization": fit into 2048 x 2048,
    then bring a shortest side over 768 px down to 768 px, the other side rounded down; `low` is
    the base price alone, `auto` is `high`.
    """

    base_tokens: int
    tile_tokens: int

    def __call__(self, width_px: int, height_px: int, detail: str) -> int:
        """The price."""
        if detail == "low":
            return self.base_tokens
        width_px, height_px = _fit(width_px, height_px, 2048)
        short_px = min(width_px, height_px)
        if short_px > 768:
            width_px, height_px = width_px * 768 // short_px, height_px * 768 // short_px
        return self.base_tokens + self.tile_tokens * _cover(width_px, height_px, 512)


@dataclass(frozen=True, slots=True)
class _Limit:
    """How far a patch model looks into an image: longest side, and patches if they are capped."""

    side_px: int
    patches: int | None


@dataclass(frozen=True, slots=True)
class _Patches:
    """The patches of 32 px that cover the image after scaling down, times a multiplier.

    Source: OpenAI, "Images and vision", "Model sizing behavior" and "Patch-based image
    tokenization". A detail without a limit of its own is priced as `auto`. gpt-5-mini, gpt-5-nano,
    gpt-4.1-nano and o4-mini have left the sizing table: their limits are those of its earlier
    edition, their multipliers those of the present one, which also agree with measured usage.
    """

    percent: int
    limits: dict[str, _Limit]

    def __call__(self, width_px: int, height_px: int, detail: str) -> int:
        """The price; more than 30000 patches are refused by the provider, so not priced."""
        limit = self.limits.get(detail) or self.limits["auto"]
        width_px, height_px = _fit(width_px, height_px, limit.side_px)
        if limit.patches is not None and _cover(width_px, height_px, 32) > limit.patches:
            width_px, height_px = _shrink_to_patches(width_px, height_px, limit.patches)
        patches = min(_cover(width_px, height_px, 32), 30_000)
        return -(-patches * self.percent // 100)


def _shrink_to_patches(width_px: int, height_px: int, patches: int) -> tuple[int, int]:
    """The published shrink factor, in whole numbers.

    sqrt(32^2 * patches / (w * h)), lowered until one side is a whole number of patches, scales
    that side to floor(sqrt(patches * w / h)) patches, or its counterpart; the smaller scale holds.
    """
    across = max(1, isqrt(patches * width_px // height_px))
    down = max(1, isqrt(patches * height_px // width_px))
    if across * height_px <= down * width_px:
        return 32 * across, max(1, 32 * across * height_px // width_px)
    return max(1, 32 * down * width_px // height_px), 32 * down


@dataclass(frozen=True, slots=True)
class _Claude:
    """One token per patch of 28 px, after scaling down to the model's side and token limits.

    Source: Anthropic, "Vision", "Resolution and token cost", and "Coordinates and bounding
    boxes", "How Claude resizes and pads images". Earlier editions gave the approximation
    w * h / 750 with a cap of about 1600, which is 4% more for an image of whole patches.
    """

    side_px: int
    max_tokens: int

    def __call__(self, width_px: int, height_px: int, detail: str) -> int:
        """The price; `detail` means nothing to this family."""
        long_px, short_px = max(width_px, height_px), min(width_px, height_px)
        if self._fits(long_px, short_px):
            return _cover(long_px, short_px, 28)
        ratio = long_px / short_px
        fitting_px, excessive_px = 1, long_px
        while excessive_px - fitting_px > 1:
            middle_px = (fitting_px + excessive_px) // 2
            if self._fits(middle_px, max(1, round(middle_px / ratio))):
                fitting_px = middle_px
            else:
                excessive_px = middle_px
        return _cover(fitting_px, max(1, round(fitting_px / ratio)), 28)

    def _fits(self, long_px: int, short_px: int) -> bool:
        padded_px = -(-long_px // 28) * 28
        return padded_px <= self.side_px and _cover(long_px, short_px, 28) <= self.max_tokens


def _gemini(width_px: int, height_px: int, detail: str) -> int:
    """258 tokens up to 384 px a side, above that for each crop.

    Source: Google, "Image understanding", "Token calculation": the crop unit is
    floor(min(w, h) / 1.5), and the sides divided by it, rounded up, give the crops; its smallest
    is 256 px (stated there for Gemini 1.5). "Media resolution" puts the sum at about 2048, so
    very long images are held to 16 crops, twice that.
    """
    if max(width_px, height_px) <= 384:
        return 258
    unit_px = max(256, min(width_px, height_px) * 2 // 3)
    return 258 * min(_cover(width_px, height_px, unit_px), 16)


def _gemini_3(width_px: int, height_px: int, detail: str) -> int:
    """1120 tokens, whatever the size.

    Source: Google, "Media resolution", "Token counts", the default for images. Chat requests do
    not carry that setting, and what a gateway makes of `detail` is not stated anywhere.
    """
    return 1120


@dataclass(frozen=True, slots=True)
class _Qwen:
    """One token per merged patch after both sides were rounded to whole patches, and two marks.

    Source: Qwen, `smart_resize` of `qwen-vl-utils`, with the pixel limits of the models' own
    preprocessor configurations; the two are `<|vision_start|>` and `<|vision_end|>`.
    """

    patch_px: int
    min_pixels: int
    max_pixels: int

    def __call__(self, width_px: int, height_px: int, detail: str) -> int:
        """The price; `detail` means nothing to this family."""
        sides_px = (width_px, height_px)
        patches = [max(1, round(side / self.patch_px)) for side in sides_px]
        pixels = patches[0] * patches[1] * self.patch_px**2
        if pixels > self.max_pixels:
            scale = sqrt(width_px * height_px / self.max_pixels)
            patches = [max(1, floor(side / scale / self.patch_px)) for side in sides_px]
        elif pixels < self.min_pixels:
            scale = sqrt(self.min_pixels / (width_px * height_px))
            patches = [ceil(side * scale / self.patch_px) for side in sides_px]
        return patches[0] * patches[1] + 2


def _fit(width_px: int, height_px: int, side_px: int) -> tuple[int, int]:
    """Both sides at most `side_px`, to the nearest pixel; smaller images stay as they are."""
    long_px = max(width_px, height_px)
    if long_px <= side_px:
        return width_px, height_px
    half = long_px // 2
    return (
        max(1, (width_px * side_px + half) // long_px),
        max(1, (height_px * side_px + half) // long_px),
    )


def _cover(width_px: int, height_px: int, square_px: int) -> int:
    """How many squares cover the image."""
    return -(-width_px // square_px) * -(-height_px // square_px)


_LOW = _Limit(512, None)
_HIGH = _Limit(2048, 2500)
_ORIGINAL = _Limit(6000, 10_000)
_SMALL = {"auto": _Limit(2048, 1536)}
_LARGE = {"auto": _Limit(2048, 6144)}

_RULES: dict[ImageFamily, _Rule] = {
    ImageFamily.GPT_4O: _Tiles(85, 170),
    ImageFamily.GPT_4O_MINI: _Tiles(2833, 5667),
    ImageFamily.GPT_5: _Tiles(70, 140),
    ImageFamily.O_SERIES: _Tiles(75, 150),
    ImageFamily.COMPUTER_USE: _Tiles(65, 129),
    ImageFamily.GPT_4_1_MINI: _Patches(162, _LARGE),
    ImageFamily.GPT_4_1_NANO: _Patches(246, _SMALL),
    ImageFamily.O4_MINI: _Patches(172, _SMALL),
    ImageFamily.GPT_5_MINI: _Patches(120, _SMALL),
    ImageFamily.GPT_5_NANO: _Patches(150, _SMALL),
    ImageFamily.GPT_5_2: _Patches(120, _LARGE),
    ImageFamily.GPT_5_4: _Patches(
        120, {"low": _Limit(2048, 6144), "auto": _HIGH, "original": _ORIGINAL}
    ),
    ImageFamily.GPT_5_5: _Patches(120, {"low": _LOW, "high": _HIGH, "auto": _ORIGINAL}),
    ImageFamily.GPT_5_6: _Patches(
        120, {"low": _LOW, "high": _HIGH, "auto": _Limit(MAX_SIDE_PX, None)}
    ),
    ImageFamily.CLAUDE: _Claude(1568, 1568),
    ImageFamily.CLAUDE_HIGH_RESOLUTION: _Claude(2576, 4784),
    ImageFamily.GEMINI: _gemini,
    ImageFamily.GEMINI_3: _gemini_3,
    ImageFamily.QWEN_VL: _Qwen(28, 56 * 56, 16_384 * 28 * 28),
    ImageFamily.QWEN_3_VL: _Qwen(32, 256 * 256, 16_384 * 32 * 32),
}

_NAMES: tuple[tuple[re.Pattern[str], ImageFamily], ...] = tuple(
    (re.compile(rf"(?:^|[/:._-]){pattern}"), family)
    for pattern, family in (
        # The first match wins: a narrower name stands above the wider one it begins with.
        (r"computer-use", ImageFamily.COMPUTER_USE),
        (r"gpt-4o-mini", ImageFamily.GPT_4O_MINI),
        (r"gpt-4\.?1-mini", ImageFamily.GPT_4_1_MINI),
        (r"gpt-4\.?1-nano", ImageFamily.GPT_4_1_NANO),
        (r"(?:chat)?gpt-4(?:o|\.?1|\.5|-turbo|-vision)", ImageFamily.GPT_4O),
        (r"gpt-(?:[6-9]|\d\d)(?!\d)", ImageFamily.GPT_5_6),
        (r"gpt-5\.(?:[6-9]|\d\d)", ImageFamily.GPT_5_6),
        (r"gpt-5\.5", ImageFamily.GPT_5_5),
        (r"gpt-5\.4", ImageFamily.GPT_5_4),
        (r"gpt-5\.[23]", ImageFamily.GPT_5_2),
        (r"gpt-5(?:\.1)?(?:-codex)?-mini", ImageFamily.GPT_5_MINI),
        (r"gpt-5(?:\.1)?-nano", ImageFamily.GPT_5_NANO),
        (r"gpt-5", ImageFamily.GPT_5),
        (r"o4-mini", ImageFamily.O4_MINI),
        (r"codex-mini", ImageFamily.O4_MINI),
        (r"(?<![_-])o[13](?![\w.]|-mini)", ImageFamily.O_SERIES),
        (r"qwen-?2(?:[.p]5)?-?(?:vl|omni)", ImageFamily.QWEN_VL),
        (r"(?:qwen-vl|qvq)", ImageFamily.QWEN_VL),
        (r"qwen-?3-?(?:vl|omni)", ImageFamily.QWEN_3_VL),
        (r"qwen-?(?:3[.p][5-9]|[4-9])", ImageFamily.QWEN_3_VL),
    )
)

_VERSION = re.compile(r"(?<!\d)(\d{1,2})(?:[-.](\d{1,2})(?!\d))?(?!\d)")


@lru_cache(maxsize=512)
def _family(name: str) -> ImageFamily:
    # A name without a version is an alias of the newest model.
    if "claude" in name:
        is_standard = _version(name, "claude", default=(5, 0)) < (4, 7)
        return ImageFamily.CLAUDE if is_standard else ImageFamily.CLAUDE_HIGH_RESOLUTION
    if "gemini" in name:
        is_tiled = _version(name, "gemini", default=(3, 0)) < (3, 0)
        return ImageFamily.GEMINI if is_tiled else ImageFamily.GEMINI_3
    for pattern, family in _NAMES:
        if pattern.search(name):
            return family
    return ImageFamily.UNKNOWN


def _version(name: str, word: str, *, default: tuple[int, int]) -> tuple[int, int]:
    """The first version number after `word`; a date is none."""
    found = _VERSION.search(name, name.index(word))
    if found is None:
        return default
    return int(found[1]), int(found[2] or 0)
