"""What a provider's error body says, whatever envelope it comes in.

Texts and codes are collected by the names of their fields; fields that repeat the caller's request
are never entered. Work is bounded: nested JSON to depth 4, 4000 nodes, 16384 characters of text.
Nothing here raises on any input.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

NESTED_JSON_DEPTH = 4
NODES_MAX = 4000
LEVELS_MAX = 24
TEXT_CHARS_MAX = 16384
# A long text keeps this much of its end: some servers append the reason to an echoed request.
TAIL_CHARS = 4096
# No provider nests an error document larger than this; an echoed request may well be.
NESTED_JSON_CHARS_MAX = 262144
# Longer digit runs are ids; Python refuses to convert them above 4300 digits.
INTEGER_DIGITS_MAX = 18

_TEXT_KEYS = frozenset(
    [
        "message",
        "msg",
        "error",
        "errors",
        "error_msg",
        "error_message",
        "errormessage",
        "status_msg",
        "detail",
        "details",
        "raw",
        "reason",
        "title",
        "description",
        "error_description",
        "faultstring",
        "exception",
        "cause",
    ]
)
_CODE_KEYS = frozenset(
    [
        "code",
        "type",
        "status",
        "error_type",
        "error_code",
        "errorcode",
        "status_code",
        "__type",
        "reason",
        "errortype",
        "http_code",
    ]
)
# What stands under these was written by the caller, or is the answer itself.
_ECHO_KEYS = frozenset(
    [
        "request",
        "input",
        "inputs",
        "body",
        "flagged_input",
        "reasons",
        "choices",
        "messages",
        "prompt",
        "content",
        "output",
        "parameters",
        "ctx",
        "loc",
        "url",
        "user",
        "tools",
        "input_value",
        "instructions",
        "candidates",
        "headers",
    ]
)
_MESSAGE_FIELD = re.compile(
    r'"(?:message|msg|error|detail|error_msg|error_message|raw)"\s*:\s*"((?:[^"\\]|\\.){0,16384})',
    re.DOTALL | re.IGNORECASE,
)
_MARKUP = re.compile(r"<(?:!--|/?[a-zA-Z!])[^<>]{0,2000}>")
_DATA_LINE = re.compile(r"^data:[ ]?(.*)$", re.MULTILINE)
# What may introduce an upstream's own document; after anything else it is somebody's quotation.
_WRAPPER = re.compile(
    r"(?:exception|errors?|respon\w{1,6}|returned|failed|body|message|details?|code|[45]\d\d)"
    r"[\s\w.:\-=(]{0,40}[\s:\-=(>b'\"]*\Z",
    re.IGNORECASE,
)
_ENVELOPE_KEYS = frozenset(
    ["error", "errors", "message", "detail", "msg", "error_msg", "status_msg", "code"]
)
_JSON_START = re.compile(r"[\[{\"]")


@dataclass(slots=True)
class Envelope:
    """A flattened error body: what it says, which codes it names, which figures it lists."""

    texts: list[str] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)
    params: list[str] = field(default_factory=list)
    document: Any = None

    def http_status(self) -> int | None:
        """The HTTP status that stands inside the body, as a number or as its digits."""
        for code in self.codes:
            if len(code) == 3 and code.isdecimal() and "400" <= code <= "599":
                return int(code)
        return None


def unwrap(body: bytes) -> Envelope:
    """Flatten an error body; bytes that are no JSON give their text, without markup."""
    envelope = Envelope()
    text = body.decode("utf-8", "replace").strip("\ufeff \t\r\n\0")
    parsed, document = _parse(text)
    if not parsed:
        events = [line for line in _DATA_LINE.findall(text[:TEXT_CHARS_MAX]) if line.strip()]
        for event in events[:4]:
            parsed, document = _parse(event.strip())
            if parsed:
                break
    walker = _Walker(envelope)
    if parsed:
        envelope.document = document
        walker.walk(document)
    else:
        for piece in _loose_texts(text):
            walker.add_text(piece, NESTED_JSON_DEPTH - 1)
    return envelope


def _loose_texts(text: str) -> Iterator[str]:
    """The readable part of a body that is no JSON: cut JSON, HTML, or plain text."""
    if text[:1] in ("{", "["):
        found = [match.group(1) for match in _MESSAGE_FIELD.finditer(text[: 4 * TEXT_CHARS_MAX])]
        if found:
            yield from (piece.replace('\\"', '"').replace("\\n", "\n") for piece in found[:16])
            return
    if text[:1] == "<":
        yield " ".join(_MARKUP.sub(" ", text[: 4 * TEXT_CHARS_MAX]).split())
        return
    yield text


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= INTEGER_DIGITS_MAX else digits


_DECODER = json.JSONDecoder(parse_int=_integer, strict=False)


def _parse(text: str) -> tuple[bool, Any]:
    if text[:1] not in ("{", "[", '"'):
        return False, None
    try:
        return True, _DECODER.decode(text)
    except (ValueError, RecursionError):
        return False, None


def _embedded(text: str) -> tuple[str, Any, str] | None:
    """The error document that a text is or wraps (`...Exception - b'{...}'`), and its surroundings.

    A document of another kind is the request, repeated: None stands for it. An error document that
    is introduced by anything but an error is a quotation, and stays in the text.
    """
    for attempt, match in enumerate(_JSON_START.finditer(text)):
        start = match.start()
        if attempt == 3:
            return None
        if start and match.group() == '"':
            continue
        for candidate in (text[start:], text[start:].replace("\\'", "'")):
            try:
                document, end = _DECODER.raw_decode(candidate)
            except (ValueError, RecursionError):
                continue
            if isinstance(document, list) and not any(isinstance(x, dict) for x in document[:4]):
                break
            if not _is_envelope(document):
                return text[:start], None, candidate[end:]
            if start and not _WRAPPER.search(text[max(0, start - 120) : start]):
                return None
            return text[:start], document, candidate[end:]
    return None


def _is_envelope(document: Any) -> bool:
    if isinstance(document, list):
        return any(_is_envelope(item) for item in document[:4] if not isinstance(item, list))
    if isinstance(document, Mapping):
        return any(str(key).lower() in _ENVELOPE_KEYS for key in list(document)[:64])
    return isinstance(document, str)


class _Walker:
    """Collects into an envelope until its bounds are reached."""

    def __init__(self, envelope: Envelope) -> None:
        self.envelope = envelope
        self.nodes_left = NODES_MAX
        self.chars_left = TEXT_CHARS_MAX

    def walk(self, document: Any, nested: int = 0) -> None:
        """Visit a document in reading order; `nested` counts JSON strings opened so far."""
        stack: list[tuple[str, Any, int]] = [("message", document, 0)]
        while stack and self.nodes_left > 0:
            self.nodes_left -= 1
            key, value, level = stack.pop()
            if isinstance(value, Mapping):
                if level < LEVELS_MAX:
                    stack.extend(reversed([*self._entries(value, level + 1)]))
            elif isinstance(value, list):
                if level < LEVELS_MAX:
                    stack.extend((key, item, level + 1) for item in reversed(value[:256]))
            else:
                self._scalar(key, value, nested)

    def _entries(self, mapping: Mapping[Any, Any], level: int) -> Iterator[tuple[str, Any, int]]:
        for count, (name, value) in enumerate(mapping.items()):
            if count == 256:
                return
            key = str(name).lower()
            if key in _ECHO_KEYS:
                continue
            if key.endswith("exception"):
                self.envelope.codes.append(key)
            yield key, value, level

    def _scalar(self, key: str, value: Any, nested: int) -> None:
        if isinstance(value, bool) or value is None:
            return
        if isinstance(value, int):
            if key in _CODE_KEYS:
                self.envelope.codes.append(str(value))
            self.envelope.figures.setdefault(key, value)
        elif isinstance(value, str):
            if key == "param":
                self.envelope.params.append(value[:200])
            if key in _CODE_KEYS and len(value) <= 200:
                self.envelope.codes.append(value.strip().lower())
            if key in _TEXT_KEYS or (key in _CODE_KEYS and " " in value):
                self.add_text(value, nested)

    def add_text(self, text: str, nested: int) -> None:
        """Take a text, opening the JSON document that it is or that stands in it."""
        text = text.strip()
        found = None
        if nested < NESTED_JSON_DEPTH and len(text) <= NESTED_JSON_CHARS_MAX:
            found = _embedded(text)
        if found is None:
            self._keep(text)
            return
        prefix, document, suffix = found
        self._keep(prefix)
        self.walk(document, nested + 1)
        self._keep(suffix)

    def _keep(self, text: str) -> None:
        text = text.strip()
        if len(text) > self.chars_left:
            tail = min(TAIL_CHARS, self.chars_left // 4)
            head = self.chars_left - tail
            text = text[:head] + "\n" + text[len(text) - tail :] if tail else text[:head]
        if not any(char.isalnum() for char in text) or text in self.envelope.texts:
            return
        self.envelope.texts.append(text)
        self.chars_left = max(0, self.chars_left - len(text))
