"""How much of what is forwarded begins like the conversation's previous request: what a provider's
prompt cache can keep. Measured on counted requests only; small ones are not worth the hashing."""

from collections.abc import MutableMapping

from cachetools import LRUCache

from proxy.metrics import Metrics
from proxy.turn import Turn

CONVERSATIONS_REMEMBERED = 2048


class PrefixShares:
    """Compares each counted request with the one before it, message by message."""

    def __init__(self, metrics: Metrics) -> None:
        """Remembers one request for each conversation, as hashes and sizes."""
        self._metrics = metrics
        self._before: MutableMapping[tuple[str, str], tuple[tuple[int, int], ...]] = LRUCache(
            CONVERSATIONS_REMEMBERED
        )

    def observe(self, turn: Turn) -> float | None:
        """The share, by bytes, of the previous request's messages that this one starts with."""
        if turn.view is None:
            return None
        key = (turn.scope.tenant, turn.conversation)
        head = turn.request.raw_messages[: turn.request.head_length]
        now = tuple((hash(raw), len(raw)) for raw in (*head, *turn.raw_items))
        before = self._before.get(key)
        self._before[key] = now
        if not before:
            return None
        kept = 0
        for old, new in zip(before, now, strict=False):
            if old != new:
                break
            kept += old[1]
        share = kept / max(sum(size for _, size in before), 1)
        self._metrics.observe("tidegate_prefix_share", share)
        return share
