"""What of a request is counted: its texts, by part, and what stands around them.

Nothing here knows a tokeniser. No message counts more tokens than the bytes it takes in a request
body (images, audio and files apart), provided that a text counts at most its bytes: that is what
makes the byte bound a bound, and why an empty call or message costs less than a real one.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.core.images import ImagePart, image_parts, price_part
from proxy.core.messages import (
    REASONING_FIELDS,
    Message,
    part_text,
    parts_of,
    role_of,
)

MESSAGE_TOKENS = 3
"""The marks around a message (OpenAI's cookbook, "How to count tokens with tiktoken")."""

ROLE_TOKENS = 1
"""The role, a single token in every vocabulary seen; with the marks, 4 for a message."""

NAME_TOKENS = 1
"""The mark before a `name` (same source)."""

CALL_TOKENS = 8
"""The marks around a call: recipient, channel and end marks in OpenAI's format, tags and JSON keys
in the chat templates of open models (7 to 11). Chosen."""

PRIMING_TOKENS = 3
"""The opening of the reply (same source)."""

PIECE_MAX_CHARS = 8192
"""How much text the tokeniser gets at once: about 1 ms of work in the worst case measured, and far
from where a run of one character makes tiktoken raise (between 100,000 and 1,000,000)."""

_SEARCHED_CHARS = 512

# Places where both vocabularies always end one match and start another, so that the pieces count
# what the whole counts. An apostrophe is left out: `don't` may be one match.
_SEAM = re.compile(
    r"(?<=[^\W_])(?=[\s!-&(-/:-@\[-`{-~，。、！？：；])"
    r"|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])"
    r"|(?<=\S)(?=[^\S\r\n])"
    r"|(?<=[\r\n])(?=[^\s/])"
)

# Values that are never shown to a model as text: content in base64, marks, references.
_UNREAD_KEYS = frozenset(
    {"type", "id", "data", "url", "image_url", "file_data", "file_id", "signature", "cache_control"}
    | {"encrypted_content", "tool_use_id", "media_type", "mimeType", "detail"}
)


@dataclass(frozen=True, slots=True)
class CountedMessage:
    """The texts that a message counts, by part. `fixed_tokens` holds everything that is not text
    and has one price: marks, audio, files. Images are left to whoever knows the model."""

    content: tuple[str, ...]
    name: str
    calls: tuple[str, ...]
    reasoning: tuple[str, ...]
    images: tuple[ImagePart, ...]
    mark_tokens: int
    attachment_tokens: int

    def texts(self) -> Iterator[str]:
        """Every text, in no meaningful order."""
        yield from self.content
        yield self.name
        yield from self.calls
        yield from self.reasoning


_EMPTY = CountedMessage((), "", (), (), (), 0, 0)


def counted(message: Message) -> CountedMessage:
    """What is counted of a message; malformed fields count as far as they hold text."""
    stated = message.get("content")
    of = _of_parts(message) if isinstance(stated, list) else _EMPTY
    content = of.content
    if isinstance(stated, str):
        content = (stated,) if stated else ()
    elif isinstance(stated, Mapping):
        content = tuple(_strings_in(stated))
    refusal = message.get("refusal")
    if isinstance(refusal, str):
        content = (*content, refusal)
    reasoning = of.reasoning
    if not message.keys().isdisjoint(REASONING_FIELDS):
        reasoning = (*_reasoning(message), *reasoning)

    name = message.get("name")
    name = name if isinstance(name, str) else ""
    role = role_of(message)
    calls, call_tokens = _calls(message) if role == "assistant" else ((), 0)
    mark_tokens = MESSAGE_TOKENS + call_tokens
    mark_tokens += ROLE_TOKENS if role else 0
    mark_tokens += NAME_TOKENS if name else 0
    return CountedMessage(
        content, name, calls, reasoning, of.images, mark_tokens, of.attachment_tokens
    )


def _of_parts(message: Message) -> CountedMessage:
    """What is counted of the parts of a content that is a list of them."""
    content: list[str] = []
    reasoning: list[str] = []
    images = image_parts(message)
    image_paths = {image.path for image in images}
    attachment_tokens = 0
    for index, part in enumerate(parts_of(message)):
        text = part_text(part)
        if text is not None:
            content.append(text)
        elif isinstance(part, Mapping) and (index,) not in image_paths:
            price = price_part(part)
            attachment_tokens += price or 0
            thought = part.get("thinking")
            if isinstance(thought, str):
                reasoning.append(thought)
            elif price is None:
                content.extend(_strings_in(part))
    return CountedMessage(tuple(content), "", (), tuple(reasoning), images, 0, attachment_tokens)


def _calls(message: Message) -> tuple[tuple[str, ...], int]:
    """Names and arguments of the calls of an assistant's message, and what their marks cost."""
    listed = message.get("tool_calls")
    functions = [
        call.get("function", call.get("custom"))
        for call in (listed if isinstance(listed, list) else ())
        if isinstance(call, Mapping)
    ]
    functions.append(message.get("function_call"))
    texts: list[str] = []
    mark_tokens = 0
    for function in functions:
        if not isinstance(function, Mapping):
            continue
        name, arguments = function.get("name"), function.get("arguments", function.get("input"))
        if isinstance(arguments, Mapping | list):
            # Ollama and others take an object in place of its JSON.
            arguments = json_text(arguments)
        found = [text for text in (name, arguments) if isinstance(text, str) and text]
        if found:
            texts += found
            mark_tokens += CALL_TOKENS
    return tuple(texts), mark_tokens


def _reasoning(message: Message) -> tuple[str, ...]:
    """The reasoning sent along; of several fields, which hold the same text, the longest."""
    found = [_reasoning_field(message.get(field)) for field in REASONING_FIELDS]
    return max(found, key=lambda texts: sum(map(len, texts)))


def _reasoning_field(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(_strings_in(value))


def _strings_in(value: Any) -> Iterator[str]:
    """Every text inside a value of unknown shape. No recursion: the client chose the depth."""
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, str):
            if current and not current.startswith("data:"):
                yield current
        elif isinstance(current, Mapping):
            waiting.extend(item for key, item in current.items() if key not in _UNREAD_KEYS)
        elif isinstance(current, list):
            waiting.extend(current)


def json_text(value: Any, *, spaced: bool = False) -> str:
    """A value as JSON, compact or with a space after commas and colons as templates write it; its
    texts when it is too deep."""
    try:
        separators = (", ", ": ") if spaced else (",", ":")
        return json.dumps(value, ensure_ascii=False, separators=separators)
    except (RecursionError, TypeError, ValueError):
        return " ".join(_strings_in(value))


def pieces_of(text: str, max_chars: int = PIECE_MAX_CHARS) -> Iterator[str]:
    """The text in pieces of at most `max_chars`, cut where that changes no count if there is such
    a place near the limit, else (a run of one kind of character) at the limit."""
    start = 0
    while len(text) - start > max_chars:
        limit = start + max_chars
        cut = limit
        for seam in _SEAM.finditer(text, limit - min(_SEARCHED_CHARS, max_chars // 2), limit + 1):
            cut = seam.start()
        yield text[start:cut]
        start = cut
    if start < len(text):
        yield text[start:]


def estimated_tokens(text: str) -> int:
    """Half the bytes: what a text counts when the tokeniser gave up on it."""
    return -(-len(text.encode("utf-8", "replace")) // 2)
