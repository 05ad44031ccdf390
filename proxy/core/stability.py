"""Whether a client's history holds still. A client that drops or rewrites its oldest messages makes
every summary miss the next request; after two such misses in a row no model is asked again."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

MISSES_UNSTABLE = 2
MAX_TAIL = 64


@dataclass(frozen=True, slots=True)
class LastSummary:
    """The newest summary of a scope and head, and how many before it were missed in a row.

    `tail` are the meanings of the messages that it left word for word, the newest first.
    """

    end_fingerprint: bytes
    tail: tuple[bytes, ...]
    misses: int = 0
    judged: bool = False


def after_summary(
    last: LastSummary | None, end_fingerprint: bytes, tail: Sequence[bytes]
) -> LastSummary:
    """What to remember once a summary landed; a miss of the one before it stays counted."""
    misses = last.misses if last is not None and last.judged else 0
    return LastSummary(end_fingerprint, tuple(reversed(tail))[:MAX_TAIL], misses)


def judged_by(
    last: LastSummary, chain: Collection[bytes], meanings: Collection[bytes]
) -> LastSummary:
    """The memory after the next request: a miss when at least half of the tail came back but not
    the summary's end; forgiven when the end came back; unchanged for another conversation."""
    if last.judged:
        return last
    if last.end_fingerprint in chain:
        return replace(last, misses=0, judged=True)
    held = sum(1 for meaning in last.tail if meaning in meanings)
    if last.tail and held * 2 >= len(last.tail):
        return replace(last, misses=last.misses + 1, judged=True)
    return last


def unstable(last: LastSummary | None) -> bool:
    """Whether two summaries in a row were of no use."""
    return last is not None and last.misses >= MISSES_UNSTABLE
