"""What the practice provider says: quotations, never inventions. Same request, same answer.

Asked something, it repeats the question and the earlier line that has most words in common with
it, so that one can see what the model still had before it. Asked for a summary with sections, it
fills them with lines of the conversation.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from proxy.core.frame import is_frame_line
from proxy.core.messages import Message, role_of, text_of, tool_calls_of

Count = Callable[[str], int]

MIN_SECTIONS = 3
ITEM_MAX_CHARS = 200
ITEMS_MAX = 40
"""Lines of one section; the token cap is what really bounds a summary."""

SUMMARY_SHARE = 2
"""A summary is at most this fraction of what it stands for."""

_FENCE = re.compile(r"^={5,} (.+?) ={5,}$")
_HEADING = re.compile(r"^\s*#{1,6}\s+(.+?)\s*#*\s*$")
_NUMBERED = re.compile(
    r"^\s*(?:\d{1,2}[.)]|[-*])\s+\**([^\n*:]{3,80}?)\**\s*(?:[:(\u2013\u2014].*)?$"
)
_LETTERS = re.compile(r"[^\W_]{2}")
"""A line without two letters or digits in a row (a bracket, a rule) says nothing."""

_WORD = re.compile(r"\w{4,}")
_EXACT = re.compile(
    r"https?://\S+|`[^`\n]+`|\b[\w.-]*/[\w./-]+|\b\w+\.[a-z]{1,5}\b|\b[A-Z][A-Z0-9_-]{2,}\b"
    r"|\b\w*\d(?:[\w.,:%-]*\w)?"
)


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the conversation and who said it."""

    role: str
    text: str


_LATEST_HOLDS = re.compile(r"progress|current|next", re.IGNORECASE)

_Chooser = Callable[[Sequence[_Line]], Iterable[str]]


def answer(messages: Sequence[Message], *, prompt_tokens: int, window_tokens: int) -> str:
    """A short answer to the last user message."""
    asked = next((text_of(m) for m in reversed(messages) if role_of(m) == "user"), "")
    question = _short(" ".join(asked.split())) or "(nothing)"
    said = list(_said(messages))
    parts = [
        f"Practice answer to: {question}",
        f"I hold {len(messages)} messages, {prompt_tokens} of {window_tokens} tokens.",
    ]
    closest = _closest(asked, [line for line in said if line.text not in asked])
    if closest is not None:
        parts.append(f"The closest earlier line, from {closest.role}: {_short(closest.text)}")
    return "\n".join(parts)


def _closest(question: str, said: Sequence[_Line]) -> _Line | None:
    wanted = _words(question)
    best, best_score = None, 1
    for line in said:
        score = len(wanted & _words(line.text))
        if score >= best_score:
            best, best_score = line, score
    return best


def sections_asked_for(messages: Sequence[Message]) -> tuple[str, ...]:
    """The sections of the summary that the last message asks for; () when it asks for none."""
    if not messages or role_of(messages[-1]) != "user":
        return ()
    _, instruction = _transcript_and_rest(text_of(messages[-1]))
    if "summar" not in instruction.lower():
        return ()
    lines = instruction.splitlines()
    for pattern in (_HEADING, _NUMBERED):
        found = [match[1].strip() for line in lines if (match := pattern.match(line))]
        if len(found) >= MIN_SECTIONS:
            return tuple(dict.fromkeys(found))
    return ()


