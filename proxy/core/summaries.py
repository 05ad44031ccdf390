"""Whether an answer to a summary call is a summary. Reasoning is taken out first; what is left must
be text, said to its end, cheaper than what it replaces. An answer is never repaired into one.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from proxy.core.frame import is_frame_line
from proxy.core.messages import REASONING_FIELDS, reasoning_of
from proxy.core.sse import EventParser
from proxy.core.verdicts import choices_of, decode_json, finish_reason_of, usage_of

Count = Callable[[str], int]


class RefusalReason(StrEnum):
    """Why an answer is no summary."""

    NO_CHOICES = "no-choices"
    BLANK = "blank"
    ONLY_REASONING = "only-reasoning"
    TOOL_CALLS = "tool-calls"
    CUT_SHORT = "cut-short"
    FILTERED = "filtered"
    NOT_SMALLER = "not-smaller"


@dataclass(frozen=True, slots=True)
class Accepted:
    """A summary's text, and whether it was cut at a line end to keep its cap."""

    text: str
    was_cut: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Why it is no summary; `reasoning_ate_it`: a larger cap may leave room for the text."""

    reason: RefusalReason
    reasoning_ate_it: bool = False


_THOUGHT_NAMES = r"(?:think|thinking|thought|reasoning|reflection|scratchpad)"
# Only where a line begins: a summary may speak of these tags in the middle of a sentence.
_THOUGHT_OPEN = re.compile(rf"^[ \t]*<({_THOUGHT_NAMES})>", re.IGNORECASE | re.MULTILINE)
# Chat templates that open the block in the prompt leave only its end in the answer.
_THOUGHT_END = re.compile(rf"</{_THOUGHT_NAMES}>[ \t]*(?:\n|$)", re.IGNORECASE)
_HARMONY_FINAL = "<|channel|>final<|message|>"
_HARMONY_MARK = re.compile(r"<\|(?:end|return|start|call)\|>.*", re.DOTALL)

# How models write calls when no tools are there to call; each pattern opens one.
_CALL_OPENINGS = re.compile(
    r"<tool_call|<\|tool_call|<function=|<function_calls?>|<invoke\b|<tool_use>|<tool_code>"
    r"|<｜tool▁calls?▁begin｜>|\[TOOL_CALLS\]|✿FUNCTION✿|<\|python_tag\|>|<\|action_start\|>"
    r"|<\|channel\|>commentary to=",
    re.IGNORECASE,
)
_FENCED = re.compile(r"^```[\w-]*[ \t]*\n(.*?)\n?```$", re.DOTALL)
_SUMMARY_TAG = re.compile(r"^<summary>\s*(.*?)\s*</summary>$", re.IGNORECASE | re.DOTALL)
# So much text before a call written as text is a summary that quotes one.
_QUOTING_CHARS = 400


def accept(
    reply: Mapping[str, Any], *, cap_tokens: int, range_tokens: int | None, count: Count
) -> Accepted | Refused:
    """The summary in a chat completion, cut to its cap, or why there is none.

    A stream is judged by the completion that its events add up to. `range_tokens` is the price
    of what the summary replaces, by the same count.
    """
    choice = _first_choice(reply)
    if choice is None:
        return Refused(RefusalReason.NO_CHOICES)
    message = choice.get("message", choice.get("delta"))
    message = message if isinstance(message, Mapping) else {}
    finish = choice.get("finish_reason")
    text, had_thoughts = without_thoughts(_content(message, choice))
    reasoned = had_thoughts or bool(reasoning_of(message).strip())
    if message.get("tool_calls") or message.get("function_call"):
        return Refused(RefusalReason.TOOL_CALLS)
    if finish in ("length", "max_tokens", "model_context_window_exceeded"):
        return Refused(
            RefusalReason.CUT_SHORT, reasoning_ate_it=not text and _thought(reply, reasoned)
        )
    if finish == "content_filter":
        return Refused(RefusalReason.FILTERED)
    if not text:
        return Refused(RefusalReason.ONLY_REASONING if reasoned else RefusalReason.BLANK)
    if is_written_call(text):
        return Refused(RefusalReason.TOOL_CALLS)
    shortened = cut_at_line_end(text, cap_tokens, count)
    if range_tokens is not None and count(shortened) >= range_tokens:
        return Refused(RefusalReason.NOT_SMALLER)
    return Accepted(shortened, was_cut=len(shortened) < len(text))


def completion_of(body: bytes) -> Mapping[str, Any] | None:
    """The chat completion in a reply's body, also where it was streamed unasked; None: no JSON."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return _assembled(body)
    return value if isinstance(value, Mapping) else None


