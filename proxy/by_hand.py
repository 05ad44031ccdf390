"""Compaction that somebody asked for: the steps of pressure without prunes, digests and second
tries. It lands, or it says why not; what it replaces is never less than it was asked to keep."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from proxy.core.budget import trigger_fires
from proxy.core.compaction import (
    MIN_NEW_TOKENS,
    Aim,
    RangePlan,
    Reason,
    plan_range,
    plan_region,
)
from proxy.core.errors import HistoryChanged, LeaseLost, TidegateError
from proxy.core.manual import Options, Region, Untouched, aim_for, check_region
from proxy.meter import Meter
from proxy.range_runs import Allowance, RunChanged, RunFailed, RunLanded, RunResult
from proxy.turn import Turn

RETRY_AFTER = {"retry-after": "1"}

Replan = Callable[[Turn], Awaitable[RangePlan | None]]
RunRange = Callable[
    [Turn, Aim, RangePlan, Allowance, Replan], Awaitable[tuple[Turn, RangePlan, RunResult]]
]

_NOT_USABLE = (
    "No summariser gave a usable summary, or the one given would not make the conversation smaller."
)
_WHY_FAILED = {
    Reason.SUMMARY_TIMEOUT: "The summariser did not answer in time.",
    Reason.BREAKER_OPEN: "The summariser failed several times in a row and is left alone for now.",
}


class ConversationBusy(LeaseLost):
    """Somebody else is at this conversation: a run, or another compaction."""

    def __init__(self) -> None:
        """It is worth trying again in a second."""
        super().__init__(
            "A request or a compaction of this conversation is running; try again in a second.",
            headers=RETRY_AFTER,
        )


class SummaryFailed(TidegateError):
    """Every summariser failed, or gave nothing usable. Nothing was replaced."""

    status = 502
    type = "upstream_error"
    code = "summary_failed"


@dataclass(frozen=True, slots=True)
class Compacted:
    """What became of it: the turn before and after, and what was landed or why nothing was."""

    before: Turn
    after: Turn
    reason: Untouched | None = None
    checkpoint_id: str | None = None
    removed: int = 0


class ByHand:
    """Two ways to choose the range, and one walk."""

    def __init__(self, *, meter: Meter, run: RunRange) -> None:
        """`run` is the compactor's: one summary under a lease, without what it is refused for."""
        self._meter = meter
        self._run = run

    async def compact_now(self, turn: Turn, options: Options) -> Compacted:
        """Summarise all but the newest, or what `keep` asks to keep. `turn` is priced."""
        view = turn.priced
        if not options.force and not trigger_fires(
            turn.budget, view.total_tokens, len(view.surface.items)
        ):
            return Compacted(turn, turn, Untouched.BELOW_THRESHOLD)
        aim = aim_for(turn.budget, view, options)

        async def plan(turn: Turn) -> RangePlan | None:
            count = self._meter.counter(turn.scope.model)
            words = turn.rules.compaction.words
            return await asyncio.to_thread(plan_range, turn.priced, aim, words, count)

        return await self._walk(turn, aim, plan)

    async def compact_region(self, turn: Turn, region: Region, options: Options) -> Compacted:
        """Summarise `history[start:end]`, which must not cut through anything. `turn` is priced."""
        check_region(turn.priced, region)
        aim = aim_for(turn.budget, turn.priced, options)

        async def plan(turn: Turn) -> RangePlan | None:
            count = self._meter.counter(turn.scope.model)
            words = turn.rules.compaction.words
            bounds = (region.start, region.end)
            return await asyncio.to_thread(
                plan_region, turn.priced, aim, words, count, bounds=bounds
            )

        return await self._walk(turn, aim, plan)

    async def _walk(self, turn: Turn, aim: Aim, replan: Replan) -> Compacted:
        plan = await replan(turn)
        if plan is None or plan.new_tokens < MIN_NEW_TOKENS:
            return Compacted(turn, turn, Untouched.NOT_ENOUGH_MESSAGES)
        after, plan, result = await self._run(turn, aim, plan, Allowance(), replan)
        if isinstance(result, RunChanged):
            raise (
                ConversationBusy
                if result.busy
                else HistoryChanged(
                    "The history was changed while it was being compacted; nothing was replaced."
                )
            )
        if isinstance(result, RunFailed):
            raise SummaryFailed(_WHY_FAILED.get(result.reason, _NOT_USABLE))
        assert isinstance(result, RunLanded)
        return Compacted(
            before=turn,
            after=after.did("summary"),
            checkpoint_id=result.checkpoint_id,
            removed=plan.end - plan.start - len(plan.kept),
        )
