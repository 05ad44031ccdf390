"""What is kept of an answered request, when its reply has ended: the provider's own figure as an
anchor, the metrics, one event. Nothing here delays a byte."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from proxy.anchor_book import AnchorBook
from proxy.conversations import Conversations
from proxy.core.anchors import reported_prompt_tokens
from proxy.core.overflow import Refusal
from proxy.core.recovery import Step
from proxy.events import EventLog
from proxy.metrics import Metrics
from proxy.own_work import OwnWork
from proxy.prefix_shares import PrefixShares
from proxy.reply import Reply, ReplyEnd
from proxy.store.store import EventKind
from proxy.surfaces import Surfaces
from proxy.turn import Turn
from proxy.windows import Windows

BYTES_PER_TOKEN_SUSPICIOUS = 12


class Records:
    """Watches a reply to its end and writes down what came of the request."""

    def __init__(
        self,
        *,
        conversations: Conversations,
        surfaces: Surfaces,
        anchors: AnchorBook,
        windows: Windows,
        events: EventLog,
        metrics: Metrics,
    ) -> None:
        """All shared with the pipeline."""
        self._windows = windows
        self._conversations = conversations
        self._surfaces = surfaces
        self._anchors = anchors
        self._events = events
        self._metrics = metrics
        self._prefixes = PrefixShares(metrics)
        self._tasks: set[asyncio.Task[object]] = set()

    def asked(self, own_work: OwnWork) -> None:
        """The provider is about to be asked; what came before the first time is our share."""
        seconds = own_work.passed_on()
        if seconds is not None:
            self._metrics.observe("tidegate_added_seconds", seconds)

    def answered(self, turn: Turn, reply: Reply, *, asked: Turn) -> None:
        """Record the request now, and the rest of its story when the reply ends.

        `asked` is the turn as it was sent for this reply: its surface is what usage is about. It
        differs from `turn` when room was made in vain and the first answer stands.
        """
        self._conversations.record(turn)
        self._count(turn, reply.status)
        self._prefixes.observe(turn)
        reply.on_end = lambda end: self._ended(turn, asked, end)

    def recovered(self, turn: Turn, step: Step, refusal: Refusal, *, replayed: bool) -> None:
        """A refusal was recognised; whether room was made and the request sent again."""
        said = {
            "refusal": refusal.kind.value,
            "sign": refusal.sign,
            "window_tokens": refusal.window_tokens,
            "prompt_tokens": refusal.prompt_tokens,
        }
        self._events.told(turn, EventKind.OVERFLOW, said)
        if replayed:
            cause = "image" if step is Step.OFFLOAD else "overflow"
            self._metrics.add("tidegate_replays_total", cause=cause)
            self._events.told(turn, EventKind.REPLAY, {"cause": cause})

    def _ended(self, turn: Turn, asked: Turn, end: ReplyEnd) -> None:
        reported = None
        if end.usage is not None:
            reported = reported_prompt_tokens(end.usage)
            if 200 <= end.status < 300:
                self._learn(asked, end.usage, reported)
        self._events.told(turn, EventKind.REQUEST, _request_data(turn, end, reported))

    def _learn(self, turn: Turn, usage: Mapping[str, Any], reported: int | None) -> None:
        if reported is not None and self._windows.holds_lessons(turn.scope):
            made = usage.get("completion_tokens")
            output = made if isinstance(made, int) else 0
            self._background(self._windows.succeeded(turn.scope, reported, output))
        if turn.counted is None:
            if reported is not None and _suspiciously_small(reported, turn):
                self._background(self._look_again(turn, usage, reported))
            return
        ratio = self._anchors.learn_from_usage(self._surfaces.sent(turn, turn.counted), usage)
        if ratio is not None:
            model = self._metrics.model_label(turn.scope.model)
            self._metrics.set("tidegate_estimate_ratio", ratio, model=model)

    async def _look_again(self, turn: Turn, usage: Mapping[str, Any], reported: int) -> None:
        """Count a request that was sent uncounted, to tell whether the provider cut it silently."""
        self._learn(await self._surfaces.price(turn), usage, reported)

    def _background(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work, name="records")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Finish what runs in the background."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _count(self, turn: Turn, status: int) -> None:
        metrics = self._metrics
        model = metrics.model_label(turn.scope.model)
        metrics.add(
            "tidegate_requests_total", model=model, action=turn.action, status=f"{status // 100}xx"
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


def _suspiciously_small(reported_tokens: int, turn: Turn) -> bool:
    """Whether a request that was not counted should be, by its bytes for each reported token.

    Text of any language takes 2 to 5 bytes a token; a dozen is a reason to look.
    """
    bound = turn.bound_tokens or 0
    return bound > BYTES_PER_TOKEN_SUSPICIOUS * reported_tokens


def _request_data(turn: Turn, end: ReplyEnd, reported_tokens: int | None) -> dict[str, Any]:
    view, budget = turn.view, turn.budget
    return {
        "status": end.status,
        "completed": end.completed,
        "broke": end.broke,
        "finish_reason": end.finish_reason,
        "messages": len(turn.chain),
        "tokens": view.total_tokens if view is not None else turn.bound_tokens,
        "tokens_exact": view is not None,
        "tokens_before": turn.tokens_before,
        "reported_tokens": reported_tokens,
        "window_tokens": budget.window_tokens,
        "trigger_tokens": budget.trigger_tokens,
        "generation": turn.generation,
        "actions": list(turn.actions),
        "reason": None if turn.reason is None else turn.reason.value,
    }
