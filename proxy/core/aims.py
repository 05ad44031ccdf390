"""What a compaction is to reach, for each of its causes: pure arithmetic on a budget and a view."""

from dataclasses import replace

from proxy.core.budget import Budget, fired_at
from proxy.core.compaction import Aim, Cause, View
from proxy.core.ranges import retained_cut

OVERFLOW_RETAIN_PERCENT = 16
# After a refusal that states no limit: what the prompt should shrink to, of what was refused.
UNKNOWN_LIMIT_PERCENT = 75
ENOUGH_PERCENT = 90


def pressure_aim(budget: Budget, view: View) -> Aim:
    """T and R of section 4; A is what T leaves beside the head and the tools."""
    fired = fired_at(budget, view.total_tokens)
    assert fired.trigger_tokens is not None
    return Aim(
        cause=Cause.PRESSURE,
        trigger_tokens=fired.trigger_tokens,
        limit_tokens=budget.prompt_limit_tokens,
        retain_tokens=fired.retain_tokens or 0,
        share_tokens=max(fired.trigger_tokens - view.fixed_tokens, 0),
        keep_messages=fired.keep_messages,
    )


def manual_aim(budget: Budget, view: View) -> Aim:
    """By hand nothing but the newest unit stays, unless the call says more."""
    whole = budget.trigger_tokens or view.total_tokens
    return Aim(
        cause=Cause.MANUAL,
        trigger_tokens=budget.trigger_tokens,
        limit_tokens=budget.prompt_limit_tokens,
        retain_tokens=0,
        share_tokens=max(whole - view.fixed_tokens, 0),
    )


def overflow_aim(budget: Budget, view: View, stated_limit_tokens: int | None) -> Aim:
    """After a refusal the provider's limit decides, whatever our own count says.

    The prompt must hold limit - O; where that is not positive, O is left aside and R is 0.
    R is the least of R by the known W, 16% of limit - O and a quarter of our count; 0 when no
    limit is known, when the tail would not fit, or when nothing would be cut.
    """
    limit = stated_limit_tokens
    if limit is None:
        limit = budget.window_tokens
    retain = 0
    prompt_limit = None
    if limit is not None:
        prompt_limit = limit - budget.output_tokens
        if prompt_limit > 0:
            retain = min(
                prompt_limit * OVERFLOW_RETAIN_PERCENT // 100,
                view.total_tokens // 4,
                *([budget.retain_tokens] if budget.retain_tokens is not None else []),
            )
        else:
            prompt_limit = limit
    trigger = _overflow_trigger(budget, view, prompt_limit)
    aim = Aim(
        cause=Cause.OVERFLOW,
        trigger_tokens=trigger,
        limit_tokens=prompt_limit,
        retain_tokens=retain,
        share_tokens=max(trigger - view.fixed_tokens, 0),
    )
    units = view.units()
    cut = retained_cut(units, retain)
    tail = sum(unit.tokens for unit in units if unit.start >= cut)
    too_much = prompt_limit is not None and view.fixed_tokens + tail > prompt_limit
    return replace(aim, retain_tokens=0) if cut == 0 or too_much else aim


def _overflow_trigger(budget: Budget, view: View, prompt_limit: int | None) -> int:
    candidates = []
    if prompt_limit is not None:
        candidates.append(prompt_limit * 80 // 100)
    if budget.trigger_tokens is not None:
        candidates.append(budget.trigger_tokens)
    if not candidates:
        candidates.append(view.total_tokens * UNKNOWN_LIMIT_PERCENT // 100)
    return min(candidates)


def over_limit(aim: Aim, view: View) -> bool:
    """Whether our count says that the prompt does not fit what the window leaves for it."""
    return aim.limit_tokens is not None and view.total_tokens > aim.limit_tokens


def enough(aim: Aim, total_tokens: int) -> bool:
    """Whether a cheaper step made all the room that is needed: 90% of T, or of the limit."""
    if aim.cause is Cause.OVERFLOW:
        if aim.limit_tokens is None:
            return False
        return total_tokens <= aim.limit_tokens * ENOUGH_PERCENT // 100
    trigger = aim.trigger_tokens
    return trigger is not None and total_tokens <= trigger * ENOUGH_PERCENT // 100
