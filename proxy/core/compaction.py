"""What to replace, and whether it is worth it: plans made on a priced surface, and the checks that
a finished compaction must pass. Design sections 8 and 9; every number here is theirs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from proxy.core.anchors import all_scaled
from proxy.core.digest import plan_digest
from proxy.core.frame import KeptWords, digest_payload, keep_words, summary_payload
from proxy.core.messages import HEAD_ROLES, Message, is_real_user, role_of, text_of
from proxy.core.pruning import Cut, cuts_to_payload, oversized_parts
from proxy.core.ranges import Pairing, PricedUnit, retained_cut
from proxy.core.replacements import NewReplacement, Replacement, ReplacementKind
from proxy.core.surface import Surface

MIN_NEW_TOKENS = 256
FRAME_TOKENS = 120  # preamble, delimiters and headings of the frame, measured with o200k_base
MIN_SUMMARY_TOKENS = 16  # some providers refuse a smaller output cap
SHRUNK_CHARS = 1024  # the least that stays of a tool result cut as a last resort; chosen

Count = Callable[[str], int]


class Cause(StrEnum):
    """Why a compaction runs."""

    PRESSURE = "pressure"
    OVERFLOW = "overflow"
    MANUAL = "manual"


class Reason(StrEnum):
    """Values of `x-tidegate-reason`: why something was not done, or not done in full."""

    ENVELOPE_TOO_LARGE = "envelope-too-large"
    FLOOR_OVER_TRIGGER = "floor-over-trigger"
    NOT_ENOUGH_NEW = "not-enough-new"
    BACKING_OFF = "backing-off"
    SUMMARY_FAILED = "summary-failed"
    SUMMARY_TIMEOUT = "summary-timeout"
    BREAKER_OPEN = "breaker-open"
    INVALID_BUDGET = "invalid-budget"
    UNKNOWN_WINDOW = "unknown-window"
    UNSTABLE_HISTORY = "unstable-history"
    WINDOW_STATED = "window-stated"


@dataclass(frozen=True)  # without slots: what was scaled stays with it
class View:
    """A request's history as folded and priced: what plans are made on.

    `item_counts` prices `surface.items`, `history_counts` the messages as the client sent them, by
    our own count; `item_tokens` and `history_tokens` are the same times `ratio`, worked out when a
    plan asks. `fixed_tokens` is the head and everything outside `messages`, scaled. `total_tokens`
    is what decides: scaled, or from the provider's own figure.
    """

    history: tuple[Message, ...]
    pairing: Pairing
    chain: tuple[bytes, ...]
    applied: tuple[Replacement, ...]
    surface: Surface
    item_counts: tuple[int, ...]
    history_counts: tuple[int, ...]
    fixed_tokens: int
    total_tokens: int
    ratio: float = 1.0

    @cached_property
    def item_tokens(self) -> tuple[int, ...]:
        """The price of each item of the surface."""
        if self.item_counts is self.history_counts:
            return self.history_tokens
        return all_scaled(self.item_counts, self.ratio)

    @cached_property
    def history_tokens(self) -> tuple[int, ...]:
        """The price of each message as the client sent it."""
        return all_scaled(self.history_counts, self.ratio)

    def units(self) -> tuple[PricedUnit, ...]:
        """The surface as stretches that may not be cut, with their prices."""
        return tuple(
            PricedUnit(
                start=s.start,
                end=s.end,
                tokens=sum(self.item_tokens[s.first : s.last]),
                messages=s.last - s.first,
                open=s.open,
            )
            for s in self.surface.stretches
        )

    def leading_end(self) -> int:
        """Where the history goes on after the earlier summary; 0 without one."""
        leading = self.surface.leading()
        return leading.end if leading is not None else 0


@dataclass(frozen=True, slots=True)
class Aim:
    """What a compaction must reach: T, what the window leaves for the prompt, and R.

    `share_tokens` is A = T - head - tools, of which kept words and the summary get shares.
    """

    cause: Cause
    trigger_tokens: int | None
    limit_tokens: int | None
    retain_tokens: int
    share_tokens: int
    keep_messages: int | None = None
    # Nobody stated the limit, or not in tokens as we count them.
    limit_is_guess: bool = False

    def tail_tokens(self) -> int:
        """How much of the newest stays: R, under pressure at most a quarter of A."""
        if self.cause is Cause.PRESSURE:
            return min(self.retain_tokens, self.share_tokens // 4)
        return self.retain_tokens


@dataclass(frozen=True, slots=True)
class Words:
    """How much of the user's own words a frame may hold, and how it is written."""

    keep_first_tokens: int = 2000
    keep_rules_tokens: int = 2000
    summary_max_tokens: int = 8192
    role_alternation: bool = False


