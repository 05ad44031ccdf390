"""Cutting the middle out of long tool results. A cut is a count of code points at each end, never
a copy of the text; what it makes is a pure function of the message it is applied to, and never
longer."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.core.messages import Message, is_result, part_text

PRUNE_OVER = 8192  # code points; design section 9
PRUNE_HEAD = 4096
PRUNE_TAIL = 1024

_MARKER = "\n\n[... {count} characters removed from this tool result to save room ...]\n\n"
# A marker that a client sends back is told by its wording. A tool that prints it gains nothing by
# it: its own result stays long.
_MARKER_PATTERN = re.compile(
    r"\[\.\.\. [0-9]{1,12} characters removed from this tool result to save room \.\.\.\]"
)


@dataclass(frozen=True, slots=True)
class Cut:
    """What stays of one text part: `head` code points of its start and `tail` of its end."""

    part: int
    head: int
    tail: int


def cut_text(text: str, head: int, tail: int) -> str:
    """The text with its middle replaced by a marker, or as it is when that would not be shorter."""
    head, tail = max(head, 0), max(tail, 0)
    gone = len(text) - head - tail
    if gone <= 0:
        return text
    shortened = text[:head] + _MARKER.format(count=gone) + text[len(text) - tail :]
    return shortened if len(shortened) < len(text) else text


def holds_marker(text: str) -> bool:
    """Whether a text was already cut by us and came back."""
    return _MARKER_PATTERN.search(text) is not None


def oversized_parts(message: Message) -> tuple[Cut, ...]:
    """The cuts that prune this tool result; none when it is no result, short enough or pruned."""
    if not is_result(message):
        return ()
    texts = [(index, text) for index, text in _texts(message) if not holds_marker(text)]
    if sum(len(text) for _, text in texts) <= PRUNE_OVER:
        return ()
    return _spread(texts, PRUNE_HEAD, PRUNE_TAIL)


def shrink_to(message: Message, max_chars: int) -> tuple[Cut, ...]:
    """Cuts after which the texts hold about `max_chars` together, three quarters at the start.

    Every part that is cut needs room for its own marker, so a very small `max_chars` may be passed;
    the texts are never longer than before.
    """
    texts = _texts(message)
    total = sum(len(text) for _, text in texts)
    if total <= max_chars:
        return ()
    room = max(max_chars, 0)
    cuts: tuple[Cut, ...] = ()
    # The number of markers depends on the cuts and the cuts on the room the markers leave.
    for _ in range(len(texts) + 1):
        head = room * 3 // 4
        cuts = _spread(texts, head, room - head)
        over = _length_after(texts, cuts) - max_chars
        if over <= 0 or room == 0:
            break
        room = max(room - over, 0)
    return cuts


def apply_cuts(message: Message, cuts: Iterable[Cut]) -> Message:
    """The message with only `content` changed; of several cuts on one part the last holds."""
    by_part = {cut.part: cut for cut in cuts}
    content = message.get("content")
    if isinstance(content, str):
        cut = by_part.get(0)
        return {**message, "content": cut_text(content, cut.head, cut.tail)} if cut else message
    if not isinstance(content, list) or not by_part:
        return message
    parts = list(content)
    for index, cut in by_part.items():
        if 0 <= index < len(parts):
            parts[index] = _cut_part(parts[index], cut)
    return {**message, "content": parts}


def cuts_to_payload(cuts: Iterable[Cut]) -> Mapping[str, Any]:
    """The stored form of a prune or shrink: counts only, no words of the client."""
    return {"cuts": [{"part": cut.part, "head": cut.head, "tail": cut.tail} for cut in cuts]}


def cuts_from_payload(payload: Mapping[str, Any]) -> tuple[Cut, ...]:
    """The cuts of a stored prune or shrink."""
    return tuple(
        Cut(part=cut["part"], head=cut["head"], tail=cut["tail"]) for cut in payload["cuts"]
    )


def _texts(message: Message) -> list[tuple[int, str]]:
    content = message.get("content")
    if isinstance(content, str):
        return [(0, content)] if content else []
    if not isinstance(content, list):
        return []
    return [(i, text) for i, part in enumerate(content) if (text := part_text(part))]


def _spread(texts: Sequence[tuple[int, str]], head: int, tail: int) -> tuple[Cut, ...]:
    """One head and one tail for all texts together, in order; only cuts that shorten a text."""
    total = sum(len(text) for _, text in texts)
    cuts: list[Cut] = []
    before = 0
    for index, text in texts:
        size = len(text)
        after = total - before - size
        cut = Cut(
            part=index,
            head=min(max(head - before, 0), size),
            tail=min(max(tail - after, 0), size),
        )
        before += size
        if len(cut_text(text, cut.head, cut.tail)) < size:
            cuts.append(cut)
    return tuple(cuts)


def _length_after(texts: Sequence[tuple[int, str]], cuts: Sequence[Cut]) -> int:
    by_part = {cut.part: cut for cut in cuts}
    return sum(
        len(cut_text(text, cut.head, cut.tail)) if (cut := by_part.get(index)) else len(text)
        for index, text in texts
    )


def _cut_part(part: Any, cut: Cut) -> Any:
    if isinstance(part, str):
        return cut_text(part, cut.head, cut.tail)
    text = part_text(part)
    if text is None:
        return part
    key = "text" if part.get("text") == text else "refusal"
    return {**part, key: cut_text(text, cut.head, cut.tail)}
