"""Makes room, cheapest first: adopt, prune, offload, summarise, digest, shrink. Pressure, the
recovery from an overflow and compaction by hand are three walks over the same steps."""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from proxy.by_hand import ByHand, Compacted, Replan
from proxy.core.aims import enough, fits, over_limit, overflow_aim, pressure_aim
from proxy.core.backoff import revoked_end, why_not
from proxy.core.budget import trigger_fires
from proxy.core.compaction import (
    Aim,
    Cause,
    RangePlan,
    Reason,
    as_shrink,
    floor_tokens,
    plan_prune,
    plan_range,
    shrink_candidates,
    shrink_chars,
    with_digest,
)
from proxy.core.errors import HistoryChanged, StoreUnavailable
from proxy.core.manual import Options, Region
from proxy.core.offloading import (
    offload_after_refusal,
    offload_for_summary,
    offload_for_tokens,
    offloads,
)
from proxy.core.overflow import Refusal
from proxy.core.pruning import shrink_to
from proxy.core.replacements import NewReplacement, Replacement, as_if_stored
from proxy.core.surface import RANGE_KINDS
from proxy.events import EventLog
from proxy.history_watch import HistoryWatch
from proxy.image_memory import remember_refusal
from proxy.meter import Meter
from proxy.off_loop import off_loop
from proxy.range_runs import (
    Allowance,
    RangeRuns,
    RunChanged,
    RunFailed,
    RunImagesRefused,
    RunLanded,
    RunResult,
)
from proxy.store.store import Store
from proxy.surfaces import Surfaces
from proxy.turn import Turn

log = logging.getLogger(__name__)


