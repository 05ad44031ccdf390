"""One summary of one range: under a lease, shared by all who wait for it, committed only if what it
was planned on still holds. An end is recorded on every way out."""

import asyncio
import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from proxy.core.backoff import backoff_after, latest_backoff
from proxy.core.compaction import (
    Aim,
    Cause,
    RangePlan,
    Reason,
    Words,
    with_summary,
)
from proxy.core.errors import HistoryChanged, LeaseLost, StoreUnavailable
from proxy.core.overflow import Refusal
from proxy.core.replacements import NewReplacement, Replacement, as_if_stored
from proxy.core.summary_tasks import SummaryOutcome
from proxy.core.surface import planned_ids
from proxy.events import EventLog
from proxy.runs import Runs
from proxy.store.store import Lease, Store
from proxy.summary_jobs import SummaryJobs
from proxy.surfaces import Surfaces
from proxy.turn import Turn

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
RENEW_SECONDS = 10.0
POLL_SECONDS = 0.2


@dataclass(slots=True)
class Allowance:
    """How many summary calls may still fail for one client request, over all causes."""

    left: int = 2

    def spend(self, failed_calls: int) -> None:
        """Take failed calls off."""
        self.left = max(self.left - failed_calls, 0)


@dataclass(frozen=True, slots=True)
class RunLanded:
    """The summary is stored. `cost_tokens` is what the calls for it read and wrote."""

    cost_tokens: int
    failed_calls: int = 0
    checkpoint_id: str = ""


@dataclass(frozen=True, slots=True)
class RunChanged:
    """Somebody else was first, or (`busy`) is at it; the surface must be read again."""

    failed_calls: int = 0
    busy: bool = False


@dataclass(frozen=True, slots=True)
class RunFailed:
    """No summary; `reason` is shown to everyone who waited."""

    reason: Reason
    failed_calls: int = 0


@dataclass(frozen=True, slots=True)
class RunImagesRefused:
    """The call was refused for the range's images; without them it may be made again."""

    refusal: Refusal
    body_bytes: int
    failed_calls: int


RunResult = RunLanded | RunChanged | RunFailed | RunImagesRefused


@dataclass(frozen=True, slots=True)
class _Job:
    """What one run is about, from the request that started it."""

    turn: Turn
    aim: Aim
    words: Words
    plan: RangePlan

    @property
    def by_hand(self) -> bool:
        return self.aim.cause is Cause.MANUAL


