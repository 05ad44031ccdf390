"""What was made of the last request of a conversation, so that the next one costs only what is new.

A request that begins with the very bytes of an earlier one of the same tenant begins with the same
meanings, pairs, fingerprints and counts. Bounded in bytes; whoever is not found is worked out anew.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec
from cachetools import LRUCache

from proxy.core.messages import Message
from proxy.core.ranges import Pairing
from proxy.core.replacements import Replacement, Scope
from proxy.core.surface import Surface

T = TypeVar("T")

REMEMBERED_BYTES = 4 * 1024 * 1024
"""Of messages: 7 conversations of 100,000 tokens, or hundreds of the usual ones. They are those in
`beginnings`, kept once; what is kept with them here takes a tenth of that. Chosen."""

MESSAGE_BYTES = 500
"""What is kept with a message, however short it is, which counts as well."""

LEAST_MESSAGES = 8
"""Shorter histories, and beginnings, are worked out as quickly as they are found."""


MODELS_COUNTED = 8
"""For so many models, which a client may name as it likes, the counts of a history are kept."""


class Folded(NamedTuple):
    """A history with its replacements, and the bytes of each item of that surface."""

    applied: tuple[Replacement, ...]
    surface: Surface
    raw_items: tuple[bytes, ...]


class Reading(msgspec.Struct, frozen=True):
    """A history without its replacements. `counts` grow by model: tokens of the first messages.

    `mark` is this reading's own; `grew_from` is that of the one whose messages it has all of, and
    more behind them. `folds` are filled as it is asked for: `folds_before` are those of the reading
    that it was made from, which hold up to `settled`.
    """

    history: tuple[Message, ...]
    raw: tuple[bytes, ...]
    size_bytes: int  # of `raw`
    pairing: Pairing
    meanings: tuple[bytes, ...]
    chain: tuple[bytes, ...]
    surface: Surface
    counts: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    mark: object = msgspec.field(default_factory=object)
    grew_from: object = None
    folds: dict[Scope, Folded] = msgspec.field(default_factory=dict)
    folds_before: dict[Scope, Folded] = msgspec.field(default_factory=dict)
    settled: int = 0

    def counts_of_first(self, messages: int) -> dict[str, tuple[int, ...]]:
        """The counts that hold for a history which begins with so many of these messages."""
        return {model: tokens[:messages] for model, tokens in self.counts.items()}

    def keep_counts(self, model: str, tokens: tuple[int, ...]) -> None:
        """In place of the model's earlier ones, or of those that were kept longest ago."""
        self.counts.pop(model, None)
        if len(self.counts) >= MODELS_COUNTED:
            del self.counts[next(iter(self.counts))]
        self.counts[model] = tokens


class Recent:
    """The last reading of each conversation, found by tenant and the messages it opens with."""

    def __init__(self, max_bytes: int = REMEMBERED_BYTES) -> None:
        """Empty."""
        self._readings: LRUCache[tuple[str, Sequence[bytes]], Reading] = LRUCache(
            max_bytes, getsizeof=_room_bytes
        )
        self._max_bytes = max_bytes

    def find(self, tenant: str, raw: tuple[bytes, ...]) -> tuple[Reading, int] | None:
        """The reading that a history of these bytes begins like, and for how many messages."""
        if len(raw) < LEAST_MESSAGES:
            return None
        found = self._readings.get((tenant, raw[:LEAST_MESSAGES]))
        return None if found is None else (found, alike(found.raw, raw))

    def keep(self, tenant: str, reading: Reading) -> None:
        """In place of what was kept of that conversation."""
        if len(reading.raw) >= LEAST_MESSAGES and _room_bytes(reading) <= self._max_bytes * 2 // 3:
            self._readings[tenant, reading.raw[:LEAST_MESSAGES]] = reading


def _room_bytes(reading: Reading) -> int:
    return reading.size_bytes + MESSAGE_BYTES * len(reading.raw)


def alike(known: Sequence[T], now: Sequence[T]) -> int:
    """How many items both begin with. The usual case, that all of them, costs one comparison."""
    if now[: len(known)] == known:
        return len(known)
    for place, (one, other) in enumerate(zip(known, now, strict=False)):
        if one != other:
            return place
    return min(len(known), len(now))
