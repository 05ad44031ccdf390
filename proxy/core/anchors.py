"""What a provider's own prompt size says about our counts.

A reported size is exact for one surface; what came since is ours, scaled by how the provider's
figures compare with ours. Whatever is reported, the total is always about this request's messages.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from proxy.core.replacements import Replacement, Scope

RATIO_MIN = 0.8
RATIO_MAX = 3.0
"""Bounds of reported / counted. Below: our own error. Above: not the same prompt, or not tokens."""

RATIO_FROM_TOKENS = 1000
"""Prompts up to this size teach no ratio: what a provider adds of its own would dominate it."""

BELIEVED_PERCENT = 60
"""A size under this share of our count: the provider cut the prompt and did not say so."""

IMAGES_MAX_PERCENT = 25
"""With more of the count than this in images, a ratio would say how images are priced, not text."""

_LARGEST_TOKENS = 10**9


@dataclass(frozen=True, slots=True)
class Anchor:
    """A surface whose size the provider stated. Both figures are of the same whole request, ours
    unscaled; `replacement_ids` are the replacements that showed in it."""

    reported_tokens: int
    counted_tokens: int
    replacement_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as it was sent: the chain of its history, the replacements that showed, and our
    unscaled count of all of it (head, tools and format too), of which `image_tokens` are images,
    audio and files."""

    scope: Scope
    chain: Sequence[bytes]
    visible: Sequence[Replacement]
    counted_tokens: int
    image_tokens: int = 0


def reported_prompt_tokens(usage: Mapping[str, Any]) -> int | None:
    """The prompt size in a `usage` object, what was read from or written to a cache included."""
    prompt = _tokens(usage, "prompt_tokens")
    if prompt:
        outside = _cached_outside(usage, prompt)
    elif inputs := _tokens(usage, "input_tokens"):
        prompt = inputs
        outside = _cached_outside(usage, inputs)
    else:
        # DeepSeek's two fields add up to the prompt; alone they are as good.
        prompt = _tokens(usage, "prompt_cache_hit_tokens") + _tokens(
            usage, "prompt_cache_miss_tokens"
        )
        outside = _anthropic_cached(usage)
    total = prompt + outside
    return total if 0 < total <= _LARGEST_TOKENS else None


def _cached_outside(usage: Mapping[str, Any], prompt: int) -> int:
    """Cached tokens that `prompt` leaves out.

    Only Anthropic's fields can stand outside: `cached_tokens` in the details (OpenAI) and
    `prompt_cache_hit_tokens` (DeepSeek) are part of the prompt by definition. Gateways that
    translate Anthropic's fields either add them to the prompt or do not; the total tells.
    """
    cached = _anthropic_cached(usage)
    if not cached or cached > prompt:
        return cached
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = usage.get(name)
        if isinstance(details, Mapping) and _tokens(details, "cached_tokens"):
            return 0
    output = _tokens(usage, "completion_tokens") or _tokens(usage, "output_tokens")
    return 0 if _tokens(usage, "total_tokens") == prompt + output else cached


def _anthropic_cached(usage: Mapping[str, Any]) -> int:
    return _tokens(usage, "cache_read_input_tokens") + _tokens(usage, "cache_creation_input_tokens")


def _tokens(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value <= _LARGEST_TOKENS else 0


def is_believable(reported_tokens: int, counted_tokens: int, image_tokens: int = 0) -> bool:
    """Whether the provider can have read the whole prompt. Images are left out of our count: what
    they cost is the least certain part of it."""
    text_tokens = counted_tokens - image_tokens
    return reported_tokens * 100 >= text_tokens * BELIEVED_PERCENT


def learned_ratio(
    reported_tokens: int, counted_tokens: int, image_tokens: int = 0, *, from_refusal: bool = False
) -> float | None:
    """What a reported size teaches about our counts of this model, or None for nothing."""
    if min(reported_tokens, counted_tokens) <= RATIO_FROM_TOKENS:
        return None
    if image_tokens * 100 > counted_tokens * IMAGES_MAX_PERCENT:
        return None
    if not is_believable(reported_tokens, counted_tokens, image_tokens):
        return None
    ratio = reported_tokens / counted_tokens
    bounded = min(max(ratio, RATIO_MIN), RATIO_MAX)
    return None if from_refusal and ratio != bounded else bounded


def scaled(counted_tokens: int, ratio: float) -> int:
    """A count of ours in the provider's tokens, rounded up."""
    return ceil(counted_tokens * ratio)


def all_scaled(counted_tokens: tuple[int, ...], ratio: float) -> tuple[int, ...]:
    """Each of many counts as `scaled` gives it."""
    if ratio == 1.0:
        return counted_tokens
    return tuple(scaled(tokens, ratio) for tokens in counted_tokens)


def total_tokens(counted_tokens: int, *, anchor: Anchor | None, ratio: float) -> int:
    """The size of a whole request that we count `counted_tokens`.

    With an anchor: what was reported, and what our count grew by since. A request can also have
    shrunk since (fewer tools, a shorter head); never below nothing.
    """
    if anchor is None:
        return scaled(counted_tokens, ratio)
    growth = counted_tokens - anchor.counted_tokens
    return max(0, anchor.reported_tokens + scaled(growth, ratio))


def holds_at(anchor: Anchor, position: int, visible: Iterable[Replacement]) -> bool:
    """Whether an anchor at the end of `history[:position]` still stands: what showed below it then
    is what shows there now. Replacements after it are part of the growth."""
    return anchor.replacement_ids == ids_below(visible, position)


def ids_below(visible: Iterable[Replacement], position: int) -> frozenset[str]:
    """The ids of the replacements that begin before `position`."""
    return frozenset(replacement.id for replacement in visible if replacement.start < position)
