"""The numbers that a refusal states, and what each of them is.

Whole expressions are read first (`A + B > C`); every number left over gets a role from the words
beside it. Numbers of more than 12 digits are ids. Where the words do not say, there is no number.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# A refusal with more numbers than this is a listing or an echo, not a statement.
NUMBERS_MAX = 64
_LEFT_CHARS = 90
_RIGHT_CHARS = 60

_ADDRESS = re.compile(r"https?://[^\s\"'<>]{1,2000}")
_DATA_URL = re.compile(r"data:[\w.+-]{1,40}/[\w.+-]{1,60};base64,[\w+/=-]*")
_PYDANTIC_ECHO = re.compile(
    r"input_value\s?=.{0,4000}?(?=,\s?input_type|\Z)|\(input:.{0,4000}", re.DOTALL
)
_QUOTES = re.compile('[`"*\\\\“”„«»]')
_APOSTROPHES = re.compile("[’‘]")
_QUOTED_WORD = re.compile(r"(?<!\w)'([\w .\[\]/:-]{1,120})'(?!\w)")
_LONG_DIGITS = re.compile(r"\d{13,}")
_GROUPED = re.compile(
    r"(?<![A-Za-z0-9_.,\[])(?<!\[ )(\d{1,3})(?:,\d{3}){1,4}(?![\d,]\d|\d)"
    r"|(?<![A-Za-z0-9_.,\[])\d{1,3}(?:[.\u2009\u202f\u00a0' ]\d{3}){1,4}(?![\d.]\d|\d)"
)
_SCALED = re.compile(
    r"(?<![A-Za-z0-9_.,-])(\d{1,6})(?:\.(\d{1,3}))? ?([km万])(?![A-Za-z0-9_])", re.IGNORECASE
)
_NUMBER = re.compile(r"(?<![A-Za-z0-9_.-])~?(\d{1,12})(?!\d|\.\d)")
_FILLER = (
    r"(?:[\s(:=~<>≤'\[{-]|\b(?:is|are|was|of|only|to|about|around|approximately|at|just|currently"
    r"|be|the|a|an|than|tokens?|exactly|in|your|value|de|des|von|es|est|ist)\b|为|是|了)*$"
)
# A number with one of these is a size, not a count of images.
_SIZE_UNIT = re.compile(r"\d| ?(?:[kmg]i?b\b|bytes|px|pixels?|x ?\d|%|\.\d)", re.IGNORECASE)
_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x212A: "K", 0x3000: " "}
_UNITS = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_SCALES = {"k": 1000, "m": 1_000_000, "万": 10_000}
_OUTPUT_MENTION = re.compile(
    r"completion|output|max_(?:new_)?tokens|max tokens|prediction|generat|response", re.IGNORECASE
)


@dataclass(slots=True)
class Stated:
    """What one refusal states, in tokens, images, bytes and pixels; None where it does not say."""

    window_tokens: int | None = None
    window_is_input_only: bool = False
    prompt_tokens: int | None = None
    prompt_is_lower_bound: bool = False
    requested_output_tokens: int | None = None
    image_limit: int | None = None
    image_count: int | None = None
    limit_bytes: int | None = None
    actual_bytes: int | None = None
    limit_px: int | None = None


def readable(text: str) -> str:
    """One line of plain words: quotes, addresses, data URLs gone, grouped digits joined."""
    text = unicodedata.normalize("NFC", text)
    text = text.translate(_WIDE)
    text = _DATA_URL.sub(" ", _PYDANTIC_ECHO.sub(" ", _ADDRESS.sub(" ", text)))
    text = _APOSTROPHES.sub("'", _QUOTES.sub("", text))
    text = _QUOTED_WORD.sub(r"\1", text)
    text = _LONG_DIGITS.sub("#", text)
    text = _GROUPED.sub(lambda found: re.sub(r"\D", "", found.group()), text)
    text = _SCALED.sub(_unscaled, text)
    return " ".join(text.split())


def _unscaled(found: re.Match[str]) -> str:
    whole, part, letter = found.groups()
    scale = _SCALES[letter.lower()]
    fraction = int((part or "0").ljust(3, "0")) * scale // 1000
    return str(int(whole) * scale + fraction)


@dataclass(frozen=True, slots=True)
class _Cue:
    role: str
    left: re.Pattern[str] | None
    right: re.Pattern[str] | None
    not_left: re.Pattern[str] | None
    not_right: re.Pattern[str] | None

    def fits(self, left: str, right: str) -> bool:
        if self.left is not None and not self.left.search(left):
            return False
        if self.right is not None and not self.right.search(right):
            return False
        if self.not_left is not None and self.not_left.search(left):
            return False
        return self.not_right is None or not self.not_right.search(right)


class NumberReader:
    """The number rows of the table, compiled."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        def compiled(pattern: str | None, after: str = "") -> re.Pattern[str] | None:
            return None if pattern is None else re.compile(pattern + after, re.IGNORECASE)

        flags = re.IGNORECASE
        self._expressions = [re.compile(row["pattern"], flags) for row in table["expression"]]
        self._cues = [
            _Cue(
                row["role"],
                compiled(row.get("left"), _FILLER) or compiled(row.get("left_tight"), "$"),
                compiled(row.get("right")),
                compiled(row.get("not_left")),
                compiled(row.get("not_right")),
            )
            for row in table["cue"]
        ]
        self._bytes = [re.compile(row["pattern"], flags) for row in table["bytes"]]
        self._pixels = [re.compile(row["pattern"], flags) for row in table["pixels"]]
        self._images = [re.compile(row["pattern"], flags) for row in table["images"]]
        self._input_only = [re.compile(p, flags) for p in table["input_only"]["patterns"]]
        self._not_input_only = [re.compile(p, flags) for p in table["input_only"]["except"]]
        self._figures: dict[str, list[str]] = table["figures"]

    def tokens(self, text: str, figures: Mapping[str, int]) -> Stated:
        """The window, prompt and output that a text (made `readable`) states."""
        roles: dict[str, list[int]] = {}
        text = self._expressions_taken(text, roles)
        for count, found in enumerate(_NUMBER.finditer(text)):
            if count == NUMBERS_MAX:
                break
            left = text[max(0, found.start() - _LEFT_CHARS) : found.start()]
            right = text[found.end() : found.end() + _RIGHT_CHARS]
            role = next((cue.role for cue in self._cues if cue.fits(left, right)), "ignore")
            roles.setdefault(role, []).append(int(found.group(1)))
        stated = Stated()
        for name in self._figures["prompt"]:
            roles.setdefault("prompt", []).extend(_positive(figures.get(name)))
        for name in self._figures["window"]:
            roles.setdefault("window", []).extend(_positive(figures.get(name)))
        stated.window_tokens = next((n for n in roles.get("window", ()) if n > 0), None)
        self._prompt(text, roles, stated)
        stated.requested_output_tokens = next(iter(roles.get("output", ())), None)
        stated.window_is_input_only = (
            stated.window_tokens is not None
            and any(pattern.search(text) for pattern in self._input_only)
            and not any(pattern.search(text) for pattern in self._not_input_only)
        )
        return stated

    def _expressions_taken(self, text: str, roles: dict[str, list[int]]) -> str:
        """The text with the numbers of whole expressions noted and blanked out."""
        for pattern in self._expressions:
            for found in list(pattern.finditer(text))[:8]:
                for role, digits in found.groupdict().items():
                    if digits is not None:
                        roles.setdefault(role, []).append(int(digits))
            text = pattern.sub(lambda found: re.sub(r"\d", "·", found.group()), text)
        return text

    def _prompt(self, text: str, roles: Mapping[str, list[int]], stated: Stated) -> None:
        if roles.get("part"):
            stated.prompt_tokens = sum(roles["part"])
            if len(roles["part"]) == 1 and roles.get("prompt"):
                stated.prompt_tokens = max(roles["part"][0], roles["prompt"][0])
        elif roles.get("prompt"):
            stated.prompt_tokens = roles["prompt"][0]
        elif roles.get("prompt_least"):
            stated.prompt_tokens = roles["prompt_least"][0]
            stated.prompt_is_lower_bound = True
        elif roles.get("total") and not _OUTPUT_MENTION.search(text):
            stated.prompt_tokens = roles["total"][0]

    def output(self, text: str) -> int | None:
        """The output size that a refusal of it quotes back; the cap itself is never returned."""
        roles: dict[str, list[int]] = {}
        text = self._expressions_taken(text, roles)
        if roles.get("prompt"):
            return roles["prompt"][0]
        for found in _NUMBER.finditer(text):
            left = text[max(0, found.start() - _LEFT_CHARS) : found.start()]
            right = text[found.end() : found.end() + _RIGHT_CHARS]
            role = next((cue.role for cue in self._cues if cue.fits(left, right)), "ignore")
            roles.setdefault(role, []).append(int(found.group(1)))
        stated = [n for role in ("output", "prompt", "total") for n in roles.get(role, ())]
        return next(iter(stated), None)

    def images(self, text: str, stated: Stated) -> None:
        """Fill in image counts."""
        for pattern in self._images:
            found = pattern.search(text)
            if found is None or _SIZE_UNIT.match(text, found.end("limit")):
                continue
            stated.image_limit = int(found["limit"])
            if found.groupdict().get("actual") is not None:
                stated.image_count = int(found["actual"])
            return

    def pixels(self, text: str, stated: Stated) -> None:
        """Fill in the longest side that an image may have."""
        found = next((hit for pattern in self._pixels if (hit := pattern.search(text))), None)
        stated.limit_px = None if found is None else int(found["limit"])

    def sizes(self, text: str, stated: Stated, figures: Mapping[str, int]) -> None:
        """Fill in byte sizes, from the text or else from what the body lists."""
        for pattern in self._bytes:
            found = pattern.search(text)
            if found is not None:
                groups = found.groupdict()
                stated.limit_bytes = _bytes(groups["limit"], groups.get("unit"))
                if groups.get("actual") is not None:
                    stated.actual_bytes = _bytes(groups["actual"], None)
                return
        listed = {
            role: next(
                (n for name in self._figures[role] for n in _positive(figures.get(name))), None
            )
            for role in ("limit_bytes", "actual_bytes")
        }
        stated.limit_bytes, stated.actual_bytes = listed["limit_bytes"], listed["actual_bytes"]


def _positive(value: int | None) -> Iterable[int]:
    if isinstance(value, int) and 0 < value < 10**12:
        yield value


def _bytes(digits: str, unit: str | None) -> int:
    whole, _, part = digits.partition(".")
    scale = _UNITS[unit[0].lower()] if unit else 1
    return int(whole) * scale + int((part or "0").ljust(3, "0")) * scale // 1000
