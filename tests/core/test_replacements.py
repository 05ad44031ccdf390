"""The generation counts what was recorded, so it can only grow."""

from dataclasses import replace

from proxy.core.replacements import (
    NewReplacement,
    Replacement,
    ReplacementKind,
    as_if_stored,
    generation_of,
)


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


def test_what_is_only_tried_stands_behind_all_that_is_stored() -> None:
    summary, prune, backoff = (
        NewReplacement(kind, 0, 1, bytes(16), {"n": n})
        for n, kind in enumerate(
            (ReplacementKind.SUMMARY, ReplacementKind.PRUNE, ReplacementKind.BACKOFF)
        )
    )
    applied = [stored(7, ReplacementKind.PRUNE), stored(3, ReplacementKind.OFFLOAD)]
    tried = as_if_stored(applied, [summary, prune, backoff])
    assert [(r.order, r.kind, r.payload) for r in tried] == [
        (8, ReplacementKind.SUMMARY, {"n": 0}),
        (9, ReplacementKind.PRUNE, {"n": 1}),
    ]
    assert as_if_stored([], [summary])[0].order == 1
