"""Which limits hold for a model, from all that is known, and what a refusal may teach.

The window comes from the first that answers: the operator, the upstream's listing, the catalogue. A
limit that was learned from a refusal lowers whatever was known. A limit of the prompt alone is kept
apart from the window, and is taken only from the source that gave the window.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from proxy.core import budget
from proxy.core.listings import Listed

# Smaller numbers in refusals are output caps, counts of messages, or characters.
MIN_LEARNED_TOKENS = 1024
# A refusal is about this prompt only if we count at least two thirds of the limit; a message that
# echoes the request, or speaks of something else, can state any number.
MIN_SHARE_PERCENT = 66
BUDGETS_REMEMBERED = 1024
_DEFAULT_POLICY = budget.Policy()


class Source(StrEnum):
    """Who said it."""

    CONFIGURED = "configured"
    LEARNED = "learned"
    LISTED = "listed"
    CATALOGUED = "catalogued"
    UNKNOWN = "unknown"


class LimitKind(StrEnum):
    """What a learned limit bounds; the values are the kinds in the store."""

    WINDOW = "window"
    INPUT = "input_limit"


@dataclass(frozen=True, slots=True)
class Configured:
    """What the operator wrote about a model."""

    window_tokens: int | None = None
    input_limit_tokens: int | None = None
    max_output_tokens: int | None = None
    policy: budget.Policy = _DEFAULT_POLICY


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What holds for (upstream, tenant, model), and where each came from."""

    window_tokens: int | None = None
    window_source: Source = Source.UNKNOWN
    input_limit_tokens: int | None = None
    input_limit_source: Source = Source.UNKNOWN
    # Shown, never subtracted: nobody sent it.
    max_output_tokens: int | None = None
    max_output_source: Source = Source.UNKNOWN
    # Subtracted when the request names no output limit itself.
    operator_max_output_tokens: int | None = None
    vision: bool | None = None
    policy: budget.Policy = _DEFAULT_POLICY

    def output_reserve(self, params: Mapping[str, Any]) -> int:
        """O for a request with these fields."""
        return budget.output_reserve(params, self.operator_max_output_tokens)

    def budget(self, output_tokens: int) -> budget.Budget:
        """The budget of a request that reserves so much output."""
        return _budget_of(self, output_tokens)


@lru_cache(BUDGETS_REMEMBERED)
def _budget_of(limits: ModelLimits, output_tokens: int) -> budget.Budget:
    """Nearly every request of a model asks for the same one."""
    return budget.make_budget(
        limits.window_tokens,
        output_tokens,
        limits.policy,
        input_limit_tokens=limits.input_limit_tokens,
        configured=limits.window_source is Source.CONFIGURED,
    )


def describe(limits: ModelLimits, output_tokens: int) -> dict[str, Any]:
    """What holds and why, for people: JSON values, None for what is not known."""
    held = limits.budget(output_tokens)
    return {
        "window": held.window_tokens,
        "window_source": limits.window_source.value,
        "input_limit": held.input_limit_tokens,
        "input_limit_source": limits.input_limit_source.value,
        "max_output": limits.max_output_tokens,
        "max_output_source": limits.max_output_source.value,
        "output_reserve": held.output_tokens,
        "headroom": held.headroom_tokens,
        "trigger": held.trigger_tokens,
        "trigger_messages": held.trigger_messages,
        "retain": held.retain_tokens,
        "keep_messages": held.keep_messages,
        "vision": limits.vision,
        "valid": held.valid,
        "problem": held.problem or None,
    }


def resolve(
    configured: Configured,
    *,
    learned: Mapping[LimitKind, int],
    listed: Listed | None,
    catalogued: Listed | None,
) -> ModelLimits:
    """The limits that hold, given what each source says."""
    window, source = configured.window_tokens, Source.CONFIGURED
    prompt, prompt_source = configured.input_limit_tokens, Source.CONFIGURED
    sources = ((listed, Source.LISTED), (catalogued, Source.CATALOGUED))
    for said, who in sources:
        if window is None and said is not None and said.window_tokens is not None:
            window, source = said.window_tokens, who
            if prompt is None:
                prompt, prompt_source = said.input_limit_tokens, who
    lesson = learned.get(LimitKind.WINDOW)
    if lesson is not None and (window is None or lesson < window):
        window, source = lesson, Source.LEARNED
    lesson = learned.get(LimitKind.INPUT)
    if lesson is not None and (prompt is None or lesson < prompt):
        prompt, prompt_source = lesson, Source.LEARNED
    if prompt is not None and window is not None and prompt >= window:
        prompt = None
    output, output_source = configured.max_output_tokens, Source.CONFIGURED
    for said, who in sources:
        if output is None and said is not None and said.max_output_tokens is not None:
            output, output_source = said.max_output_tokens, who
    return ModelLimits(
        window_tokens=window,
        window_source=Source.UNKNOWN if window is None else source,
        input_limit_tokens=prompt,
        input_limit_source=Source.UNKNOWN if prompt is None else prompt_source,
        max_output_tokens=output,
        max_output_source=Source.UNKNOWN if output is None else output_source,
        operator_max_output_tokens=configured.max_output_tokens,
        vision=next((s.vision for s, _ in sources if s is not None and s.vision is not None), None),
        policy=configured.policy,
    )


@dataclass(frozen=True, slots=True)
class StatedLimit:
    """A limit in a refusal, and the size of what was refused as we count it."""

    tokens: int
    counted_tokens: int
    output_tokens: int
    input_only: bool = False

    @property
    def kind(self) -> LimitKind:
        """What it bounds."""
        return LimitKind.INPUT if self.input_only else LimitKind.WINDOW


def worth_learning(stated: StatedLimit, known: ModelLimits) -> bool:
    """Whether a stated limit is news, and plausible for the prompt that was refused.

    A limit already learned and stated again is news too: it holds for another day.
    """
    bound, source = known.window_tokens, known.window_source
    if stated.input_only and known.input_limit_tokens is not None:
        bound, source = known.input_limit_tokens, known.input_limit_source
    if bound is not None:
        again = source is Source.LEARNED and stated.tokens == bound
        if stated.tokens >= bound and not again:
            return False
    size = stated.counted_tokens + (0 if stated.input_only else stated.output_tokens)
    plausible = size * 100 >= MIN_SHARE_PERCENT * stated.tokens
    return stated.tokens >= MIN_LEARNED_TOKENS and plausible


def contradicted_setting(stated: StatedLimit, configured: Configured) -> int | None:
    """The operator's number that a learned limit lowers, or None."""
    written = configured.window_tokens
    if stated.input_only and configured.input_limit_tokens is not None:
        written = configured.input_limit_tokens
    return written if written is not None and stated.tokens < written else None


def outgrown(
    learned: Mapping[LimitKind, int], prompt_tokens: int, output_tokens: int
) -> tuple[LimitKind, ...]:
    """The learned limits that a success of this size refutes; figures are the provider's own."""
    sizes = {LimitKind.INPUT: prompt_tokens, LimitKind.WINDOW: prompt_tokens + output_tokens}
    return tuple(kind for kind, tokens in learned.items() if sizes[kind] > tokens)
