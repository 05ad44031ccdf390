"""Remembers, in this process and bounded, whether summaries were found again by the requests that
followed. A client that slides or rewrites its history never finds them: no model is asked then."""

from collections.abc import MutableMapping
from hashlib import blake2b

from cachetools import LRUCache

from proxy.core.replacements import Scope
from proxy.core.stability import LastSummary, after_summary, judged_by, unstable
from proxy.turn import Turn

HEADS_REMEMBERED = 4096


class HistoryWatch:
    """The newest summary of each scope and head, and how many before it were missed in a row."""

    def __init__(self) -> None:
        """Empty: after a restart two misses are needed again."""
        self._last: MutableMapping[tuple[Scope, bytes], LastSummary] = LRUCache(HEADS_REMEMBERED)

    def unstable(self, turn: Turn) -> bool:
        """Whether this request follows two summaries in a row that it and its like did not use."""
        key = _key(turn)
        last = self._last.get(key)
        if last is None:
            return False
        last = self._last[key] = judged_by(last, frozenset(turn.chain), frozenset(turn.meanings))
        return unstable(last)

    def landed(self, turn: Turn, end: int) -> None:
        """A summary of `history[:end]` was stored for this turn."""
        key = _key(turn)
        self._last[key] = after_summary(
            self._last.get(key), turn.chain[end - 1], turn.meanings[end:]
        )


def _key(turn: Turn) -> tuple[Scope, bytes]:
    head = turn.request.raw_messages[: turn.request.head_length]
    return turn.scope, blake2b(b"\0".join(head), digest_size=16).digest()
