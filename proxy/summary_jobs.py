"""From a planned range to a task for the summariser: who may be asked, with whose credential, and
the range exactly as it was last sent."""

from collections.abc import Callable, Mapping, Sequence

from proxy.anchor_book import AnchorBook
from proxy.core.anchors import scaled
from proxy.core.compaction import RangePlan, earlier_summary, told_from
from proxy.core.images import image_parts
from proxy.core.limits import StatedLimit
from proxy.core.messages import Message, role_of
from proxy.core.offloading import IMAGE_ROLES
from proxy.core.replacements import Scope
from proxy.core.summary_tasks import (
    CallRecord,
    Candidate,
    SummaryCall,
    SummaryMode,
    SummaryOutcome,
    SummaryReply,
    SummaryTask,
)
from proxy.core.surface import RANGE_KINDS, Item
from proxy.meter import Meter
from proxy.provider import Provider
from proxy.relay import Upstream, own_request
from proxy.summarizer import Summarizer
from proxy.turn import Turn
from proxy.windows import Windows

MAX_SUMMARY_BYTES = 4 * 1024 * 1024


class SummaryJobs:
    """Asks for the summary of one range on behalf of one turn."""

    def __init__(
        self,
        *,
        summarizer: Summarizer,
        provider: Provider,
        meter: Meter,
        anchors: AnchorBook,
        windows: Windows,
        upstreams: Mapping[str, Upstream],
    ) -> None:
        """`upstreams` are those configured, by name."""
        self._summarizer = summarizer
        self._provider = provider
        self._meter = meter
        self._anchors = anchors
        self._windows = windows
        self._upstreams = upstreams

    async def summarise(self, turn: Turn, plan: RangePlan, failures_allowed: int) -> SummaryOutcome:
        """The summary, or why there is none. Cancelling this cancels the call under way."""

        async def ask(call: SummaryCall) -> SummaryReply:
            return await self._ask(turn, call)

        task = self._task(turn, plan, failures_allowed)
        outcome = await self._summarizer.summarise(task, ask)
        for call in outcome.calls:
            await self._learn(turn, call)
        return outcome

    async def _learn(self, turn: Turn, call: CallRecord) -> None:
        """A summariser that refused a call by its window has stated it."""
        refusal = call.refusal
        if refusal is None or refusal.window_tokens is None:
            return
        scope = turn.scope._replace(upstream=call.upstream, model=call.model)
        stated = StatedLimit(
            tokens=refusal.window_tokens,
            counted_tokens=call.prompt_tokens,
            output_tokens=0,
            input_only=refusal.window_is_input_only,
        )
        await self._windows.learn(scope, stated)

    async def _ask(self, turn: Turn, call: SummaryCall) -> SummaryReply:
        upstream = self._upstream(turn, call.upstream)
        reply = await self._provider.send(own_request(upstream, call.body, caller=turn.caller))
        try:
            body = await reply.whole(max_bytes=MAX_SUMMARY_BYTES)
        finally:
            await reply.aclose()
        return SummaryReply(reply.status, body)

    def _upstream(self, turn: Turn, name: str) -> Upstream:
        if name == turn.caller.upstream.name:
            return turn.caller.upstream
        return self._upstreams[name]

    def _task(self, turn: Turn, plan: RangePlan, failures_allowed: int) -> SummaryTask:
        view, policy = turn.priced, turn.rules.compaction
        stretches = [s for s in view.surface.stretches if s.end <= plan.end]
        last = max((s.last for s in stretches), default=0)
        first = min((s.first for s in stretches if s.start >= plan.start), default=0)
        head = turn.request.raw_messages[: turn.request.head_length]
        counted = view.fixed_tokens + sum(view.item_tokens[:last])
        # Where the provider's own figure is known, what does not stand in the tail is the range's.
        reported = view.total_tokens - sum(view.item_tokens[last:])
        return SummaryTask(
            tenant=turn.scope.tenant,
            candidates=self._candidates(turn),
            fields=turn.request.fields,
            raw_messages=(*head, *turn.raw_items[:last]),
            messages=told_messages(turn, plan.end, start=plan.start),
            replay_tokens=max(counted, reported),
            range_tokens=plan.range_tokens,
            cap_tokens=plan.summary_cap_tokens,
            timeout_seconds=policy.summary_timeout_seconds,
            failures_allowed=failures_allowed,
            earlier_summary=(earlier_summary(view) or None) if plan.start == 0 else None,
            # A replay would tell what comes before the region, too; a logged history may lack
            # the bytes of its images.
            mode=SummaryMode.TRANSCRIPT if plan.start or turn.from_log else policy.summary_mode,
            role_alternation=policy.words.role_alternation,
            has_images=any(_can_lose_images(item) for item in view.surface.items[first:last]),
        )

    def _candidates(self, turn: Turn) -> Sequence[Candidate]:
        chosen = turn.rules.compaction.summarizers
        if not chosen:
            return [self._candidate(turn, turn.scope.upstream, turn.scope.model)]
        return [self._candidate(turn, s.upstream, s.model) for s in chosen]

    def _candidate(self, turn: Turn, upstream: str, model: str) -> Candidate:
        scope = turn.scope._replace(upstream=upstream, model=model)
        limits = self._windows.effective(scope)
        window, prompt_limit = limits.window_tokens, limits.input_limit_tokens
        same_upstream = upstream == turn.scope.upstream
        return Candidate(
            upstream=upstream,
            model=model,
            # A limit of the prompt alone bounds a call more tightly than the window.
            context_window=min((n for n in (window, prompt_limit) if n is not None), default=None),
            count=self._counter(scope),
            own=same_upstream and model == turn.scope.model,
            same_upstream=same_upstream,
        )

    def _counter(self, scope: Scope) -> Callable[[str], int]:
        ratio = self._anchors.ratio(scope)
        return lambda text: scaled(self._meter.count_text(text, scope.model), ratio)


def _can_lose_images(item: Item) -> bool:
    message = item.message
    return (
        item.position is not None and role_of(message) in IMAGE_ROLES and bool(image_parts(message))
    )


def told_messages(turn: Turn, end: int, *, start: int = 0) -> tuple[Message, ...]:
    """What a transcript tells of `history[start:end]`: what follows an earlier summary's range.

    Messages are told as they show on the surface, so that an offloaded image stays away; those that
    only a digest, or a summary of a region, stands for are told from the originals.
    """
    view = turn.priced
    shown = {item.position: item for item in view.surface.items if item.position is not None}
    ranges = [r for r in view.surface.visible if r.kind in RANGE_KINDS]
    hidden = {position for r in ranges for position in range(r.start, r.end)}
    # A message that a frame was merged into is told as the client sent it.
    merged = {r.end for r in ranges if r.payload.get("merge")}
    told: list[Message] = []
    for position in range(start or told_from(view), end):
        item = shown.get(position)
        if item is None or position in hidden or position in merged:
            told.append(turn.request.history[position])
        else:
            told.append(item.message)
    return tuple(told)
