"""How much of what is forwarded begins like the conversation's previous request: what a provider's
prompt cache can keep. Measured on counted requests only; small ones are not worth the hashing."""

from array import array
from collections.abc import MutableMapping
from dataclasses import dataclass

from cachetools import LRUCache

from proxy.metrics import Metrics
from proxy.recent import alike
from proxy.turn import Turn

MESSAGES_REMEMBERED = 1_000_000
"""16 bytes each."""

CONVERSATION_MESSAGES = 500
"""What a conversation weighs beside its messages: no more than 2,000 are remembered."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """One request's messages, of which `head_length` are its head. `mark` is that of the reading of
    its history, None where anything of it was replaced."""

    hashes: "array[int]"
    sizes: "array[int]"
    size_bytes: int
    head_length: int
    mark: object


class PrefixShares:
    """Compares each counted request with the one before it, message by message."""

    def __init__(self, metrics: Metrics) -> None:
        """Remembers one request for each conversation, as hashes and sizes."""
        self._metrics = metrics
        self._before: MutableMapping[tuple[str, str], _Sent] = LRUCache(
            MESSAGES_REMEMBERED, getsizeof=lambda sent: CONVERSATION_MESSAGES + len(sent.hashes)
        )

    def observe(self, turn: Turn) -> float | None:
        """The share, by bytes, of the previous request's messages that this one starts with."""
        if turn.view is None:
            return None
        key = (turn.scope.tenant, turn.conversation)
        before = self._before.get(key)
        if before is not None and _grew_from(before, turn):
            self._keep(key, _sent(turn, before))
            share = 1.0
        else:
            now = _sent(turn)
            self._keep(key, now)
            if before is None or not before.hashes:
                return None
            kept = sum(before.sizes[: alike(before.hashes, now.hashes)])
            share = kept / max(before.size_bytes, 1)
        self._metrics.observe("tidegate_prefix_share", share)
        return share

    def _keep(self, key: tuple[str, str], sent: _Sent) -> None:
        """In place of the request before; one that all the others would have to go for, not."""
        if len(sent.hashes) > MESSAGES_REMEMBERED // 4:
            self._before.pop(key, None)
        else:
            self._before[key] = sent


def _grew_from(before: _Sent, turn: Turn) -> bool:
    """Whether the turn is surely the one before and more: in most conversations, nearly always."""
    if before.mark is None or before.mark is not turn.reading.grew_from or turn.surface.replaced:
        return False
    head = turn.request.raw_messages[: turn.request.head_length]
    return before.hashes[: before.head_length] == array("q", map(hash, head))


def _sent(turn: Turn, before: _Sent | None = None) -> _Sent:
    """What is remembered of a turn that begins with all of the one before, if there is one."""
    head_length = turn.request.head_length
    messages = turn.raw_items
    if before is None:
        before = _Sent(array("q"), array("q"), 0, head_length, None)
        messages = (*turn.request.raw_messages[:head_length], *messages)
    else:
        messages = messages[len(before.hashes) - head_length :]
    sizes = array("q", map(len, messages))
    return _Sent(
        hashes=before.hashes + array("q", map(hash, messages)),
        sizes=before.sizes + sizes,
        size_bytes=before.size_bytes + sum(sizes),
        head_length=head_length,
        mark=None if turn.surface.replaced else turn.reading.mark,
    )
