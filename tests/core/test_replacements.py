"""The generation counts what was recorded, so it can only grow."""

from dataclasses import replace

from proxy.core.replacements import Replacement, ReplacementKind, generation_of


def stored(order: int, kind: ReplacementKind) -> Replacement:
    return Replacement(
        id=f"{order:032x}",
        order=order,
        kind=kind,
        start=0,
        end=order,
        end_fingerprint=bytes(16),
        payload={},
    )


def test_no_replacement_is_generation_zero() -> None:
    assert generation_of([]) == 0


def test_a_revocation_raises_the_generation_as_a_replacement_does() -> None:
    summary, prune = stored(1, ReplacementKind.SUMMARY), stored(2, ReplacementKind.PRUNE)
    assert generation_of([summary, prune]) == 2
    assert generation_of([summary, replace(prune, revoked=True)]) == 3


def test_a_backoff_is_not_counted() -> None:
    backoff = stored(1, ReplacementKind.BACKOFF)
    assert generation_of([backoff, replace(backoff, revoked=True)]) == 0
