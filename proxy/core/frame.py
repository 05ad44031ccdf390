"""The one user message that carries a summary or digest and the user's kept words. It is composed
from a payload and the client's current history, the same bytes every time: no time, counter or id.
Every quoted text stands between delimiters that occur in none of them.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.core.digest import render_digest
from proxy.core.messages import Message, is_real_user, text_of
from proxy.core.rules import RuleRef, choose_rules, find_rules, rule_text

PAYLOAD_FORMAT = 1

PREAMBLE = (
    "The earlier part of this conversation was replaced by the summary below to save room. Take "
    "it as established background. Continue from the messages that follow; do not acknowledge or "
    "mention this summary."
)
# The messages that follow are further down in the same message then.
_PREAMBLE_MERGED = PREAMBLE.replace(
    "the messages that follow", "the message that follows the last delimiter"
)
_SUMMARY = "SUMMARY OF THE EARLIER CONVERSATION"
_DIGEST = "EXTRACT OF THE EARLIER CONVERSATION (parts are left out)"
_BEFORE = "SUMMARY OF WHAT CAME BEFORE THE EXTRACT"
_FIRST = "FIRST MESSAGE OF THE USER, WORD FOR WORD"
_RULES = "STANDING RULES OF THE USER, WORD FOR WORD (later ones win)"
_END = "END"
_LEFT_OUT = "({count} more lines like these were left out to save room.)"
_GONE = "\n[... {count} characters of this message left out to save room ...]\n"

_SHORTEST_FENCE = 5
# Rules drawn by tools are up to a terminal's width long.
_LONGEST_FENCE = 200
_FRAME_LINE = re.compile(
    r"[=-]{3,} (?:"
    + "|".join(re.escape(title) for title in (_SUMMARY, _DIGEST, _BEFORE, _FIRST, _RULES, _END))
    + r") [=-]{3,}"
)


@dataclass(frozen=True, slots=True)
class KeptWords:
    """The user's own words that a frame repeats: references into the history."""

    first: Mapping[str, int] | None
    rules: tuple[RuleRef, ...]
    left_out: int


def choose_fence(text: str) -> str:
    """A delimiter that does not occur in the text, so that no line of it can end a quotation.

    It is a run of `=` longer than any there; a text with an endless run gets another pattern.
    """
    fence = "=" * _SHORTEST_FENCE
    while len(fence) <= _LONGEST_FENCE and fence in text:
        fence += "="
    if len(fence) <= _LONGEST_FENCE:
        return fence
    fence = "=-="
    while fence in text:
        fence += "-="
    return fence


def is_frame_line(line: str) -> bool:
    """Whether a line is one that a frame is made of: a model that repeats it quotes the frame."""
    stripped = line.strip()
    return stripped in (PREAMBLE, _PREAMBLE_MERGED) or _FRAME_LINE.fullmatch(stripped) is not None


def first_words(
    message: Message, *, cap_tokens: int, count: Callable[[str], int]
) -> dict[str, int]:
    """How many code points of a message's start and end fit into `cap_tokens`; whole: tail 0."""
    text = text_of(message)
    total = count(text)
    if total <= cap_tokens:
        return {"head": len(text), "tail": 0}
    marker = count(_GONE.format(count=len(text)))
    room = max(cap_tokens - marker, 0)
    kept = len(text) * room // total
    while kept > 0:
        head = kept * 2 // 3  # the request stands at the start, its conditions at the end
        tail = kept - head
        if count(text[:head]) + count(text[len(text) - tail :]) <= room:
            return {"head": head, "tail": tail}
        kept = kept * 9 // 10
    return {"head": 0, "tail": 0}


def quoted(text: str, head: int, tail: int) -> str:
    """A text with its middle left out and the number of characters gone in its place."""
    gone = len(text) - head - tail
    if gone <= 0:
        return text
    return text[:head] + _GONE.format(count=gone) + text[len(text) - tail :]


def keep_words(
    history: Sequence[Message],
    end: int,
    *,
    start: int = 0,
    kept: Collection[int],
    caps_tokens: tuple[int, int],
    count: Callable[[str], int],
) -> KeptWords:
    """What a frame for `history[start:end]` repeats of it: the first user message, the rules.

    `kept` are the positions that follow the frame word for word; nothing of them is repeated.
    `caps_tokens` is one cap for the first message and one for the rules.
    """
    first_cap, rules_cap = caps_tokens
    first = _first_user(history, end)
    ref: dict[str, int] | None = None
    if first is not None and first >= start and first not in kept:
        words = first_words(history[first], cap_tokens=first_cap, count=count)
        if words["head"] or words["tail"]:
            ref = {"position": first, **words}
    lines = find_rules(history, [p for p in range(start, end) if p not in kept])
    refs = [line for line in lines if ref is None or not _repeats(history, line, ref)]
    rules, left_out = choose_rules(refs, history, cap_tokens=rules_cap, count=count)
    return KeptWords(ref, rules, left_out)


