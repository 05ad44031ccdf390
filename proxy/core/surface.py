"""What the model sees: the history with its replacements applied. Folding is a pure function of the
history and the replacements that match it, so any worker makes the same surface at any time."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, NamedTuple

from proxy.core.frame import compose, merge_into
from proxy.core.images import placeholder
from proxy.core.messages import Message, part_text, role_of
from proxy.core.pruning import Cut, apply_cuts, cuts_from_payload
from proxy.core.ranges import Pairing
from proxy.core.replacements import Replacement, ReplacementKind

RANGE_KINDS = frozenset({ReplacementKind.SUMMARY, ReplacementKind.DIGEST})
EDIT_KINDS = frozenset({ReplacementKind.PRUNE, ReplacementKind.OFFLOAD})


class Item(NamedTuple):
    """One message of the surface.

    `position` is the history position of the client's message, None for a message of ours;
    `as_sent` says that the client's bytes stand unchanged.
    """

    message: Message
    position: int | None
    as_sent: bool


class Stretch(NamedTuple):
    """`items[first:last]` of the surface stand for `history[start:end]` and may not be cut."""

    start: int
    end: int
    first: int
    last: int
    open: bool
    replaced: bool


class Surface(NamedTuple):
    """The folded history: its items, what may not be cut in it, and which replacements show."""

    items: tuple[Item, ...]
    stretches: tuple[Stretch, ...]
    visible: tuple[Replacement, ...]

    @property
    def replaced(self) -> bool:
        """Whether anything differs from what the client sent."""
        return bool(self.visible)

    def leading(self) -> Replacement | None:
        """The visible range replacement that starts the history, if there is one."""
        for replacement in self.visible:
            if replacement.kind in RANGE_KINDS and replacement.start == 0:
                return replacement
        return None


def matching(
    chain: Sequence[bytes], replacements: Sequence[Replacement]
) -> tuple[Replacement, ...]:
    """The replacements recorded for this very history, revoked ones and backoffs included."""
    return tuple(
        r
        for r in replacements
        if 0 <= r.start < r.end <= len(chain) and chain[r.end - 1] == r.end_fingerprint
    )


def planned_ids(applied: Sequence[Replacement]) -> tuple[str, ...]:
    """The ids that a plan is made on: unrevoked replacements, without backoffs, in order made."""
    return tuple(
        r.id
        for r in sorted(applied, key=lambda r: r.order)
        if not r.revoked and r.kind is not ReplacementKind.BACKOFF
    )


def _visible_ranges(pairing: Pairing, ranges: Sequence[Replacement]) -> list[Replacement]:
    """Outermost first; of equal ranges the first made; none that would strand a tool result."""
    chosen: list[Replacement] = []
    for candidate in sorted(ranges, key=lambda r: (r.start - r.end, r.order)):
        apart = all(candidate.end <= c.start or c.end <= candidate.start for c in chosen)
        if apart and not pairing.strands(candidate.start, candidate.end):
            chosen.append(candidate)
    return sorted(chosen, key=lambda r: r.start)


def continued(before: Surface, history: Sequence[Message], pairing: Pairing, start: int) -> Surface:
    """The surface that `before` becomes when its history goes on as this one does from `start` on.

    Both begin with the same `start` messages, a settled place of both, and every replacement ends
    before it.
    """
    kept = before.stretches[: bisect_right(before.stretches, start, key=_end_of)]
    first = kept[-1].last if kept else 0
    shift = first - start
    items = tuple(map(Item, history[start:], range(start, len(history)), repeat(True)))
    units = pairing.units[bisect_left(pairing.units, start, key=_start_of) :]
    stretches = tuple(
        [Stretch(s, e, s + shift, e + shift, is_open, replaced=False) for s, e, is_open in units]
    )
    return Surface(before.items[:first] + items, kept + stretches, before.visible)


_start_of, _end_of = attrgetter("start"), attrgetter("end")


def unfolded(history: Sequence[Message], pairing: Pairing) -> Surface:
    """The surface without any replacement."""
    return continued(Surface((), (), ()), history, pairing, 0)


def fold(history: Sequence[Message], pairing: Pairing, applied: Sequence[Replacement]) -> Surface:
    """Apply the unrevoked among `applied`, which all match this history (see `matching`)."""
    if not applied:
        return unfolded(history, pairing)
    return _Folding(history, pairing, applied).fold()


class _Folding:
    """One walk over the history; holds what is collected on the way."""

    def __init__(
        self, history: Sequence[Message], pairing: Pairing, applied: Sequence[Replacement]
    ) -> None:
        live = sorted((r for r in applied if not r.revoked), key=lambda r: r.order)
        self.history = history
        self.pairing = pairing
        ranges = _visible_ranges(pairing, [r for r in live if r.kind in RANGE_KINDS])
        self.ranges = {replacement.start: replacement for replacement in ranges}
        self.edits: dict[int, list[Replacement]] = {}
        for replacement in live:
            if replacement.kind in EDIT_KINDS:
                self.edits.setdefault(replacement.start, []).append(replacement)
        self.items: list[Item] = []
        self.stretches: list[Stretch] = []
        self.shown: list[Replacement] = []
        self.carried: Message | None = None

    def fold(self) -> Surface:
        position = 0
        units = {unit.start: unit for unit in self.pairing.units}
        while position < len(self.history):
            first = len(self.items)
            replacement = self.ranges.get(position)
            if replacement is not None:
                self._replace(replacement)
                stretch = Stretch(
                    position, replacement.end, first, len(self.items), open=False, replaced=True
                )
                self.stretches.append(stretch)
                position = replacement.end
                continue
            self.items.append(self._edited(position))
            unit = units.get(position)
            covered = self.stretches[-1].end if self.stretches else 0
            position += 1
            if unit is not None and position > covered:
                self.stretches.append(
                    Stretch(unit.start, unit.end, first, len(self.items), unit.open, replaced=False)
                )
            elif self.stretches:
                self._extend(position)
        return Surface(tuple(self.items), tuple(self.stretches), tuple(self.shown))

    def _extend(self, end: int) -> None:
        last = self.stretches[-1]
        self.stretches[-1] = Stretch(
            last.start, max(last.end, end), last.first, len(self.items), last.open, last.replaced
        )

    def _replace(self, replacement: Replacement) -> None:
        """The frame, then the messages of the range that are kept word for word.

        Offloads still hold for a kept message: a model that refuses an image refuses it there too.
        """
        self.shown.append(replacement)
        payload = replacement.payload
        kept = [p for p in payload.get("kept", ()) if replacement.start <= p < replacement.end]
        following = kept[0] if kept else replacement.end
        frame = compose(payload, self.history)
        comes_next = bool(kept) or following not in self.ranges
        if payload.get("merge") and comes_next and self._is_user(following):
            self.carried = frame
        else:
            self.items.append(Item(frame, None, as_sent=False))
        self.items.extend(self._edited(position) for position in kept)

    def _is_user(self, position: int) -> bool:
        return position < len(self.history) and role_of(self.history[position]) == "user"

    def _edited(self, position: int) -> Item:
        message = self.history[position]
        edits = self.edits.get(position, [])
        if edits:
            message = apply_edits(message, edits)
            self.shown.extend(edits)
        as_sent = not edits
        if self.carried is not None:
            message, as_sent = merge_into(self.carried, message), False
            self.carried = None
        return Item(message, position, as_sent)


def apply_edits(message: Message, edits: Sequence[Replacement]) -> Message:
    """The message with its prunes and offloads applied; every field but the content as it was.

    Of several cuts of one text the last made holds: a shrink replaces an earlier prune.
    """
    cuts: dict[int, Cut] = {}
    for edit in edits:
        if edit.kind is ReplacementKind.PRUNE:
            cuts.update({cut.part: cut for cut in cuts_from_payload(edit.payload)})
        else:
            message = apply_offload(message, edit.payload)
    return apply_cuts(message, cuts.values()) if cuts else message


def apply_offload(message: Message, payload: Mapping[str, Any]) -> Message:
    """The message with the named image parts replaced by text parts in the same places.

    Text is never replaced: empty parts, which fingerprints do not see, may have moved the places.
    """
    content = message.get("content")
    if not isinstance(content, list):
        return message
    for entry in payload.get("parts", ()):
        text = placeholder(entry.get("media_type"), entry.get("width_px"), entry.get("height_px"))
        content = _with_part(content, tuple(entry["path"]), {"type": "text", "text": text})
    return {**message, "content": content}


def _with_part(content: list[Any], path: tuple[int, ...], part: Mapping[str, Any]) -> list[Any]:
    index = path[0]
    if index >= len(content) or part_text(content[index]) is not None:
        return content
    changed = list(content)
    if len(path) == 1:
        changed[index] = part
        return changed
    outer = content[index]
    if isinstance(outer, Mapping) and isinstance(outer.get("content"), list):
        changed[index] = {**outer, "content": _with_part(outer["content"], path[1:], part)}
    return changed
