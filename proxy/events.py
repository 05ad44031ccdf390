"""What happened to a conversation, told once: to the log, and to whoever listens live. Events hold
counts, kinds and ids; never message text, never a credential."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from proxy.core.compaction import Cause, RangePlan
from proxy.core.replacements import Replacement, ReplacementKind
from proxy.core.summary_tasks import CallRecord, SummaryOutcome
from proxy.metrics import Metrics, SummaryFigures
from proxy.store.store import Event, EventKind
from proxy.turn import Turn

log = logging.getLogger(__name__)

_KIND_OF = {
    ReplacementKind.SUMMARY: EventKind.REPLACEMENT,
    ReplacementKind.DIGEST: EventKind.REPLACEMENT,
    ReplacementKind.PRUNE: EventKind.PRUNE,
    ReplacementKind.OFFLOAD: EventKind.OFFLOAD,
}


class EventLog:
    """Turns what the walk did into events of design section 13."""

    def __init__(
        self,
        record: Callable[[Event], None],
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`record` must not block: it is called between awaits of a request."""
        self._record = record
        self._metrics = metrics
        self._clock = clock

    def told(self, turn: Turn, kind: EventKind, data: Mapping[str, Any]) -> None:
        """One event of this turn's conversation."""
        self._record(
            Event(
                tenant=turn.scope.tenant,
                conversation=turn.conversation,
                kind=kind,
                time=self._clock(),
                data={"upstream": turn.scope.upstream, "model": turn.scope.model, **data},
            )
        )

    def started(self, turn: Turn, cause: Cause, plan: RangePlan) -> None:
        """A compaction of a range begins."""
        self.told(
            turn,
            EventKind.COMPACTION_START,
            {
                "cause": cause.value,
                "start": plan.start,
                "end": plan.end,
                "range_tokens": plan.range_tokens,
                "total_tokens": turn.priced.total_tokens,
            },
        )
        if plan.dropped_instructions:
            self.warned(
                turn,
                "instructions_over_cap",
                {"messages": plan.dropped_instructions, "end": plan.end},
            )

    def warned(self, turn: Turn, what: str, data: Mapping[str, Any]) -> None:
        """Something that an operator may want to change, in the log and as an event."""
        log.warning(
            "%s upstream=%s model=%s conversation=%s data=%s",
            what,
            turn.scope.upstream,
            turn.scope.model,
            turn.conversation,
            dict(data),
        )
        self.told(turn, EventKind.WARNING, {"what": what, **data})

    def summarised(self, turn: Turn, outcome: SummaryOutcome) -> None:
        """What the summariser did, call by call; its text stays out of the log."""
        for call in outcome.calls:
            self._metrics.summary_call(
                SummaryFigures(
                    outcome=call.failure or "accepted",
                    prompt_tokens=call.reported_prompt_tokens or call.prompt_tokens,
                    completion_tokens=call.completion_tokens or 0,
                    seconds=call.seconds,
                )
            )
        self.told(
            turn,
            EventKind.SUMMARY,
            {
                "accepted": outcome.text is not None,
                "reason": None if outcome.reason is None else outcome.reason.value,
                "calls": [_call_data(call) for call in outcome.calls],
            },
        )

    def ended(self, turn: Turn, cause: Cause, plan: RangePlan, error: str | None) -> None:
        """The compaction is over, on whatever way."""
        self._metrics.add(
            "tidegate_compactions_total", cause=cause.value, outcome=error or "landed"
        )
        data: dict[str, Any] = {"cause": cause.value, "start": plan.start, "end": plan.end}
        if error is not None:
            data["error"] = error
        self.told(turn, EventKind.COMPACTION_END, data)

    def replaced(self, before: Turn, after: Turn, rows: Iterable[Replacement]) -> None:
        """Replacements were recorded; what they saved, by the counts that planned them."""
        for row in rows:
            kind = _KIND_OF.get(row.kind)
            if kind is EventKind.OFFLOAD:
                images = len(row.payload.get("parts", ()))
                self._metrics.add("tidegate_offloaded_images_total", images)
            if kind is None or not row.id:
                continue
            self.told(
                before,
                kind,
                {
                    "checkpoint_id": row.id,
                    "replacement": row.kind.value,
                    "start": row.start,
                    "end": row.end,
                    "tokens_before": before.priced.total_tokens,
                    "tokens_after": after.priced.total_tokens,
                },
            )

    def revoked(self, tenant: str, conversation: str, row: Replacement) -> None:
        """A replacement was taken out of use, by whoever may."""
        self._record(
            Event(
                tenant=tenant,
                conversation=conversation,
                kind=EventKind.REVOKE,
                time=self._clock(),
                data={
                    "checkpoint_id": row.id,
                    "replacement": row.kind.value,
                    "start": row.start,
                    "end": row.end,
                },
            )
        )


def _call_data(call: CallRecord) -> dict[str, Any]:
    return {
        "upstream": call.upstream,
        "model": call.model,
        "mode": call.mode.value,
        "status": call.status,
        "failure": call.failure,
        "seconds": round(call.seconds, 3),
        "prompt_tokens": call.reported_prompt_tokens or call.prompt_tokens,
        "completion_tokens": call.completion_tokens,
    }