def summary_payload(
    summary: str,
    words: KeptWords,
    history: Sequence[Message],
    *,
    kept: Sequence[int] = (),
    merge: bool = False,
) -> dict[str, Any]:
    """The stored form of a frame round a summariser's text."""
    return _with_fence({"summary": summary}, words, history, kept, merge)


def digest_payload(
    digest: Sequence[Mapping[str, int]],
    words: KeptWords,
    history: Sequence[Message],
    *,
    start: int = 0,
    earlier_summary: str | None = None,
    kept: Sequence[int] = (),
    merge: bool = False,
) -> dict[str, Any]:
    """The stored form of a frame round a digest of `history[start:]`.

    `earlier_summary` is a summariser's text about what came before `start`: a later summary or
    digest goes on from there, since a digest itself is no source.
    """
    body: dict[str, Any] = {"digest": [dict(ref) for ref in digest], "start": start}
    if earlier_summary:
        body["earlier_summary"] = earlier_summary
    return _with_fence(body, words, history, kept, merge)


def compose(payload: Mapping[str, Any], history: Sequence[Message]) -> Message:
    """The frame that a summary or digest payload stands for, over this history."""
    fence = payload["fence"]
    opening = _PREAMBLE_MERGED if payload["merge"] else PREAMBLE
    blocks = [f"{fence} {title} {fence}\n{text}" for title, text in _quotations(payload, history)]
    return {
        "role": "user",
        "content": "\n\n".join([opening, "\n\n".join(blocks) + f"\n{fence} {_END} {fence}"]),
    }


def merge_into(frame_message: Message, user_message: Message) -> Message:
    """The user message with the frame in front of its content; every other field is its own."""
    frame = frame_message["content"]
    content = user_message.get("content")
    if isinstance(content, list):
        return {**user_message, "content": [{"type": "text", "text": frame}, *content]}
    text = f"{frame}\n\n{content}" if isinstance(content, str) and content else frame
    return {**user_message, "content": text}


def _with_fence(
    body: Mapping[str, Any],
    words: KeptWords,
    history: Sequence[Message],
    kept: Sequence[int],
    merge: bool,
) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "format": PAYLOAD_FORMAT,
        **body,
        "first": dict(words.first) if words.first else None,
        "rules": [{"position": ref.position, "line": ref.line} for ref in words.rules],
        "left_out": words.left_out,
        "kept": list(kept),
        "merge": merge,
    }
    texts = [text for _, text in _quotations(payload, history)]
    return {**payload, "fence": choose_fence("\n".join(texts))}


def _quotations(payload: Mapping[str, Any], history: Sequence[Message]) -> list[tuple[str, str]]:
    """Title and text of every block of a frame, in the order shown."""
    blocks: list[tuple[str, str]] = []
    if "digest" in payload:
        if earlier := payload.get("earlier_summary"):
            blocks.append((_BEFORE, earlier))
        blocks.append((_DIGEST, render_digest(history, payload["digest"])))
    else:
        blocks.append((_SUMMARY, payload["summary"]))
    if first := payload["first"]:
        text = text_of(history[first["position"]])
        blocks.append((_FIRST, quoted(text, first["head"], first["tail"])))
    lines = [
        f"- {rule_text(history, RuleRef(rule['position'], rule['line']))}"
        for rule in payload["rules"]
    ]
    if payload["left_out"]:
        lines.append(_LEFT_OUT.format(count=payload["left_out"]))
    if lines:
        blocks.append((_RULES, "\n".join(lines)))
    return blocks


def _first_user(history: Sequence[Message], end: int) -> int | None:
    for position in range(end):
        message = history[position]
        if is_real_user(message) and text_of(message).strip():
            return position
    return None


def _repeats(history: Sequence[Message], rule: RuleRef, first: Mapping[str, int]) -> bool:
    """Whether a rule's line already stands in what is quoted of the first message."""
    if rule.position != first["position"]:
        return False
    text = text_of(history[rule.position])
    lines = text.split("\n")
    start = sum(len(line) + 1 for line in lines[: rule.line])
    return start + len(lines[rule.line]) <= first["head"] or start >= len(text) - first["tail"]
