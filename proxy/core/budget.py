"""The budget of one request: W, O, B in, T and R out, in integers only.

    T = min(W * trigger_percent // 100, W - O - B)     compaction starts at total >= T
    R = (W - O) * retain_percent // 100                or retain_tokens, or keep, when given

A budget is a value: it is valid, or it says which numbers made it invalid and what mends it.
Percents are whole and fractions are whole millionths, because a float product floors wrongly.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

TRIGGER_PERCENT = 80
RETAIN_PERCENT = 16
HEADROOM_TOKENS = 65536
# "auto" headroom: an eighth of the window, so that small windows stay usable.
AUTO_HEADROOM_DIVISOR = 8
# Retention where no window can give it: a fifth of the total at which compaction starts.
RETAIN_DIVISOR = 5
MILLION = 1_000_000
MILLIONTHS_PER_PERCENT = MILLION // 100
# Larger "token counts" come from clients that mean "no limit"; bounded so that they stay printable.
MAX_TOKENS = 2**63 - 1


class MeasureType(StrEnum):
    """What a trigger or a retention counts."""

    TOKENS = "tokens"
    MESSAGES = "messages"
    FRACTION = "fraction"


@dataclass(frozen=True, slots=True)
class Measure:
    """So many tokens, so many messages, or so many millionths of W."""

    type: MeasureType
    value: int

    def of_window(self, window_tokens: int) -> int:
        """The tokens a `fraction` stands for."""
        return window_tokens * self.value // MILLION

    def __str__(self) -> str:
        """The measure as a reader would say it."""
        if self.type is MeasureType.FRACTION:
            return f"{self.value / MILLION:g} of the window"
        return f"{self.value} {self.type}"


Headroom = int | Literal["auto"] | None


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator asked for; None is "not set"; a default may depend on the window."""

    trigger_percent: int = TRIGGER_PERCENT
    headroom_tokens: Headroom = None
    retain_percent: int = RETAIN_PERCENT
    retain_tokens: int | None = None
    keep: Measure | None = None
    triggers: tuple[Measure, ...] = ()

    def smallest_trigger(self, kind: MeasureType) -> int | None:
        """The value of the earliest trigger of that type."""
        return min((t.value for t in self.triggers if t.type is kind), default=None)

    @property
    def retention_given(self) -> bool:
        """Whether the operator asked for another retention than the default."""
        asked = self.retain_tokens is not None or self.keep is not None
        return asked or self.retain_percent != RETAIN_PERCENT


@dataclass(frozen=True, slots=True)
class Budget:
    """T and R of one request. Pressure fires at total >= T; an invalid budget never fires."""

    window_tokens: int | None
    output_tokens: int
    headroom_tokens: int | None
    input_limit_tokens: int | None
    trigger_tokens: int | None = None
    trigger_messages: int | None = None
    retain_tokens: int | None = None
    # `keep` by messages: the tail is the newest n messages and `retain_tokens` is 0.
    keep_messages: int | None = None
    retention_given: bool = False
    problem: str = field(default="")

    @property
    def valid(self) -> bool:
        """Whether compaction under pressure may happen at all."""
        return not self.problem

    @property
    def prompt_limit_tokens(self) -> int | None:
        """What a prompt may hold, min(W - O, I); None when neither is known."""
        limits = []
        if self.window_tokens is not None:
            limits.append(self.window_tokens - self.output_tokens)
        if self.input_limit_tokens is not None:
            limits.append(self.input_limit_tokens)
        return min(limits, default=None)


def measure(type: str, value: object) -> Measure:
    """A measure from outside (TOML, JSON); ValueError says in a sentence what is wrong."""
    try:
        kind = MeasureType(type)
    except ValueError:
        raise ValueError(f"type must be tokens, messages or fraction, not {type!r}") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"value must be a number, not {value!r}")
    if kind is MeasureType.FRACTION:
        millionths = round(value * MILLION) if math.isfinite(value) and value <= 1 else 0
        if millionths <= 0:
            raise ValueError(f"value of a fraction must be over 0 and at most 1, not {value!r}")
        return Measure(kind, millionths)
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"value must be a whole number of {kind}, not {value!r}")
    if value <= 0:
        raise ValueError(f"value must be over 0, not {value!r}")
    return Measure(kind, min(int(value), MAX_TOKENS))


