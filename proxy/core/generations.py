"""The generations of a history, one after another: each replacement and each revocation is one. The
surface at any of them is a fold of what was recorded until then."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from proxy.core.replacements import Replacement, ReplacementKind


@dataclass(frozen=True, slots=True)
class Revocation:
    """`sequence` orders revocations; `after_order` is the newest replacement made before it."""

    replacement_id: str
    sequence: int
    after_order: int


@dataclass(frozen=True, slots=True)
class Step:
    """How a history came to its generation `number`: something was replaced, or taken back."""

    number: int
    replacement: Replacement
    revokes: bool


def steps(
    applied: Sequence[Replacement], revocations: Mapping[str, Revocation]
) -> tuple[Step, ...]:
    """What made each generation, from 1 on; backoffs make none.

    A revocation that nobody noted down (of an older store) counts as made last.
    """
    counted = [r for r in applied if r.kind is not ReplacementKind.BACKOFF]
    last = max((r.order for r in counted), default=0)
    happened: list[tuple[tuple[int, int, int], Replacement, bool]] = []
    for made in counted:
        happened.append(((made.order, 0, 0), made, False))
        if made.revoked:
            noted = revocations.get(made.id)
            place = (last, 1, made.order)
            if noted is not None:
                place = (max(noted.after_order, made.order), 1, noted.sequence)
            happened.append((place, made, True))
    happened.sort(key=lambda entry: entry[0])
    return tuple(
        Step(number, made, revokes) for number, (_, made, revokes) in enumerate(happened, start=1)
    )


def applied_at(history_steps: Sequence[Step], generation: int) -> tuple[Replacement, ...]:
    """The replacements as they were at that generation, those revoked by then marked so."""
    state: dict[str, Replacement] = {}
    for step in history_steps[:generation]:
        state[step.replacement.id] = replace(step.replacement, revoked=step.revokes)
    return tuple(state.values())


def made_by(history_steps: Sequence[Step], name: str) -> Step | None:
    """The step that made a replacement, by its generation or by its checkpoint id."""
    for step in history_steps:
        if not step.revokes and name in (str(step.number), step.replacement.id):
            return step
    return None
