"""A range of a conversation as delimited data for a summary call: role-labelled blocks between
delimiters that occur in none of them. Tool results are the only texts that are ever shortened, with
a mark; whatever else is too long for one part goes on in the next.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from proxy.core.frame import choose_fence
from proxy.core.messages import (
    HEAD_ROLES,
    Message,
    is_result,
    part_text,
    parts_of,
    role_of,
    tool_calls_of,
)
from proxy.core.pruning import PRUNE_HEAD, PRUNE_TAIL, cut_text
from proxy.core.text_steps import steps_of

# Base64 in text costs a token for every other character and says nothing. Runs this long are no
# path, hash or key.
_DATA_URL = re.compile(
    r"data:[\w.+-]{1,80}/[\w.+-]{1,80}(?:;[\w=.+-]{1,80}){0,4},[A-Za-z0-9+/=_-]+"
)
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/=])[A-Za-z0-9+/]{1024,}={0,2}")
_CONTINUED = " (continued)"
_RESULT = "TOOL RESULT"  # the longest label but the closing one
_END = "END OF TRANSCRIPT"

# How much of each tool result stays, gentlest first, until the parts are few enough.
RESULT_KEEPS = (
    (PRUNE_HEAD, PRUNE_TAIL),
    (1536, 512),
    (384, 128),
    (96, 32),
)


@dataclass(frozen=True, slots=True)
class Block:
    """One message, or a piece of one, as it stands in a transcript."""

    label: str
    text: str
    result: bool = False


def blocks_of(messages: Sequence[Message]) -> tuple[Block, ...]:
    """The messages as blocks, nothing shortened; a message that says nothing makes none."""
    return tuple(block for message in messages if (block := _block(message)) is not None)


def render(blocks: Sequence[Block]) -> str:
    """The transcript's text. No line of a message can look like a delimiter of this transcript."""
    fence = choose_fence("\n".join(block.text for block in blocks))
    lines = [f"{fence} {block.label} {fence}\n{block.text}" for block in blocks]
    return "\n".join([*lines, f"{fence} {_END} {fence}"])


def shorten_results(blocks: Sequence[Block], head: int, tail: int) -> tuple[Block, ...]:
    """The same blocks with the middle of every long tool result left out and marked."""
    return tuple(
        replace(block, text=cut_text(block.text, head, tail)) if block.result else block
        for block in blocks
    )


def split_into_parts(
    blocks: Sequence[Block], *, part_tokens: int, count: Callable[[str], int]
) -> tuple[tuple[Block, ...], ...]:
    """The blocks in runs that cost at most `part_tokens` each, in order, nothing left out.

    A block larger than a part is split at line breaks, a line larger than a part anywhere.
    """
    parts: list[tuple[Block, ...]] = []
    current: list[Block] = []
    spent = 0
    fence = choose_fence("\n".join(block.text for block in blocks))
    around = count(f"{fence} {_RESULT}{_CONTINUED} {fence}\n\n")
    room = max(part_tokens - around, 1)  # the closing delimiter
    for block in blocks:
        for piece, cost in _pieces(block, room, around, count):
            if current and spent + cost > room:
                parts.append(tuple(current))
                current, spent = [], 0
            current.append(piece)
            spent += cost
    return (*parts, tuple(current)) if current else tuple(parts)


def plan_parts(
    blocks: Sequence[Block],
    *,
    part_tokens: int,
    max_parts: int,
    count: Callable[[str], int],
) -> tuple[tuple[Block, ...], ...]:
    """The whole range in one part as it is, else in few parts with its tool results shortened.

    Results are shortened no more than it takes to need at most `max_parts`; `()` when even that
    does not do.
    """
    whole = split_into_parts(blocks, part_tokens=part_tokens, count=count)
    if len(whole) <= 1:
        return whole
    for head, tail in RESULT_KEEPS:
        shortened = shorten_results(blocks, head, tail)
        # Counting is what costs: a range without long results is not counted once more.
        same = shortened == tuple(blocks)
        parts = whole if same else split_into_parts(shortened, part_tokens=part_tokens, count=count)
        if len(parts) <= max_parts:
            return parts
    return ()


def _block(message: Message) -> Block | None:
    calls = (
        f"[tool call] {call.name} {_without_base64(call.arguments)}".rstrip()
        for call in tool_calls_of(message)
    )
    pieces = [*_content(message), *calls]
    text = "\n".join(pieces)
    if not text.strip():
        return None
    return Block(_label(message), text, result=is_result(message))


def _label(message: Message) -> str:
    """Only the kind of message: names and ids are the client's and could hold anything."""
    role = role_of(message)
    if is_result(message):
        return _RESULT
    if role in HEAD_ROLES:
        return "INSTRUCTIONS"
    return role.upper() if role in ("user", "assistant") else "OTHER"


def _content(message: Message) -> Iterator[str]:
    for part in parts_of(message):
        text = part_text(part)
        if text is not None:
            if text:
                yield _without_base64(text)
        else:
            yield f"[{_kind(part)}]"


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        return "attachment"
    for known in ("image", "audio", "video", "file"):
        if known in kind:
            return known
    return "attachment"


def _without_base64(text: str) -> str:
    if len(text) < 512:
        return text
    return "".join(map(_step_without_base64, steps_of(text)))


def _step_without_base64(text: str) -> str:
    shown = _DATA_URL.sub(_name_of_url, text) if "data:" in text else text
    return _BASE64.sub(_name_of_run, shown)


def _name_of_url(found: re.Match[str]) -> str:
    said = found.group()
    if len(said) < 512:
        return said
    return "[image]" if said.startswith("data:image/") else "[attachment]"


def _name_of_run(found: re.Match[str]) -> str:
    """Encoded bytes use the whole alphabet; a long run of letters is something else."""
    said = found.group()
    if all(re.search(kind, said) for kind in ("[A-Z]", "[a-z]", "[0-9]")):
        return f"[{len(said)} characters of base64]"
    return said


def _pieces(
    block: Block, room: int, around: int, count: Callable[[str], int]
) -> Iterator[tuple[Block, int]]:
    """The block, or pieces of it that cost at most `room`, and what each costs with its mark."""
    cost = count(block.text) + around
    if cost <= room:
        yield block, cost
        return
    label = block.label
    for text in _split(block.text, max(room - around, 1), count, cost):
        yield Block(label, text, block.result), count(text) + around
        label = block.label + _CONTINUED


def _split(text: str, room: int, count: Callable[[str], int], tokens: int) -> Iterator[str]:
    """Consecutive pieces of at most `room` tokens, ended at a line break where there is one."""
    guess = max(len(text) * room // max(tokens, 1), 1)
    start = 0
    while start < len(text):
        size = min(guess, len(text) - start)
        while size > 1 and count(text[start : start + size]) > room:
            size = size * 4 // 5 or 1
        end = start + size
        if end < len(text):
            # Not so early that pieces become many: a break in the second half, or none.
            line_end = text.rfind("\n", start + size // 2, end) + 1
            end = line_end or end
        yield text[start:end]
        start = end