@dataclass(frozen=True, slots=True)
class RangePlan:
    """`history[start:end]` becomes a frame with `kept_words`, then the messages `kept`.

    Only a region chosen by hand starts after 0.
    """

    end: int
    end_fingerprint: bytes
    range_tokens: int
    new_tokens: int
    summary_cap_tokens: int
    kept_words: KeptWords
    kept: tuple[int, ...]
    dropped_instructions: int
    start: int = 0


def verbatim_positions(
    view: View, cut: int, cap_tokens: int, *, start: int = 0
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The positions of `[start, cut)` that follow the frame word for word, and those left out.

    System and developer messages met in the range (identical ones once, the last; newest first up
    to the cap), and the newest real user message when the cut left it behind.
    """
    kept: list[int] = []
    left_out: list[int] = []
    seen: set[str] = set()
    spent = 0
    for position in range(cut - 1, start - 1, -1):
        message = view.history[position]
        if role_of(message) not in HEAD_ROLES:
            continue
        text = text_of(message)
        if text in seen:
            continue
        seen.add(text)
        if spent + view.history_tokens[position] <= cap_tokens:
            spent += view.history_tokens[position]
            kept.append(position)
        else:
            left_out.append(position)
    newest = newest_user(view.history)
    if newest is not None and start <= newest < cut:
        kept.append(newest)
    return tuple(sorted(kept)), tuple(sorted(left_out))


def newest_user(history: Sequence[Message]) -> int | None:
    """The position of the newest user message with something in it."""
    for position in range(len(history) - 1, -1, -1):
        if is_real_user(history[position]):
            return position
    return None


def first_user(history: Sequence[Message]) -> int | None:
    """The position of the first user message with something in it."""
    return next((p for p, message in enumerate(history) if is_real_user(message)), None)


def floor_tokens(view: View, aim: Aim, words: Words, *, shrunk: bool = False) -> int:
    """Head, tools, verbatim parts and newest unit: what no compaction can remove.

    `shrunk` prices the oversized tool results of the tail as the last resort would leave them.
    """
    units = view.units()
    cut = retained_cut(units, 0)
    tail = 0
    for stretch, unit in zip(view.surface.stretches, units, strict=True):
        if stretch.start < cut:
            continue
        tail += unit.tokens
        if shrunk:
            tail -= sum(
                _shrinkable_tokens(view, index) for index in range(stretch.first, stretch.last)
            )
    if cut == 0:
        return view.fixed_tokens + tail
    kept, _ = verbatim_positions(view, cut, aim.share_tokens // 8)
    verbatim = sum(view.history_tokens[position] for position in kept)
    first = first_user(view.history)
    quoted = 0
    if first is not None and first < cut and first not in kept:
        quoted = min(words.keep_first_tokens, aim.share_tokens // 16, view.history_tokens[first])
    return view.fixed_tokens + tail + verbatim + max(quoted, 0) + FRAME_TOKENS


def _shrinkable_tokens(view: View, index: int) -> int:
    """What the last resort can take off one item; results that are not oversized stay whole."""
    item = view.surface.items[index]
    if item.position is None or not _longer_than_shrunk(view.history[item.position], item.message):
        return 0
    chars = len(text_of(item.message))
    return view.item_tokens[index] * max(chars - SHRUNK_CHARS, 0) // max(chars, 1)


def plan_range(
    view: View, aim: Aim, words: Words, count: Count, *, tail_tokens: int | None = None
) -> RangePlan | None:
    """What to summarise: `[0, cut)`; None when at most an earlier summary could be replaced."""
    units = view.units()
    retain = aim.tail_tokens() if tail_tokens is None else tail_tokens
    keep = aim.keep_messages if tail_tokens is None else None
    cut = retained_cut(units, retain, keep_messages=keep)
    if cut <= view.leading_end():
        return None
    return plan_region(view, aim, words, count, bounds=(0, cut))


def plan_region(
    view: View, aim: Aim, words: Words, count: Count, *, bounds: tuple[int, int]
) -> RangePlan:
    """How `history[start:end]` would be summarised; `bounds` cut neither units nor summaries."""
    start, end = bounds
    inside = [
        (stretch, unit.tokens)
        for stretch, unit in zip(view.surface.stretches, view.units(), strict=True)
        if start <= stretch.start and stretch.end <= end
    ]
    range_tokens = sum(tokens for _, tokens in inside)
    old = view.leading_end() if start == 0 else start
    new_tokens = sum(
        tokens
        for stretch, tokens in inside
        if stretch.start >= old and not (start > 0 and stretch.replaced)
    )
    kept, dropped = verbatim_positions(view, end, aim.share_tokens // 8, start=start)
    # What stays word for word is not material for a summary.
    new_tokens -= sum(view.history_tokens[position] for position in kept if position >= old)
    caps = (
        min(words.keep_first_tokens, max(aim.share_tokens, 0) // 16),
        min(words.keep_rules_tokens, max(aim.share_tokens, 0) // 16),
    )
    kept_words = keep_words(
        view.history, end, start=start, kept=kept, caps_tokens=caps, count=count
    )
    cap = min(words.summary_max_tokens, aim.share_tokens // 6, range_tokens // 2)
    return RangePlan(
        start=start,
        end=end,
        end_fingerprint=view.chain[end - 1],
        range_tokens=range_tokens,
        new_tokens=max(new_tokens, 0),
        summary_cap_tokens=max(cap, MIN_SUMMARY_TOKENS),
        kept_words=kept_words,
        kept=kept,
        dropped_instructions=len(dropped),
    )


def plan_prune(view: View, *, newest_too: bool) -> tuple[NewReplacement, ...]:
    """Cuts for every over-long tool result on the surface; the newest unit's only when asked."""
    tail_start = view.surface.stretches[-1].start if view.surface.stretches else 0
    new: list[NewReplacement] = []
    for item in view.surface.items:
        if item.position is None or (item.position >= tail_start and not newest_too):
            continue
        # Whether, by what shows; where, by what was sent: a placeholder is no text of the tool's.
        cuts = oversized_parts(view.history[item.position])
        if cuts and oversized_parts(item.message):
            new.append(edit(view, item.position, ReplacementKind.PRUNE, cuts_to_payload(cuts)))
    return tuple(new)


def edit(view: View, position: int, kind: ReplacementKind, payload: Any) -> NewReplacement:
    """A replacement of one message's content."""
    return NewReplacement(kind, position, position + 1, view.chain[position], payload)


def shrink_candidates(view: View) -> tuple[int, ...]:
    """Positions of the tail's oversized tool results, newest first, for the last resort.

    The tail is what no range can reach: the newest unit, and all from an open unit on.
    """
    tail_start = retained_cut(view.units(), 0)
    return tuple(
        item.position
        for item in reversed(view.surface.items)
        if item.position is not None
        and item.position >= tail_start
        and _longer_than_shrunk(view.history[item.position], item.message)
    )


def _longer_than_shrunk(original: Message, shown: Message) -> bool:
    return bool(oversized_parts(original)) and len(text_of(shown)) > SHRUNK_CHARS


def shrink_chars(view: View, position: int, over_tokens: int) -> int:
    """How many code points of that result fit when `over_tokens` must go, a tenth to spare."""
    index = next(i for i, item in enumerate(view.surface.items) if item.position == position)
    tokens = max(view.item_tokens[index], 1)
    chars = len(text_of(view.surface.items[index].message))
    left = max(tokens - over_tokens - over_tokens // 10 - 64, 0)
    return max(chars * left // tokens, SHRUNK_CHARS)


def as_shrink(view: View, position: int, cuts: Sequence[Cut]) -> NewReplacement:
    """The last resort's cut of one result, kept as a prune."""
    return edit(view, position, ReplacementKind.PRUNE, cuts_to_payload(cuts))


def with_summary(view: View, plan: RangePlan, words: Words, summary: str) -> NewReplacement:
    """The replacement that carries an accepted summary."""
    payload = summary_payload(
        summary, plan.kept_words, view.history, kept=plan.kept, merge=words.role_alternation
    )
    return NewReplacement(
        ReplacementKind.SUMMARY, plan.start, plan.end, plan.end_fingerprint, payload
    )


def with_digest(view: View, plan: RangePlan, words: Words, count: Count) -> NewReplacement:
    """The replacement made without a model: what was asked, done and answered, if it fits."""
    start = told_from(view)
    digest = plan_digest(
        view.history,
        start,
        plan.end,
        cap_tokens=plan.summary_cap_tokens,
        count=count,
        skip=plan.kept,
    )
    payload = digest_payload(
        digest,
        plan.kept_words,
        view.history,
        start=start,
        earlier_summary=earlier_summary(view) or None,
        kept=plan.kept,
        merge=words.role_alternation,
    )
    return NewReplacement(ReplacementKind.DIGEST, 0, plan.end, plan.end_fingerprint, payload)


def earlier_summary(view: View) -> str:
    """The text of the summary that the range begins with, "" without one."""
    leading = view.surface.leading()
    if leading is None:
        return ""
    return str(leading.payload.get("summary") or leading.payload.get("earlier_summary") or "")


def told_from(view: View) -> int:
    """From which position on the range is told by its own messages.

    A summary stands for everything before its end. A digest is no summary: what it covers is told
    again from the originals, but for the stretch that a summary before it stands for.
    """
    leading = view.surface.leading()
    if leading is None:
        return 0
    if leading.kind is ReplacementKind.SUMMARY:
        return leading.end
    return int(leading.payload.get("start", 0)) if leading.payload.get("earlier_summary") else 0
