"""What made each generation, and the replacements as they were at any of them."""

from proxy.core.generations import Revocation, applied_at, made_by, steps
from proxy.core.replacements import Replacement, ReplacementKind, generation_of


def made(order: int, *, revoked: bool = False, kind: str = "summary") -> Replacement:
    return Replacement(
        f"id{order}", order, ReplacementKind(kind), 0, order, b"", {}, revoked=revoked
    )


APPLIED = (made(3), made(5, revoked=True), made(8, revoked=True), made(9), made(6, kind="backoff"))
NOTED = {"id5": Revocation("id5", 2, 8), "id8": Revocation("id8", 1, 8)}


def test_each_replacement_and_each_revocation_is_one_generation_in_the_order_it_happened() -> None:
    told = [(step.number, step.replacement.id, step.revokes) for step in steps(APPLIED, NOTED)]
    assert told == [
        (1, "id3", False),
        (2, "id5", False),
        (3, "id8", False),
        (4, "id8", True),
        (5, "id5", True),
        (6, "id9", False),
    ]
    assert len(told) == generation_of(APPLIED)


def test_a_revocation_that_nobody_noted_down_comes_last() -> None:
    told = [step.replacement.id for step in steps(APPLIED, {}) if step.revokes]
    assert told == ["id5", "id8"]
    assert steps(APPLIED, {})[-1].revokes


def test_the_replacements_as_they_were_then() -> None:
    all_steps = steps(APPLIED, NOTED)
    live = [
        {r.id for r in applied_at(all_steps, n) if not r.revoked} for n in range(len(all_steps) + 1)
    ]
    assert live[0] == set()
    assert live[3] == {"id3", "id5", "id8"}
    assert live[4] == {"id3", "id5"}
    assert live[6] == {"id3", "id9"}


def test_a_step_is_named_by_its_number_or_its_checkpoint() -> None:
    all_steps = steps(APPLIED, NOTED)
    by_number, by_id = made_by(all_steps, "2"), made_by(all_steps, "id5")
    assert by_number is by_id is all_steps[1]
    assert made_by(all_steps, "4") is None
    assert made_by(all_steps, "nothing") is None