class Compactor:
    """Turns a turn that is too large into one that fits, or says why it did not."""

    def __init__(
        self, *, store: Store, surfaces: Surfaces, runs: RangeRuns, meter: Meter, events: EventLog
    ) -> None:
        """All parts are shared with the pipeline; nothing here is per request."""
        self._store = store
        self._surfaces = surfaces
        self._runs = runs
        self._meter = meter
        self._events = events
        self._watch = HistoryWatch()
        self._by_hand = ByHand(meter=meter, run=self._run)

    async def compact_now(self, turn: Turn, options: Options) -> Compacted:
        """Compact because somebody asked for it, below T as well. `turn` is priced.

        Raises:
            ConversationBusy, HistoryChanged, SummaryFailed, InvalidRequest: nothing was replaced.
        """
        if options.region is not None:
            return await self.compact_region(turn, options.region, options)
        return await self._by_hand.compact_now(turn, options)

    async def compact_region(self, turn: Turn, region: Region, options: Options) -> Compacted:
        """Let a summary stand for `history[start:end]`; raises what `compact_now` raises."""
        return await self._by_hand.compact_region(turn, region, options)

    async def busy(self, turn: Turn) -> bool:
        """Whether a compaction of this history is running, on whatever worker."""
        return await self._runs.busy(turn)

    async def compact_if_needed(self, turn: Turn, allowance: Allowance) -> Turn:
        """Compact under pressure, if it is still there once others' work is known."""
        turn = await self._adopted(turn)
        turn = await self._settled(turn)
        if not fires(turn):
            return turn
        aim = pressure_aim(turn.budget, turn.priced)
        if _envelope_too_large(turn, aim):
            turn = await self._offloaded_if_enough(turn, aim)
        if _envelope_too_large(turn, aim):
            return turn.because(Reason.ENVELOPE_TOO_LARGE)
        turn = await self._pruned_if_enough(turn, aim)
        turn = await self._offloaded_if_enough(turn, aim)
        if fires(turn):
            turn = await self._summarised(turn, aim, allowance)
        if over_limit(aim, turn.priced):
            turn = await self._last_resort(turn, aim)
        return turn

    async def recover(self, turn: Turn, refusal: Refusal, allowance: Allowance) -> Turn:
        """Compact after the provider's own refusal, whatever our count says."""
        refused_tokens = turn.priced.total_tokens
        turn = await self._adopted(turn)
        turn = await self._settled(turn)
        aim = overflow_aim(turn.budget, turn.priced, refusal, refused_tokens)
        if _envelope_too_large(turn, aim):
            turn = await self._offloaded_if_enough(turn, aim)
        if _envelope_too_large(turn, aim):
            return turn.because(Reason.ENVELOPE_TOO_LARGE)
        turn = await self._pruned(turn, aim)
        turn = await self._offloaded_if_enough(turn, aim)
        if not enough(aim, turn.priced.total_tokens):
            before = turn.generation
            turn = await self._summarised(turn, aim, allowance)
            if turn.generation == before or over_limit(aim, turn.priced):
                turn = await self._last_resort(turn, aim)
        return turn

    async def without_images(self, turn: Turn) -> Turn:
        """Offload every image, for a model that is known to take none."""
        images = self._surfaces.images(turn)
        if not images:
            return turn
        turn = await self._surfaces.price(turn)
        return await self._offloaded(turn, offloads(turn.priced, images))

    async def offload(self, turn: Turn, refusal: Refusal) -> Turn:
        """Offload images after a refusal that their number, size or presence caused."""
        await remember_refusal(self._store, turn.scope, refusal)
        new = offload_after_refusal(
            turn.priced, self._surfaces.images(turn), refusal, body_bytes=turn.body_bytes
        )
        return await self._offloaded(turn, new)

    async def _offloaded(self, turn: Turn, new: Sequence[NewReplacement]) -> Turn:
        return (await self.committed(turn, new)).did("offload") if new else turn

    async def _adopted(self, turn: Turn) -> Turn:
        """Take over what another model's conversation of this tenant already replaced."""
        if not turn.chain:
            return turn
        try:
            found = await self._store.adoptable(turn.scope, turn.root, turn.chain)
        except StoreUnavailable:
            return turn.having(degraded="store")
        usable = [
            r
            for r in found
            if r.kind in RANGE_KINDS
            and turn.priced.leading_end() < r.end <= len(turn.chain)
            and r.end > revoked_end(turn.applied)
            and not turn.pairing.strands(r.start, r.end)
        ]
        if not usable:
            return turn
        best = max(usable, key=lambda r: (r.end - r.start, -r.order))
        copy = NewReplacement(best.kind, best.start, best.end, best.end_fingerprint, best.payload)
        landed = await self.committed(turn, [copy])
        return landed.did("adopt") if landed.generation > turn.generation else landed

    async def _settled(self, turn: Turn) -> Turn:
        """Wait for any compaction under way that this history would use, then look again."""
        waited = await self._runs.wait_for_others(turn)
        return await self._surfaces.refresh(turn) if waited else turn

    async def committed(self, turn: Turn, new: Sequence[NewReplacement]) -> Turn:
        """The turn with `new` stored, or with the winner's surface when it lost the race.

        Without a store the replacements hold for this request alone.
        """
        if not new:
            return turn
        try:
            rows: Sequence[Replacement] = await self._runs.commit(turn, new)
        except HistoryChanged:
            return await self._surfaces.refresh(turn)
        except StoreUnavailable:
            rows = as_if_stored(turn.applied, new)
            turn = turn.having(degraded="store")
        landed = await self._surfaces.applying(turn, (*turn.applied, *rows))
        self._events.replaced(turn, landed, rows)
        return landed

    async def _pruned_if_enough(self, turn: Turn, aim: Aim) -> Turn:
        """Under pressure a prune is kept only if it makes all the room that is needed."""
        for newest_too in (False, True):
            new = await off_loop(turn.body_bytes, plan_prune, turn.priced, newest_too=newest_too)
            if not new:
                continue
            tried = await self._surfaces.applying(
                turn, (*turn.applied, *as_if_stored(turn.applied, new))
            )
            if enough(aim, tried.priced.total_tokens):
                return (await self.committed(turn, new)).did("prune")
        return turn

    async def _pruned(self, turn: Turn, aim: Aim) -> Turn:
        """After an overflow every prune is committed first, the newest unit's if still needed."""
        for newest_too in (False, True):
            new = await off_loop(turn.body_bytes, plan_prune, turn.priced, newest_too=newest_too)
            if new:
                turn = (await self.committed(turn, new)).did("prune")
            if fits(aim, turn.priced.total_tokens):
                break
        return turn

    async def _offloaded_if_enough(self, turn: Turn, aim: Aim) -> Turn:
        """Offload the oldest images when they are what is over: when their going is enough."""
        target = aim.trigger_tokens or 0
        if turn.priced.total_tokens < target:
            return turn
        images = self._surfaces.images(turn)
        return await self._offloaded(
            turn, offload_for_tokens(turn.priced, images, target * 90 // 100)
        )

    async def _summarised(self, turn: Turn, aim: Aim, allowance: Allowance) -> Turn:
        """At most 1 + retries summaries, the second with R = 0 and only after a landed first."""
        policy = turn.rules.compaction
        for attempt in range(1 + policy.retries):
            view = turn.priced
            plan = await self._planned(turn, aim, 0 if attempt else None)
            if aim.cause is Cause.PRESSURE and not over_limit(aim, view):
                why = why_not(view, aim, policy.words, plan)
                if why is not None:
                    return turn.because(why) if attempt == 0 else turn
            if plan is None or not allowance.left:
                return turn
            if self._watch.unstable(turn):
                turn = turn.because(Reason.UNSTABLE_HISTORY)
                return await self._digested(turn, aim) if policy.digest_allowed else turn
            before = turn.generation
            tail_tokens = 0 if attempt else None
            replan = partial(self._planned, aim=aim, tail_tokens=tail_tokens)
            turn, plan, result = await self._run(turn, aim, plan, allowance, replan)
            if isinstance(result, RunFailed):
                return turn.because(result.reason)
            if turn.generation == before:
                # Another worker's run failed, or ours lost its lease: a failure that is shared.
                return turn.because(Reason.SUMMARY_FAILED)
            if isinstance(result, RunLanded):
                self._watch.landed(turn, plan.end)
                cost_tokens = turn.summary_tokens + result.cost_tokens
                turn = turn.did("summary").having(summary_tokens=cost_tokens)
            if aim.trigger_tokens is None or turn.priced.total_tokens < aim.trigger_tokens:
                return turn
        return turn

    async def _run(
        self,
        turn: Turn,
        aim: Aim,
        plan: RangePlan,
        allowance: Allowance,
        replan: Replan,
    ) -> tuple[Turn, RangePlan, RunResult]:
        """One summary of the range, asked again without the images that a call was refused for."""
        words = turn.rules.compaction.words
        while True:
            result = await self._runs.summarise(turn, aim, words, plan, allowance)
            if not isinstance(result, RunImagesRefused):
                return await self._surfaces.refresh(turn), plan, result
            # Planned on the surface that was refused: whoever shares the run offloads only once.
            before, turn = turn, await self._without_images_of(turn, plan.end, result)
            if aim.cause is not Cause.MANUAL and enough(aim, turn.priced.total_tokens):
                return turn, plan, RunChanged()
            again = await replan(turn)
            changed = turn.surface.visible != before.surface.visible
            if again is None or not changed or not allowance.left:
                return turn, plan, RunFailed(Reason.SUMMARY_FAILED)
            plan = again

    async def _without_images_of(self, turn: Turn, end: int, refused: RunImagesRefused) -> Turn:
        """Offload those images of a range that the refusal of its summary call asks for."""
        await remember_refusal(self._store, turn.scope, refused.refusal)
        new = offload_for_summary(
            turn.priced,
            self._surfaces.images(turn),
            refused.refusal,
            end=end,
            body_bytes=refused.body_bytes,
        )
        return await self._offloaded(turn, new)

    async def _last_resort(self, turn: Turn, aim: Aim) -> Turn:
        """A digest, made without a model; then images of what is kept, where their going is enough;
        then the newest oversized tool results cut to fit."""
        if turn.rules.compaction.digest_allowed:
            turn = await self._digested(turn, aim)
        if over_limit(aim, turn.priced):
            turn = await self._offloaded_if_enough(turn, aim)
        target = min(t for t in (aim.limit_tokens, aim.trigger_tokens) if t is not None)
        for position in shrink_candidates(turn.priced):
            over_tokens = turn.priced.total_tokens - target
            if over_tokens <= 0 or not over_limit(aim, turn.priced):
                break
            chars = shrink_chars(turn.priced, position, over_tokens)
            cuts = shrink_to(turn.request.history[position], chars)
            if cuts:
                turn = await self._if_smaller(
                    turn, as_shrink(turn.priced, position, cuts), "shrink"
                )
        return turn

    async def _digested(self, turn: Turn, aim: Aim) -> Turn:
        """A digest of the range, with R and then, if it still does not fit, with R = 0."""
        words, count = turn.rules.compaction.words, self._meter.counter(turn.scope.model)
        for tail_tokens in (None, 0):
            plan = await self._planned(turn, aim, tail_tokens)
            if plan is None:
                continue
            new = await asyncio.to_thread(with_digest, turn.priced, plan, words, count)
            turn = await self._if_smaller(turn, new, "digest")
            if not over_limit(aim, turn.priced):
                break
        return turn

    async def _planned(self, turn: Turn, aim: Aim, tail_tokens: int | None) -> RangePlan | None:
        """The plan for this turn's range; made in a thread, since it counts the user's words."""
        return await asyncio.to_thread(
            plan_range,
            turn.priced,
            aim,
            turn.rules.compaction.words,
            self._meter.counter(turn.scope.model),
            tail_tokens=tail_tokens,
        )

    async def _if_smaller(self, turn: Turn, new: NewReplacement, action: str) -> Turn:
        """Commit a replacement unless the surface would not become strictly smaller."""
        tried = await self._surfaces.applying(
            turn, (*turn.applied, *as_if_stored(turn.applied, [new]))
        )
        if tried.priced.total_tokens >= turn.priced.total_tokens:
            return turn
        return (await self.committed(turn, [new])).did(action)


def fires(turn: Turn) -> bool:
    """Whether pressure starts a compaction of this turn."""
    return trigger_fires(turn.budget, turn.priced.total_tokens, len(turn.surface.items))


def _envelope_too_large(turn: Turn, aim: Aim) -> bool:
    if aim.limit_tokens is None:
        return False
    words = turn.rules.compaction.words
    return floor_tokens(turn.priced, aim, words, shrunk=True) > aim.limit_tokens