def without_thoughts(text: str) -> tuple[str, bool]:
    """The text without its reasoning and without lines of our own frame; whether there was any."""
    found = False
    if _HARMONY_FINAL in text:
        text = _HARMONY_MARK.sub("", text.rsplit(_HARMONY_FINAL, 1)[1])
        found = True
    opening = _THOUGHT_OPEN.search(text)
    ending = _THOUGHT_END.search(text)
    if ending and (opening is None or ending.start() < opening.start()):
        text, found = text[ending.end() :], True
        opening = _THOUGHT_OPEN.search(text)
    kept: list[str] = []
    while opening:
        found = True
        kept.append(text[: opening.start()])
        closing = re.compile(rf"</{opening.group(1)}>", re.IGNORECASE).search(text, opening.end())
        # Never closed: all that follows is reasoning.
        text = text[closing.end() :] if closing else ""
        opening = _THOUGHT_OPEN.search(text)
    text = "".join([*kept, text]).strip()
    tagged = _SUMMARY_TAG.match(text)
    if tagged:
        text = tagged.group(1)
    lines = text.split("\n")
    return "\n".join(line for line in lines if not is_frame_line(line)).strip(), found


def is_written_call(text: str) -> bool:
    """Whether a text is a tool call in words: by a template's mark, or as a bare JSON object."""
    opening = _CALL_OPENINGS.search(text)
    if opening is not None and opening.start() < _QUOTING_CHARS:
        before = text[: opening.start()]
        # Between back-quotes the mark is spoken about.
        return before.count("`") % 2 == 0 or "```" in before
    fenced = _FENCED.match(text)
    return _is_call(fenced.group(1) if fenced else text)


def cut_at_line_end(text: str, cap_tokens: int, count: Count) -> str:
    """As many whole lines as fit into `cap_tokens`; of a first line too long, what fits of it."""
    if count(text) <= cap_tokens:
        return text
    lines = text.split("\n")
    low, high = 0, len(lines) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if count("\n".join(lines[:middle])) <= cap_tokens:
            low = middle
        else:
            high = middle - 1
    fitting = "\n".join(lines[:low]).rstrip()
    return fitting or _cut_line(text.lstrip().split("\n", 1)[0], cap_tokens, count)


def _cut_line(line: str, cap_tokens: int, count: Count) -> str:
    low, high = 0, len(line)
    while low < high:
        middle = (low + high + 1) // 2
        if count(line[:middle]) <= cap_tokens:
            low = middle
        else:
            high = middle - 1
    return line[:low].rstrip()


def _first_choice(reply: Mapping[str, Any]) -> Mapping[str, Any] | None:
    choices = reply.get("choices")
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        return None
    return choices[0] if isinstance(choices[0], Mapping) else None


def _assembled(body: bytes) -> Mapping[str, Any] | None:
    """What the events of a stream add up to: texts joined, calls and the last of all else kept."""
    parser = EventParser()
    events = [*parser.feed(body), *([last] if (last := parser.end()) else [])]
    message: dict[str, Any] = {}
    finish, usage, found = None, None, False
    for event in events:
        value = decode_json(event.data)
        usage = usage_of(value) or usage
        finish = finish_reason_of(value) or finish
        for choice in choices_of(value):
            delta = choice.get("delta")
            found = True
            for key, part in delta.items() if isinstance(delta, Mapping) else ():
                before = message.get(key)
                joins = isinstance(part, str) and isinstance(before, str) and key != "role"
                message[key] = before + part if joins else (part or before)
    if not found:
        return None
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}


def _content(message: Mapping[str, Any], choice: Mapping[str, Any]) -> str:
    content = message.get("content", choice.get("text"))
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = [
        part["text"]
        for part in content
        if isinstance(part, Mapping)
        and part.get("type") not in REASONING_FIELDS
        and isinstance(part.get("text"), str)
    ]
    return "".join(texts)


def _thought(reply: Mapping[str, Any], reasoned: bool) -> bool:
    """Whether the output went into reasoning, shown or only counted."""
    usage = reply.get("usage")
    details = usage.get("completion_tokens_details") if isinstance(usage, Mapping) else None
    spent = details.get("reasoning_tokens") if isinstance(details, Mapping) else None
    return reasoned or (isinstance(spent, int) and spent > 0)


def _is_call(text: str) -> bool:
    stripped = text.strip()
    if not stripped.startswith(("{", "[")):
        return False
    try:
        value = json.loads(stripped)
    except (ValueError, RecursionError):
        return False
    calls = value if isinstance(value, list) else [value]
    return bool(calls) and all(_names_a_call(call) for call in calls)


def _names_a_call(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    function = value.get("function")
    if isinstance(function, Mapping):
        value = function
    named = any(
        isinstance(value.get(key), str) for key in ("name", "tool", "function", "tool_name")
    )
    given = any(key in value for key in ("arguments", "parameters", "args", "input"))
    return (named and given) or "tool_calls" in value
