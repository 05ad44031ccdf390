"""What a compaction is to reach, for each of its causes: pure arithmetic on a budget and a view."""

from dataclasses import replace

from proxy.core.budget import MAX_TOKENS, Budget, fired_at
from proxy.core.compaction import Aim, Cause, Reason, View
from proxy.core.overflow import Refusal
from proxy.core.ranges import retained_cut

OVERFLOW_RETAIN_PERCENT = 16
OVERFLOW_TRIGGER_PERCENT = 80
# Where no limit is known, or we count less than the limit that is: the limit in our tokens, of what
# was refused; and how much of it a cheaper step may leave. Only one replay shows if that was right.
GUESSED_LIMIT_PERCENT = 90
GUESSED_ENOUGH_PERCENT = 50
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


def overflow_aim(budget: Budget, view: View, refusal: Refusal, refused_tokens: int) -> Aim:
    """After a refusal the provider's limit decides, whatever our own count says.

    R is the least of R by the known W, 16% of limit - O and a quarter of our count; 0 when no
    limit is known, when O had to be left aside, when the tail would not fit, or when nothing would
    be cut. `refused_tokens` is what we counted of what was refused.
    """
    room, beside_output = _prompt_room(budget, refusal)
    retain = 0
    if room is not None and beside_output:
        retain = min(
            room * OVERFLOW_RETAIN_PERCENT // 100,
            view.total_tokens // 4,
            *([budget.retain_tokens] if budget.retain_tokens is not None else []),
        )
    guessed = room is None or refused_tokens <= room
    if room is None or guessed:
        room = refused_tokens * GUESSED_LIMIT_PERCENT // 100
    trigger = min(
        room * OVERFLOW_TRIGGER_PERCENT // 100,
        *([budget.trigger_tokens] if budget.trigger_tokens is not None else []),
        MAX_TOKENS,
    )
    aim = Aim(
        cause=Cause.OVERFLOW,
        trigger_tokens=trigger,
        limit_tokens=room,
        retain_tokens=retain,
        share_tokens=max(trigger - view.fixed_tokens, 0),
        limit_is_guess=guessed,
    )
    units = view.units()
    cut = retained_cut(units, retain)
    tail = sum(unit.tokens for unit in units if unit.start >= cut)
    too_much = view.fixed_tokens + tail > room
    return replace(aim, retain_tokens=0) if cut == 0 or too_much else aim


def _prompt_room(budget: Budget, refusal: Refusal) -> tuple[int | None, bool]:
    """What a prompt may hold by all that is known, and whether that leaves room for O.

    Limits of the whole leave limit - O for the prompt, limits of the input alone are the prompt's.
    The provider may have reserved more output than the client asked for. Where nothing is left
    for a prompt, O is left aside.
    """
    wholes, inputs = [budget.window_tokens], [budget.input_limit_tokens]
    (inputs if refusal.window_is_input_only else wholes).append(refusal.window_tokens)
    output = max(budget.output_tokens, refusal.requested_output_tokens or 0)
    limits = [limit for limit in (*wholes, *inputs) if limit is not None]
    if not limits:
        return None, False
    room = min(
        *(limit - output for limit in wholes if limit is not None),
        *(limit for limit in inputs if limit is not None),
        MAX_TOKENS,
    )
    return (room, True) if room > 0 else (min(limits), False)


def why_no_budget(budget: Budget) -> Reason:
    """What an invalid budget is called in the headers."""
    unknown = budget.window_tokens is None and budget.trigger_tokens is None
    return Reason.UNKNOWN_WINDOW if unknown else Reason.INVALID_BUDGET


def over_limit(aim: Aim, view: View) -> bool:
    """Whether our count says that the prompt does not fit what the window leaves for it."""
    return aim.limit_tokens is not None and view.total_tokens > aim.limit_tokens


def fits(aim: Aim, total_tokens: int) -> bool:
    """Whether a prompt of this size can be sent again; of a guessed limit, whether it is likely."""
    if aim.limit_is_guess:
        return enough(aim, total_tokens)
    return aim.limit_tokens is not None and total_tokens <= aim.limit_tokens


def enough(aim: Aim, total_tokens: int) -> bool:
    """Whether a cheaper step made all the room that is needed: 90% of T, or of the limit."""
    overflow = aim.cause is Cause.OVERFLOW
    bound = aim.limit_tokens if overflow else aim.trigger_tokens
    percent = GUESSED_ENOUGH_PERCENT if aim.limit_is_guess else ENOUGH_PERCENT
    return bound is not None and total_tokens <= bound * percent // 100
