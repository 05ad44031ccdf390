"""What was made of the last request of a conversation, so that the next one costs only what is new.

A request that begins with the very bytes of an earlier one of the same tenant begins with the same
meanings, pairs, fingerprints and counts. Bounded in bytes; whoever is not found is worked out anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from cachetools import LRUCache

from proxy.core.ranges import Pairing
from proxy.core.surface import Surface

T = TypeVar("T")

REMEMBERED_BYTES = 8 * 1024 * 1024
"""Of request bodies: 18 conversations of 100,000 tokens, or hundreds of the usual ones. What is
kept with them takes about as much again. Chosen."""

LEAST_MESSAGES = 8
"""Shorter histories are worked out as quickly as they are found."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A history without its replacements. `counts` grow by model: tokens of the first messages."""

    raw: tuple[bytes, ...] = field(repr=False)
    pairing: Pairing = field(repr=False)
    meanings: tuple[bytes, ...] = field(repr=False)
    chain: tuple[bytes, ...] = field(repr=False)
    surface: Surface = field(repr=False)
    counts: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False)

    def counts_of_first(self, messages: int) -> Mapping[str, tuple[int, ...]]:
        """The counts that hold for a history which begins with so many of these messages."""
        return {model: tokens[:messages] for model, tokens in self.counts.items()}


class Recent:
    """The last reading of each conversation, found by tenant and first message."""

    def __init__(self, max_bytes: int = REMEMBERED_BYTES) -> None:
        """Empty."""
        self._readings: LRUCache[tuple[str, bytes], Reading] = LRUCache(
            max_bytes, getsizeof=lambda reading: sum(map(len, reading.raw))
        )
        self._max_bytes = max_bytes

    def find(self, tenant: str, raw: Sequence[bytes]) -> tuple[Reading, int] | None:
        """The reading that a history of these bytes begins like, and for how many messages."""
        if len(raw) < LEAST_MESSAGES:
            return None
        found = self._readings.get((tenant, raw[0]))
        return None if found is None else (found, alike(found.raw, raw))

    def keep(self, tenant: str, reading: Reading) -> None:
        """In place of what was kept of that conversation."""
        size_bytes = sum(map(len, reading.raw))
        if len(reading.raw) >= LEAST_MESSAGES and size_bytes <= self._max_bytes // 4:
            self._readings[tenant, reading.raw[0]] = reading


def alike(known: Sequence[T], now: Sequence[T]) -> int:
    """How many items both begin with. The usual case, that all of them, costs one comparison."""
    if now[: len(known)] == known:
        return len(known)
    for place, (one, other) in enumerate(zip(known, now, strict=False)):
        if one != other:
            return place
    return min(len(known), len(now))
