"""When a pressure summary is not worth a call, and what is remembered of one that was not: it must
not compact on every turn. Design section 9; every number here is its."""

from collections.abc import Sequence

from proxy.core.compaction import (
    MIN_NEW_TOKENS,
    Aim,
    RangePlan,
    Reason,
    View,
    Words,
    floor_tokens,
)
from proxy.core.replacements import NewReplacement, Replacement, ReplacementKind
from proxy.core.surface import RANGE_KINDS


def why_not(view: View, aim: Aim, words: Words, plan: RangePlan | None) -> Reason | None:
    """Why a pressure summary is not worth a call; holds only while the total fits the window.

    The caller has already asked whether the total exceeds `limit_tokens`.
    """
    trigger = aim.trigger_tokens
    if trigger is None:
        return None
    floor = floor_tokens(view, aim, words)
    if floor >= trigger:
        return Reason.FLOOR_OVER_TRIGGER
    if plan is None or plan.new_tokens < max(MIN_NEW_TOKENS, (trigger - floor) // 4):
        return Reason.NOT_ENOUGH_NEW
    revoked = (r.end for r in view.applied if r.revoked and r.kind in RANGE_KINDS)
    revoked_end = max(revoked, default=0)
    if plan.end <= revoked_end:
        return Reason.NOT_ENOUGH_NEW
    backoff = latest_backoff(view.applied)
    if backoff is not None:
        payload = backoff.payload
        if view.total_tokens < payload["total_tokens"] + payload["needs_tokens"]:
            return Reason.BACKING_OFF
    return None


def revoked_end(applied: Sequence[Replacement]) -> int:
    """Up to where summaries were revoked: such a range is not replaced again until it grew."""
    return max((r.end for r in applied if r.revoked and r.kind in RANGE_KINDS), default=0)


def latest_backoff(applied: Sequence[Replacement]) -> Replacement | None:
    """The newest backoff that no effective compaction has followed."""
    deciding = (r for r in applied if r.kind is ReplacementKind.BACKOFF or r.kind in RANGE_KINDS)
    newest = max(deciding, key=lambda r: r.order, default=None)
    if newest is None or newest.kind is not ReplacementKind.BACKOFF:
        return None
    return newest


def backoff_after(
    view: View, aim: Aim, words: Words, *, end: int, earlier: Replacement | None
) -> NewReplacement | None:
    """What is remembered of a compaction that helped little or failed: how much must come first."""
    if aim.trigger_tokens is None:
        return None
    room = max(aim.trigger_tokens - floor_tokens(view, aim, words), 0) // 4
    times = 1 if earlier is None else int(earlier.payload["times"]) + 1
    return NewReplacement(
        kind=ReplacementKind.BACKOFF,
        start=0,
        end=end,
        end_fingerprint=view.chain[end - 1],
        payload={
            "total_tokens": view.total_tokens,
            "needs_tokens": max(room, MIN_NEW_TOKENS) * 2 ** min(times - 1, 16),
            "times": times,
        },
    )
