"""Long texts are read in steps: one pattern or one `split` over megabytes would hold the
interpreter, and with it every stream, for as long as it takes."""

from collections.abc import Iterator

STEP_CHARS = 64 * 1024

_SPACES = (" ", "\n", "\t", "\r")


def steps_of(text: str, step_chars: int = STEP_CHARS) -> Iterator[str]:
    """The text in pieces that begin with white space, so that no word is cut; all of it, in order.

    A piece is longer than `step_chars` only where a word is.
    """
    start = 0
    while len(text) - start > step_chars:
        cut = _last_space(text, start + 1, start + step_chars)
        if cut < 0:
            cut = _next_space(text, start + step_chars)
        yield text[start:cut]
        start = cut
    if start < len(text):
        yield text[start:]


def _last_space(text: str, start: int, end: int) -> int:
    return max(text.rfind(space, start, end) for space in _SPACES)


def _next_space(text: str, start: int) -> int:
    """Where the word ends that runs over `start`; looked for step by step, words are short."""
    for at in range(start, len(text), STEP_CHARS):
        found = [text.find(space, at, at + STEP_CHARS) for space in _SPACES]
        if any(place >= 0 for place in found):
            return min(place for place in found if place >= 0)
    return len(text)
