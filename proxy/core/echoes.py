"""Taking out of an error text what the client itself had sent.

Only runs of at least 31 characters, or whole short texts, count as echoed. A message that opens
with such a run, numbers and error names apart, is the provider's own: the conversation merely
quotes one.
"""

import re
from collections.abc import Iterable

from proxy.core.text_steps import steps_of

# A common run this much shorter than twice itself is always met by one aligned block.
_BLOCK_CHARS = 16
_SHORT_TEXT_CHARS_MIN = 8
_SHORT_TEXT_CHARS_MAX = 64
# Bounds that make the scan linear whatever the request holds.
REQUEST_CHARS_MAX = 8_388_608
REQUEST_TEXTS_MAX = 20_000
_COMPARES_MAX = 1_000_000
# Texts kept to tell a message about the same matter from one that quotes; more would cost time.
_SOURCES_MAX = 4
_HOLE = "\0"
_QUOTES = ("'", '"', "`", "[", "{", "(")
_BETWEEN_NUMBERS = re.compile(r"[\d\0]+")
_WORD = re.compile(r"[^\W\d_]{3,}")
_PREFIX = re.compile(
    r"(?:(?:[\w.]{0,80}(?:error|exception)|the model returned the following errors"
    r"|provider returned error|error code: \d{3})\s{0,3}[:\-]\s{0,3}){1,6}"
)


def flat(text: str) -> str:
    """Lower case, every run of white space one space: how texts are compared."""
    return " ".join(filter(None, (" ".join(step.split()).lower() for step in steps_of(text))))


def without_echoes(texts: list[str], request_texts: Iterable[str]) -> list[str]:
    """The texts with every run that also stands in the request blanked out."""
    pages = [_Page(flat(text)) for text in texts]
    blocks: dict[str, list[tuple[_Page, int]]] = {}
    for page in pages:
        for at in range(len(page.text) - _BLOCK_CHARS + 1):
            places = blocks.setdefault(page.text[at : at + _BLOCK_CHARS], [])
            if len(places) < 4:
                places.append((page, at))
    sources: list[str] = []
    compares_left = _COMPARES_MAX
    chars_left = REQUEST_CHARS_MAX
    for count, sent in enumerate(request_texts):
        if count == REQUEST_TEXTS_MAX or chars_left <= 0:
            break
        text = flat(sent[:chars_left])
        chars_left -= len(sent)
        if _SHORT_TEXT_CHARS_MIN <= len(text) <= _SHORT_TEXT_CHARS_MAX:
            for page in pages:
                if page.blank_whole(text) and len(sources) < _SOURCES_MAX:
                    sources.append(text)
        for at in range(0, len(text) - _BLOCK_CHARS + 1, _BLOCK_CHARS):
            for page, place in blocks.get(text[at : at + _BLOCK_CHARS], ()):
                if compares_left > 0 and not page.covered(place):
                    compares_left -= page.blank_run(place, text, at)
                    if len(sources) < _SOURCES_MAX and text not in sources:
                        sources.append(text)
    return [
        page.rest(sources) if any(page.mask) else text
        for page, text in zip(pages, texts, strict=True)
    ]


class _Page:
    """One error text and a mask of what was echoed."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.mask = bytearray(len(text))

    def covered(self, at: int) -> bool:
        return bool(self.mask[at] and self.mask[at + _BLOCK_CHARS - 1])

    def blank_whole(self, needle: str) -> bool:
        at = self.text.find(needle)
        if at >= 0:
            self.mask[at : at + len(needle)] = b"\1" * len(needle)
        return at >= 0

    def blank_run(self, place: int, other: str, at: int) -> int:
        """Blank the common run around a block, if long enough; how many characters it compared."""
        start, end = place, place + _BLOCK_CHARS
        back = at - place
        while start > 0 and start + back > 0 and self.text[start - 1] == other[start + back - 1]:
            start -= 1
        while (
            end < len(self.text) and end + back < len(other) and self.text[end] == other[end + back]
        ):
            end += 1
        if end - start >= 2 * _BLOCK_CHARS - 1:
            self.mask[start:end] = b"\1" * (end - start)
        return end - start

    def rest(self, sources: list[str]) -> str:
        """What is left; the whole text when nothing but echo and numbers opens it."""
        left = "".join(
            _HOLE if hidden else char for char, hidden in zip(self.text, self.mask, strict=True)
        )
        prefix = _PREFIX.match(self.text)
        before, _, after = left[prefix.end() if prefix else 0 :].partition(_HOLE)
        if not _says_more(before, sources) and (
            not before.strip().startswith(_QUOTES) or not _says_more(after, sources)
        ):
            return self.text
        return " ".join(left.replace(_HOLE, " ").split())


def _says_more(text: str, sources: list[str]) -> bool:
    """Whether a text has words that the quoted texts lack, numbers apart."""
    pieces = (piece.strip() for piece in _BETWEEN_NUMBERS.split(text))
    return any(
        _WORD.search(piece) and not any(piece in source for source in sources) for piece in pieces
    )
