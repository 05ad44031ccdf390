"""Conversations, generations, surfaces and events as the JSON that callers and the page read."""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.core.generations import Step
from proxy.core.replacements import Replacement
from proxy.core.surface import RANGE_KINDS, Item, Stretch, Surface
from proxy.store.store import Conversation, Event


def context_of(gauge: Mapping[str, Any]) -> dict[str, Any]:
    """How full the window is; null where nobody knows the window."""
    tokens, window = gauge.get("tokens"), gauge.get("window_tokens")
    percentage = None
    if isinstance(tokens, int) and isinstance(window, int) and window > 0:
        percentage = round(tokens * 100 / window, 1)
    return {"token_count": tokens, "max_context_tokens": window, "percentage": percentage}


def listed_json(
    conversation: Conversation, *, title: str | None, in_flight: bool
) -> dict[str, Any]:
    """One entry of the list."""
    gauge = conversation.gauge
    return {
        "id": conversation.id,
        "title": title,
        "tenant": conversation.tenant,
        "upstream": conversation.upstream,
        "model": conversation.model,
        "message_count": conversation.message_count,
        "generation": gauge.get("generation", 0),
        "context": context_of(gauge),
        "tokens_exact": gauge.get("tokens_exact", False),
        "trigger_tokens": gauge.get("trigger_tokens"),
        "labels": dict(conversation.labels),
        "created_at": conversation.created_at,
        "seen_at": conversation.seen_at,
        "in_flight": in_flight,
    }


def shown_json(listed: dict[str, Any], made: Sequence[Step], *, scheduled: bool) -> dict[str, Any]:
    """One conversation, with what made each of its generations."""
    return {
        **listed,
        "generation": len(made),
        "generations": steps_json(made),
        "scheduled": scheduled,
    }


def steps_json(made: Sequence[Step]) -> list[dict[str, Any]]:
    """What made each generation; of a revocation, what it took back."""
    revoked_by = {step.replacement.id: step.number for step in made if step.revokes}
    return [
        {
            "generation": step.number,
            "checkpoint_id": step.replacement.id,
            "kind": "revoke" if step.revokes else step.replacement.kind.value,
            "start": step.replacement.start,
            "end": step.replacement.end,
            "revoked_by": None if step.revokes else revoked_by.get(step.replacement.id),
        }
        for step in made
    ]


def surface_json(surface: Surface, part: range, tokens: Sequence[int]) -> list[dict[str, Any]]:
    """Some items of a surface, each with the stretch of the history that it stands in."""
    of_item: dict[int, Stretch] = {}
    for stretch in surface.stretches:
        for index in range(stretch.first, stretch.last):
            of_item[index] = stretch
    shown: list[dict[str, Any]] = []
    for index, count in zip(part, tokens, strict=True):
        item = surface.items[index]
        around = of_item.get(index)
        by = _replacements_on(surface, item, around)
        shown.append(
            {
                "index": index,
                "position": item.position,
                "start": around.start if around is not None else item.position,
                "end": around.end if around is not None else item.position,
                "kind": _kind(item, around, by),
                "checkpoint_ids": [replacement.id for replacement in by],
                "tokens": count,
                "message": item.message,
            }
        )
    return shown


def _replacements_on(
    surface: Surface, item: Item, stretch: Stretch | None
) -> tuple[Replacement, ...]:
    found = []
    for shown in surface.visible:
        if shown.kind in RANGE_KINDS:
            if stretch is not None and stretch.replaced and shown.start == stretch.start:
                found.append(shown)
        elif shown.start == item.position:
            found.append(shown)
    return tuple(found)


def _kind(item: Item, stretch: Stretch | None, by: Sequence[Replacement]) -> str:
    """`sent`, `kept` (word for word beside a frame), `merged`, or what stands there instead."""
    if item.position is None:
        return by[0].kind.value if by else "summary"
    if item.as_sent:
        return "kept" if stretch is not None and stretch.replaced else "sent"
    edits = [replacement.kind.value for replacement in by if replacement.kind not in RANGE_KINDS]
    return edits[-1] if edits else "merged"


def event_json(event: Event) -> dict[str, Any]:
    """One event: what every one has, then what its kind tells."""
    return {
        **event.data,
        "order": event.order,
        "conversation_id": event.conversation,
        "kind": event.kind.value,
        "time": event.time,
    }