def token_count(value: Any) -> int | None:
    """A count of tokens that a client or a listing wrote, or None where it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float):
        if not value.is_integer():  # covers nan and the infinities
            return None
        value = int(value)
    return min(value, MAX_TOKENS) if value >= 0 else None


def output_reserve(params: Mapping[str, Any], operator_max_output_tokens: int | None) -> int:
    """O: the request's `max_completion_tokens`, else `max_tokens`, else the operator's, else 0.

    -1 means "no limit" to llama.cpp and others: like null and nonsense it says nothing.
    """
    for name in ("max_completion_tokens", "max_tokens"):
        value = params.get(name)
        asked = None if value is None else token_count(value)
        if asked is not None:
            return asked
    return operator_max_output_tokens or 0


def headroom(window_tokens: int, setting: Headroom, *, configured: bool) -> int:
    """B: the operator's; unset, 65536 for a window the operator wrote and "auto" for any other."""
    if setting is None:
        setting = HEADROOM_TOKENS if configured else "auto"
    if setting == "auto":
        return min(HEADROOM_TOKENS, window_tokens // AUTO_HEADROOM_DIVISOR)
    return setting


def make_budget(
    window_tokens: int | None,
    output_tokens: int,
    policy: Policy,
    *,
    input_limit_tokens: int | None = None,
    configured: bool = True,
) -> Budget:
    """The budget for W and O under a policy; `configured`: the operator wrote W."""
    room = None
    if window_tokens is not None:
        room = headroom(window_tokens, policy.headroom_tokens, configured=configured)
    bare = Budget(
        window_tokens=window_tokens,
        output_tokens=output_tokens,
        headroom_tokens=room,
        input_limit_tokens=input_limit_tokens,
        trigger_messages=policy.smallest_trigger(MeasureType.MESSAGES),
        retention_given=policy.retention_given,
    )
    problem = _window_problem(bare, policy)
    if problem:
        return replace(bare, problem=problem)
    started = _with_retention(replace(bare, trigger_tokens=_trigger(bare, policy)), policy)
    return replace(started, problem=_retention_problem(started))


def _window_problem(budget: Budget, policy: Policy) -> str:
    window, output, room = budget.window_tokens, budget.output_tokens, budget.headroom_tokens
    if window is None or room is None:
        by_tokens = policy.smallest_trigger(MeasureType.TOKENS)
        if budget.input_limit_tokens or by_tokens or budget.trigger_messages:
            return ""
        return "the context window is unknown; set context_window for this model"
    if window <= 0:
        return f"the context window is {window}; set context_window to a positive number"
    left = window - output - room
    if left <= 0:
        fewer = "ask for fewer output tokens (max_tokens, max_output_tokens)"
        remedies = [
            *(['lower headroom_tokens (or set it to "auto")'] if room else []),
            *([fewer] if output else []),
            "raise context_window",
        ]
        return (
            f"W - O - B = {window} - {output} - {room} = {left} leaves no room for a prompt; "
            + ", or ".join(remedies)
        )
    return ""


def _formula_trigger(budget: Budget, policy: Policy) -> int | None:
    bounds = []
    if budget.window_tokens is not None and budget.headroom_tokens is not None:
        bounds.append(budget.window_tokens * policy.trigger_percent // 100)
        bounds.append(budget.window_tokens - budget.output_tokens - budget.headroom_tokens)
    if budget.input_limit_tokens is not None:
        bounds.append(budget.input_limit_tokens * policy.trigger_percent // 100)
    return min(bounds, default=None)


def _trigger(budget: Budget, policy: Policy) -> int | None:
    bounds = [_formula_trigger(budget, policy), policy.smallest_trigger(MeasureType.TOKENS)]
    fraction = policy.smallest_trigger(MeasureType.FRACTION)
    if fraction is not None and budget.window_tokens is not None:
        bounds.append(Measure(MeasureType.FRACTION, fraction).of_window(budget.window_tokens))
    return min((bound for bound in bounds if bound is not None), default=None)


def _with_retention(budget: Budget, policy: Policy) -> Budget:
    keep = policy.keep
    if keep is not None and keep.type is MeasureType.MESSAGES:
        return replace(budget, retain_tokens=0, keep_messages=keep.value)
    if keep is not None and keep.type is MeasureType.TOKENS:
        return replace(budget, retain_tokens=keep.value)
    if policy.retain_tokens is not None:
        return replace(budget, retain_tokens=policy.retain_tokens)
    prompt_limit = budget.prompt_limit_tokens
    if prompt_limit is None:
        # Only `tokens` or `messages` can start anything here; messages give T when they fire.
        trigger = budget.trigger_tokens
        return replace(budget, retain_tokens=None if trigger is None else trigger // RETAIN_DIVISOR)
    if keep is not None:
        whole = budget.window_tokens if budget.window_tokens is not None else prompt_limit
        return replace(budget, retain_tokens=keep.of_window(whole))
    whole = prompt_limit
    if budget.window_tokens is not None:
        whole = budget.window_tokens - budget.output_tokens
    retain = whole * policy.retain_percent // 100
    formula, trigger = _formula_trigger(budget, policy), budget.trigger_tokens
    if formula is not None and trigger is not None and trigger < formula:
        # An operator who lowers T and says nothing of R did not ask for R >= T.
        retain = retain if policy.retention_given else min(retain, trigger // RETAIN_DIVISOR)
    return replace(budget, retain_tokens=retain)


def _retention_problem(budget: Budget) -> str:
    trigger, retain = budget.trigger_tokens, budget.retain_tokens
    if trigger is None or retain is None or retain < trigger:
        return ""
    return (
        f"R = {retain} is not below T = {trigger} (W {budget.window_tokens}, "
        f"O {budget.output_tokens}, B {budget.headroom_tokens}): compaction would free nothing; "
        'lower headroom_tokens (or set it to "auto") or the output tokens asked for, '
        "or lower retain_percent, retain_tokens or keep"
    )


def trigger_fires(budget: Budget, total_tokens: int, surface_message_count: int) -> bool:
    """Whether pressure starts a compaction; messages are those of the surface after the head."""
    if not budget.valid:
        return False
    if budget.trigger_tokens is not None and total_tokens >= budget.trigger_tokens:
        return True
    by_messages = budget.trigger_messages
    return by_messages is not None and surface_message_count >= by_messages


def fired_at(budget: Budget, total_tokens: int) -> Budget:
    """The budget to compact under once a trigger fired at this total: T and R are numbers.

    Where `messages` fired below T, a default R would hold everything back: at most a fifth stays.
    """
    trigger = total_tokens if budget.trigger_tokens is None else budget.trigger_tokens
    retain = budget.retain_tokens
    early = total_tokens // RETAIN_DIVISOR
    if retain is None or (total_tokens < trigger and not budget.retention_given):
        retain = early if retain is None else min(retain, early)
    return replace(budget, trigger_tokens=trigger, retain_tokens=retain)


def contradictions(policy: Policy, window_tokens: int | None = None) -> tuple[str, ...]:
    """What no request could satisfy, each as a sentence; the empty tuple when all is well."""
    said, kept = _retained(policy)
    share = Measure(MeasureType.FRACTION, policy.trigger_percent * MILLIONTHS_PER_PERCENT)
    triggers = [(f"trigger_percent = {policy.trigger_percent}", share)]
    if policy.retention_given:
        # A default retention yields to an earlier trigger; one that was asked for contradicts it.
        triggers += [(f"the trigger of {trigger}", trigger) for trigger in policy.triggers]
    return tuple(
        f"{said} is not below {named}: compaction would free nothing"
        for named, trigger in triggers
        if _reaches(kept, trigger, window_tokens)
    )


def _retained(policy: Policy) -> tuple[str, Measure]:
    if policy.keep is not None:
        return f"keep = {policy.keep}", policy.keep
    if policy.retain_tokens is not None:
        kept = Measure(MeasureType.TOKENS, policy.retain_tokens)
        return f"retain_tokens = {policy.retain_tokens}", kept
    kept = Measure(MeasureType.FRACTION, policy.retain_percent * MILLIONTHS_PER_PERCENT)
    return f"retain_percent = {policy.retain_percent}", kept


def _reaches(kept: Measure, trigger: Measure, window_tokens: int | None) -> bool:
    if kept.type is trigger.type:
        return kept.value >= trigger.value
    if window_tokens is None or MeasureType.MESSAGES in (kept.type, trigger.type):
        return False

    def tokens(size: Measure) -> int:
        return size.value if size.type is MeasureType.TOKENS else size.of_window(window_tokens)

    return tokens(kept) >= tokens(trigger)
