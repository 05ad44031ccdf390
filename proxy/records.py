"""What is kept of an answered request, when its reply has ended: the provider's own figure as an
anchor, the metrics, one event. Nothing here delays a byte."""

from collections.abc import Mapping
from typing import Any

from proxy.anchor_book import AnchorBook
from proxy.conversations import Conversations
from proxy.core.anchors import reported_prompt_tokens
from proxy.events import EventLog
from proxy.metrics import Metrics
from proxy.reply import Reply, ReplyEnd
from proxy.store.store import EventKind
from proxy.surfaces import Surfaces
from proxy.turn import Turn


class Records:
    """Watches a reply to its end and writes down what came of the request."""

    def __init__(
        self,
        *,
        conversations: Conversations,
        surfaces: Surfaces,
        anchors: AnchorBook,
        events: EventLog,
        metrics: Metrics,
    ) -> None:
        """All shared with the pipeline."""
        self._conversations = conversations
        self._surfaces = surfaces
        self._anchors = anchors
        self._events = events
        self._metrics = metrics

    def answered(self, turn: Turn, reply: Reply) -> None:
        """Record the request now, and the rest of its story when the reply ends."""
        self._conversations.record(turn)
        self._count(turn, reply.status)
        reply.on_end = lambda end: self._ended(turn, end)

    def _ended(self, turn: Turn, end: ReplyEnd) -> None:
        if end.usage is not None and 200 <= end.status < 300:
            self._learn(turn, end.usage)
        self._events.told(turn, EventKind.REQUEST, _request_data(turn, end))

    def _learn(self, turn: Turn, usage: Mapping[str, Any]) -> None:
        if turn.counted is None:
            return
        ratio = self._anchors.learn_from_usage(self._surfaces.sent(turn, turn.counted), usage)
        if ratio is not None:
            model = self._metrics.model_label(turn.scope.model)
            self._metrics.set("tidegate_estimate_ratio", ratio, model=model)

    def _count(self, turn: Turn, status: int) -> None:
        metrics = self._metrics
        model = metrics.model_label(turn.scope.model)
        action = ",".join(turn.actions) or "none"
        metrics.add(
            "tidegate_requests_total", model=model, action=action, status=f"{status // 100}xx"
        )
        if turn.counted is None:
            metrics.add("tidegate_uncounted_requests_total", model=model)
        else:
            client, surface = turn.counted.client_tokens, turn.counted.surface_tokens
            metrics.add("tidegate_client_tokens_total", client, model=model)
            metrics.add("tidegate_forwarded_tokens_total", surface, model=model)
        if turn.reason is not None:
            metrics.add("tidegate_reasons_total", reason=turn.reason.value)
        if turn.degraded is not None:
            metrics.add("tidegate_degraded_total", part=turn.degraded)


def _request_data(turn: Turn, end: ReplyEnd) -> dict[str, Any]:
    view = turn.view
    return {
        "status": end.status,
        "completed": end.completed,
        "broke": end.broke,
        "finish_reason": end.finish_reason,
        "messages": len(turn.chain),
        "tokens": view.total_tokens if view is not None else turn.bound_tokens,
        "tokens_exact": view is not None,
        "tokens_before": turn.counted.client_tokens if turn.counted is not None else None,
        "reported_tokens": reported_prompt_tokens(end.usage) if end.usage is not None else None,
        "window_tokens": turn.budget.window_tokens,
        "trigger_tokens": turn.budget.trigger_tokens,
        "generation": turn.generation,
        "actions": list(turn.actions),
        "reason": None if turn.reason is None else turn.reason.value,
    }
