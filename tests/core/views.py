"""Priced views for tests of plans: one token a code point of text, so that sums can be read off."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from proxy.core.compaction import Aim, Cause, View
from proxy.core.messages import Message, text_of
from proxy.core.ranges import pair
from proxy.core.replacements import NewReplacement, Replacement
from proxy.core.surface import fold, matching
from tests.strategies import history_chain


def price(message: Message) -> int:
    """The tokens of a message in these tests."""
    return len(text_of(message))


def view_of(
    history: Sequence[dict[str, Any]], *applied: Replacement, fixed_tokens: int = 0
) -> View:
    """The history folded and priced."""
    pairing = pair(history)
    prints = history_chain(history, pairing)
    rows = matching(prints, applied)
    surface = fold(history, pairing, rows)
    items = tuple(price(item.message) for item in surface.items)
    return View(
        history=tuple(history),
        pairing=pairing,
        chain=prints,
        applied=rows,
        surface=surface,
        item_counts=items,
        history_counts=tuple(price(message) for message in history),
        fixed_tokens=fixed_tokens,
        total_tokens=fixed_tokens + sum(items),
    )


def stored(new: NewReplacement, order: int = 1, *, revoked: bool = False) -> Replacement:
    """A replacement as the store would give it back."""
    return Replacement(
        id=f"id{order}",
        order=order,
        kind=new.kind,
        start=new.start,
        end=new.end,
        end_fingerprint=new.end_fingerprint,
        payload=new.payload,
        revoked=revoked,
    )


def aim(cause: Cause = Cause.PRESSURE, **changes: Any) -> Aim:
    """T = 4000, the window leaves 8000 for the prompt, R = 500."""
    usual = Aim(
        cause=cause,
        trigger_tokens=4000,
        limit_tokens=8000,
        retain_tokens=500,
        share_tokens=4000,
    )
    return replace(usual, **changes)
