"""What stands in for a range of a history: the values that plans make and the store keeps.

A payload holds no word of the client's: only positions, part indexes and counts, which are rendered
from the client's current messages when the surface is folded, and the summariser's own text.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


class ReplacementKind(StrEnum):
    """What a replacement does. A `backoff` changes no surface: it remembers a refusal."""

    SUMMARY = "summary"
    DIGEST = "digest"
    PRUNE = "prune"
    OFFLOAD = "offload"
    BACKOFF = "backoff"


class Scope(NamedTuple):
    """Who may use a replacement: one tenant, on one upstream, with one model."""

    tenant: str
    upstream: str
    model: str


@dataclass(frozen=True, slots=True)
class NewReplacement:
    """What a plan asks the store to write: `history[start:end]` is replaced as `payload` says.

    It applies iff `end_fingerprint`, the fingerprint after message `end - 1`, is in a request's
    chain. `payload` can be written as JSON.
    """

    kind: ReplacementKind
    start: int
    end: int
    end_fingerprint: bytes
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Replacement:
    """A replacement as stored. Only `revoked` ever changes, once, from false to true.

    `order` increases with every replacement stored; `id` is the `checkpoint_id` that clients see.
    """

    id: str
    order: int
    kind: ReplacementKind
    start: int
    end: int
    end_fingerprint: bytes
    payload: Mapping[str, Any]
    revoked: bool = False


def generation_of(replacements: Iterable[Replacement]) -> int:
    """How many replacements and revocations are recorded among these; backoffs are neither."""
    return sum(
        1 + replacement.revoked
        for replacement in replacements
        if replacement.kind is not ReplacementKind.BACKOFF
    )


def as_if_stored(
    applied: Iterable[Replacement], new: Iterable[NewReplacement]
) -> tuple[Replacement, ...]:
    """The new ones as they would stand behind `applied`, known to no store: to try a plan, or to
    go on without a store. A backoff changes no surface and is left out."""
    last = max((replacement.order for replacement in applied), default=0)
    return tuple(
        Replacement("", last + n, r.kind, r.start, r.end, r.end_fingerprint, r.payload)
        for n, r in enumerate(new, start=1)
        if r.kind is not ReplacementKind.BACKOFF
    )