class RangeRuns:
    """Runs at most one summary for each range, in this process and, by lease, in all of them."""

    def __init__(
        self, *, store: Store, surfaces: Surfaces, jobs: SummaryJobs, events: EventLog, worker: str
    ) -> None:
        """`worker` names this process in leases."""
        self._store = store
        self._surfaces = surfaces
        self._jobs = jobs
        self._events = events
        self._worker = worker
        self._runs: Runs[RunResult] = Runs()

    async def close(self) -> None:
        """Cancel what runs; leases are given back."""
        await self._runs.close()

    async def summarise(
        self, turn: Turn, aim: Aim, words: Words, plan: RangePlan, allowance: Allowance
    ) -> RunResult:
        """Summarise the planned range, or join whoever does; a failure is shared for 30 seconds.

        What is asked for by hand is never joined to other work: it finds the range busy.
        """
        job = _Job(turn, aim, words, plan)
        key = (turn.scope, plan.end_fingerprint)
        if job.by_hand and key in self._runs.running():
            return RunChanged(busy=True)
        shared = self._runs.failure(key)
        if shared is not None and not job.by_hand:
            return shared
        result = await self._runs.join(key, lambda: self._run(key, job, allowance.left))
        allowance.spend(result.failed_calls)
        return result

    async def wait_for_others(self, turn: Turn) -> bool:
        """Wait until no compaction runs whose end is in this chain; whether there was one."""
        ends = frozenset(turn.chain)
        mine = [key for key in self._runs.running() if _concerns(key, turn, ends)]
        for key in mine:
            await self._runs.wait(key)
        return await self._leases_ended(turn) or bool(mine)

    async def busy(self, turn: Turn) -> bool:
        """Whether a compaction runs, here or on another worker, whose end is in this chain."""
        ends = frozenset(turn.chain)
        if any(_concerns(key, turn, ends) for key in self._runs.running()):
            return True
        leases = await self._store.live_leases(turn.scope, turn.root)
        return any(lease.end_fingerprint in ends for lease in leases)

    async def _leases_ended(self, turn: Turn) -> bool:
        """Wait until no worker holds a lease on an end of this chain; whether one did."""
        ends = frozenset(turn.chain)
        waited = False
        while True:
            try:
                leases = await self._store.live_leases(turn.scope, turn.root)
            except StoreUnavailable:
                return waited
            if not any(lease.end_fingerprint in ends for lease in leases):
                return waited
            waited = True
            await asyncio.sleep(POLL_SECONDS)

    async def _run(self, key: Hashable, job: _Job, failures_left: int) -> RunResult:
        try:
            lease = await self._lease(job)
        except StoreUnavailable:
            return RunFailed(Reason.SUMMARY_FAILED)
        if not isinstance(lease, Lease):
            return lease
        self._events.started(job.turn, job.aim.cause, job.plan)
        error: str | None = "failed"
        failure: Reason | None = None
        try:
            result, error = await self._guarded(lease, job, failures_left)
            failure = result.reason if isinstance(result, RunFailed) else None
        except asyncio.CancelledError:
            error = "cancelled"
            raise
        finally:
            self._events.ended(job.turn, job.aim.cause, job.plan, error)
            await asyncio.shield(self._release(lease, failure))
        if isinstance(result, RunFailed):
            self._runs.failed(key, result)
        return result

    async def _lease(self, job: _Job) -> Lease | RunResult:
        """A lease on the planned range, under which the plan still holds; else what became of it.

        Somebody may have finished between our reading of the surface and our lease: then another
        summary of the same range would be paid for in vain.
        """
        turn, plan = job.turn, job.plan
        lease = await self._store.acquire(
            turn.scope,
            turn.root,
            end=plan.end,
            end_fingerprint=plan.end_fingerprint,
            owner=self._worker,
            lease_seconds=LEASE_SECONDS,
            over_failure=job.by_hand,
        )
        if lease is None:
            if job.by_hand:
                return RunChanged(busy=True)
            failure = await self._store.failure(turn.scope, turn.root, plan.end_fingerprint)
            if failure is not None:
                return RunFailed(Reason(failure))
            await self._leases_ended(turn)
            return RunChanged(busy=True)
        try:
            now = await self._surfaces.refresh(turn)
        except BaseException:
            await asyncio.shield(self._release(lease))
            raise
        if planned_ids(now.applied) != planned_ids(turn.applied):
            await self._release(lease)
            return RunChanged()
        return lease

    async def _guarded(
        self, lease: Lease, job: _Job, failures_left: int
    ) -> tuple[RunResult, str | None]:
        """A lost lease or store ends the run; it is no fault of the summariser's."""
        ended: tuple[RunResult, str | None]
        try:
            return await self._leased(lease, job, failures_left)
        except* LeaseLost:
            ended = RunChanged(busy=True), "lease_lost"
        except* StoreUnavailable:
            ended = RunFailed(Reason.SUMMARY_FAILED), "store_unavailable"
        return ended

    async def _leased(
        self, lease: Lease, job: _Job, failures_left: int
    ) -> tuple[RunResult, str | None]:
        async with asyncio.TaskGroup() as group:
            renewing = group.create_task(self._renew(lease))
            outcome = await self._jobs.summarise(job.turn, job.plan, failures_left)
            renewing.cancel()
        self._events.summarised(job.turn, outcome)
        refused = outcome.images_refused
        if refused is not None and refused.refusal is not None:
            result = RunImagesRefused(refused.refusal, refused.body_bytes, outcome.failed_calls)
            return result, outcome.error
        if outcome.text is None:
            if outcome.worth_remembering:
                await self._remember(job)
            reason = outcome.reason or Reason.SUMMARY_FAILED
            return RunFailed(reason, outcome.failed_calls), outcome.error
        return await self._land(lease, job, outcome)

    async def _land(
        self, lease: Lease, job: _Job, outcome: SummaryOutcome
    ) -> tuple[RunResult, str | None]:
        assert outcome.text is not None
        turn, plan = job.turn, job.plan
        new = with_summary(turn.priced, plan, job.words, outcome.text)
        after = await self._surfaces.applying(
            turn, (*turn.applied, *as_if_stored(turn.applied, [new]))
        )
        before_tokens, after_tokens = turn.priced.total_tokens, after.priced.total_tokens
        if after_tokens >= before_tokens:
            log.info(
                "summary_not_smaller start=%d end=%d tokens_before=%d tokens_after=%d",
                plan.start,
                plan.end,
                before_tokens,
                after_tokens,
            )
            await self._remember(job)
            failed = RunFailed(Reason.SUMMARY_FAILED, outcome.failed_calls)
            return failed, "not_smaller"
        writing = [new]
        trigger = job.aim.trigger_tokens
        if not job.by_hand and trigger is not None and after_tokens * 100 >= trigger * 90:
            writing += _backoff(job, after)
        try:
            rows = await self.commit(turn, writing, lease)
        except HistoryChanged:
            return RunChanged(outcome.failed_calls), "history_changed"
        self._events.replaced(turn, after, rows)
        landed = RunLanded(_cost_tokens(outcome), outcome.failed_calls, rows[0].id)
        return landed, None

    async def _remember(self, job: _Job) -> None:
        """Write down that this range was tried in vain; failing to is not a failure.

        What somebody tried by hand, with choices of their own, says nothing about pressure.
        """
        backoff = [] if job.by_hand else _backoff(job, job.turn)
        if not backoff:
            return
        try:
            await self.commit(job.turn, backoff)
        except (HistoryChanged, StoreUnavailable):
            log.info("backoff not recorded conversation=%s", job.turn.conversation)

    async def commit(
        self, turn: Turn, new: Sequence[NewReplacement], lease: Lease | None = None
    ) -> tuple[Replacement, ...]:
        """Store what was planned on the turn; raises as the store's own `commit`."""
        return await self._store.commit(
            turn.scope,
            turn.root,
            turn.chain,
            planned_on=planned_ids(turn.applied),
            new=new,
            lease=lease,
            conversation=turn.conversation,
        )

    async def _renew(self, lease: Lease) -> None:
        """Keep the lease until cancelled. Raises LeaseLost when somebody else has it."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                if not await self._store.renew(lease, LEASE_SECONDS):
                    raise LeaseLost("The lease of this compaction was taken over.")
            except StoreUnavailable:
                log.warning("lease not renewed: store unavailable")

    async def _release(self, lease: Lease, failure: Reason | None = None) -> None:
        try:
            await self._store.release(lease, failure=failure)
        except StoreUnavailable:
            log.warning("lease not released: store unavailable, it expires by itself")


def _concerns(key: Hashable, turn: Turn, ends: frozenset[bytes]) -> bool:
    return isinstance(key, tuple) and key[0] == turn.scope and key[1] in ends


def _backoff(job: _Job, weighed: Turn) -> list[NewReplacement]:
    """What is remembered of a range that helped little, by what the turn weighs."""
    backoff = backoff_after(
        weighed.priced,
        job.aim,
        job.words,
        end=job.plan.end,
        earlier=latest_backoff(job.turn.applied),
    )
    return [] if backoff is None else [backoff]


def _cost_tokens(outcome: SummaryOutcome) -> int:
    return sum(
        (call.reported_prompt_tokens or call.prompt_tokens) + (call.completion_tokens or 0)
        for call in outcome.calls
    )
