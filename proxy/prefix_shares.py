"""How much of what is forwarded begins like the conversation's previous request: what a provider's
prompt cache can keep. Measured on counted requests only; small ones are not worth the hashing."""

from collections.abc import MutableMapping
from dataclasses import dataclass

from cachetools import LRUCache

from proxy.metrics import Metrics
from proxy.recent import alike
from proxy.turn import Turn

CONVERSATIONS_REMEMBERED = 2048


@dataclass(frozen=True, slots=True)
class _Sent:
    """One request's messages."""

    hashes: tuple[int, ...]
    sizes: tuple[int, ...]
    whole_bytes: int


class PrefixShares:
    """Compares each counted request with the one before it, message by message."""

    def __init__(self, metrics: Metrics) -> None:
        """Remembers one request for each conversation, as hashes and sizes."""
        self._metrics = metrics
        self._before: MutableMapping[tuple[str, str], _Sent] = LRUCache(CONVERSATIONS_REMEMBERED)

    def observe(self, turn: Turn) -> float | None:
        """The share, by bytes, of the previous request's messages that this one starts with."""
        if turn.view is None:
            return None
        key = (turn.scope.tenant, turn.conversation)
        messages = turn.request.raw_messages
        if turn.surface.replaced:
            messages = (*messages[: turn.request.head_length], *turn.raw_items)
        sizes = tuple(map(len, messages))
        now = _Sent(tuple(map(hash, messages)), sizes, sum(sizes))
        before = self._before.get(key)
        self._before[key] = now
        if before is None or not before.hashes:
            return None
        begun = alike(before.hashes, now.hashes)
        left = sum(before.sizes[begun:])
        share = (before.whole_bytes - left) / max(before.whole_bytes, 1)
        self._metrics.observe("tidegate_prefix_share", share)
        return share