def summarise(
    messages: Sequence[Message], sections: Sequence[str], *, cap_tokens: int, count: Count
) -> str:
    """The sections, each filled with lines of the conversation, within `cap_tokens`."""
    transcript, _ = _transcript_and_rest(text_of(messages[-1]))
    said = [*_said(messages[:-1]), *transcript]
    cap_tokens = min(cap_tokens, max(64, sum(count(line.text) for line in said) // SUMMARY_SHARE))
    earlier, said = _without_earlier(said, sections)
    wanted = [
        _merged(section, earlier.get(section, ()), list(_items(section, said)))
        for section in sections
    ]
    chosen: list[list[str]] = [[] for _ in sections]
    room = cap_tokens - sum(count(f"## {section}\n- (none)\n\n") for section in sections)
    # In turns, so that a long section does not starve the others.
    for row in zip_longest(*wanted):
        for index, item in enumerate(row):
            cost = count(f"- {item}\n") if item is not None else 0
            if item is not None and cost <= room:
                chosen[index].append(item)
                room -= cost
    return "\n\n".join(
        "\n".join((f"## {section}", *(f"- {item}" for item in items or ["(none)"])))
        for section, items in zip(sections, chosen, strict=True)
    )


def _without_earlier(
    said: Sequence[_Line], sections: Sequence[str]
) -> tuple[Mapping[str, list[str]], list[_Line]]:
    """What an earlier summary already holds, by section, to be merged; and all other lines."""
    found: dict[str, list[str]] = {}
    others: list[_Line] = []
    current: str | None = None
    for line in said:
        heading = _HEADING.match(line.text)
        if heading is not None and heading[1] in sections:
            current = heading[1]
        elif current is not None and line.text.startswith("- "):
            if line.text != "- (none)":
                found.setdefault(current, []).append(line.text[2:])
        else:
            current = None
            others.append(line)
    return found, others


def _merged(section: str, earlier: Sequence[str], new: Sequence[str]) -> list[str]:
    """Earlier items first; where only the latest state counts, they give way to new ones."""
    if new and _LATEST_HOLDS.search(section):
        earlier = ()
    return list(dict.fromkeys((*earlier, *new)))[:ITEMS_MAX]


def _items(section: str, said: Sequence[_Line]) -> Iterator[str]:
    for words, choose in _CHOOSERS:
        if re.search(words, section, re.IGNORECASE):
            return iter([_short(item) for item in choose(said)])
    return iter(())


def _matching(words: str, *roles: str) -> _Chooser:
    pattern = re.compile(words, re.IGNORECASE)
    return lambda said: (
        line.text
        for line in reversed(said)
        if (not roles or line.role in roles) and pattern.search(line.text)
    )


def _requests(said: Sequence[_Line]) -> Iterator[str]:
    """What the user said, in their words: the first, then the latest first."""
    asked = [f'"{_short(line.text)}"' for line in said if line.role == "user"]
    yield from asked[:1]
    yield from reversed(asked[1:])


def _exact(said: Sequence[_Line]) -> Iterator[str]:
    """Lines that hold names, paths, numbers, most first; of long ones only those."""
    found = [(list(dict.fromkeys(_EXACT.findall(line.text))), line.text) for line in said]
    found.sort(key=lambda pair: -len(pair[0]))
    for details, text in found:
        if details:
            yield text if len(text) <= ITEM_MAX_CHARS else ", ".join(details)


def _last(count: int, *roles: str) -> _Chooser:
    return lambda said: [line.text for line in said if line.role in roles][-count:]


# The first row whose words stand in a section's heading fills it.
_CHOOSERS: tuple[tuple[str, _Chooser], ...] = (
    (
        r"rule|preference|constraint|instruction",
        _matching(r"\b(always|never|must|do not|don't|prefer|only)\b", "user"),
    ),
    (r"next", _last(1, "user")),
    (
        r"not done|open|remain|pending|to ?do|unresolved",
        _matching(r"\b(todo|not yet|remain\w*|still|pending|fails?|failing|later)\b"),
    ),
    (r"progress|current|now", _last(2, "assistant", "tool")),
    (
        r"done|complete|finished|state",
        _matching(
            r"\b(done|fixed|added|created|wrote|written|passed|updated|changed|removed|booked)\b",
            "assistant",
        ),
    ),
    (
        r"decision|reason|why|approach",
        _matching(r"\b(decided?|decision|because|instead|chose|agreed|settled|use)\b"),
    ),
    (r"file|command|identifier|number|error|name|fact|exact|detail", _exact),
    (r"request|user|goal|intent|task|ask|evol", _requests),
)


def _said(messages: Iterable[Message]) -> Iterator[_Line]:
    """The lines of the conversation. Head and frame marks are not part of it."""
    for message in messages:
        role = role_of(message)
        if role in ("system", "developer"):
            continue
        for text in text_of(message).splitlines():
            if _LETTERS.search(text) and not is_frame_line(text):
                yield _Line(role, text.strip())
        for call in tool_calls_of(message):
            yield _Line("assistant", f"{call.name} {call.arguments}".strip())


def _transcript_and_rest(text: str) -> tuple[list[_Line], str]:
    """A transcript inside a message, as lines with their speakers, and what stands around it."""
    lines = text.splitlines()
    fences = [index for index, line in enumerate(lines) if _FENCE.match(line)]
    if not fences:
        return [], text
    said: list[_Line] = []
    role = ""
    for line in lines[fences[0] : fences[-1]]:
        fence = _FENCE.match(line)
        if fence is not None:
            role = next((known for known in _SPEAKERS if known in fence[1].lower()), "user")
        elif _LETTERS.search(line) and not is_frame_line(line):
            said.append(_Line(role, line.strip()))
    return said, "\n".join((*lines[: fences[0]], *lines[fences[-1] + 1 :]))


_SPEAKERS = ("assistant", "tool", "function", "system", "developer", "user")


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}


def _short(text: str) -> str:
    return text if len(text) <= ITEM_MAX_CHARS else text[: ITEM_MAX_CHARS - 4] + " ..."
