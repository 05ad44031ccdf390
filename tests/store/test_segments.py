"""Runs of messages come out as they went in, and every turn's history is a path of them."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.store import segments as module
from proxy.store.segments import (
    INLINE_BYTES,
    LONG_RUN,
    LONG_RUN_INLINE_BYTES,
    STAMP_SECONDS,
    End,
    Plan,
    content_key,
    first_size,
    in_sixteens,
    pack,
    unpacked,
)
from tests.store.samples import chain_of, turn_of

SECRET = b"secret"
TEXTS = [f"message {number}" for number in range(6)]
CHAIN = chain_of(TEXTS)


def always(body: bytes) -> bool:
    return True


def never(body: bytes) -> bool:
    return False


class TestPack:
    @given(
        st.lists(
            st.one_of(
                st.binary(min_size=1, max_size=80),
                st.sampled_from([b"x" * INLINE_BYTES, b"x" * (INLINE_BYTES + 1), b"y" * 5000]),
            ),
            max_size=2 * LONG_RUN,
        ),
        st.sampled_from([always, never, lambda body: body.startswith(b"x")]),
    )
    def test_what_is_unpacked_is_what_was_packed(
        self, bodies: list[bytes], is_repeated: Callable[[bytes], bool]
    ) -> None:
        packed = pack(bodies, SECRET, is_repeated)
        parts = packed.sizes, packed.content_keys, packed.bodies
        assert list(unpacked(*parts, packed.contents)) == bodies
        assert set(in_sixteens(packed.content_keys)) == set(packed.contents)
        most = INLINE_BYTES if len(bodies) <= LONG_RUN else LONG_RUN_INLINE_BYTES
        repeated = {body for body in bodies if len(body) > most and is_repeated(body)}
        assert set(packed.contents.values()) == repeated
        assert all(content_key(body, SECRET) == key for key, body in packed.contents.items())
        if bodies:
            assert first_size(packed.sizes) == (0 if bodies[0] in repeated else len(bodies[0]))

    def test_only_long_ones_are_asked_about(self) -> None:
        asked: list[bytes] = []
        long = b"x" * (INLINE_BYTES + 1)

        def asking(body: bytes) -> bool:
            asked.append(body)
            return False

        for bodies in ([b"x" * INLINE_BYTES], [b"1", long, b"2"]):
            pack(bodies, SECRET, asking)
        assert asked == [long]

    def test_a_content_that_is_gone_is_none(self) -> None:
        packed = pack([b"1", b"x" * 2000, b"2"], SECRET, always)
        parts = packed.sizes, packed.content_keys, packed.bodies
        assert list(unpacked(*parts, {})) == [b"1", None, b"2"]

    def test_a_key_is_a_secret(self) -> None:
        assert content_key(b"guess me", SECRET) != content_key(b"guess me", b"other")


def ends_of(*runs: tuple[int, int], seen: float = 1000.0, text: bool = True) -> dict[bytes, End]:
    """Stored segments of CHAIN, each from a position to another."""
    return {
        CHAIN[stop - 1]: End(start, CHAIN[max(start - 1, 0)], seen, text) for start, stop in runs
    }


def added(plan: Plan) -> list[tuple[int, int]]:
    """What is new, each from a position to another."""
    return [
        (each.end.start, each.end.start + len(each.turn.fingerprints) - each.first)
        for each in plan.new.values()
    ]


class TestPlan:
    def test_only_what_lies_behind_a_stored_end_is_new(self) -> None:
        plan = Plan(ends_of((0, 2), (2, 4)))
        assert plan.add(turn_of(TEXTS))
        assert added(plan) == [(4, 6)]
        assert plan.new[CHAIN[-1]].end.parent == CHAIN[3]

    def test_a_fork_in_the_middle_begins_before_it(self) -> None:
        plan = Plan(ends_of((0, 2), (2, 6)))
        assert plan.add(turn_of([*TEXTS[:4], "fork"]))
        assert added(plan) == [(2, 5)]

    def test_the_first_is_found_by_its_first_message(self) -> None:
        plan = Plan({})
        assert plan.add(turn_of(TEXTS))
        assert added(plan) == [(0, 6)]
        assert plan.new[CHAIN[-1]].end.parent == CHAIN[0]

    def test_what_follows_something_that_is_gone_is_left_out(self) -> None:
        plan = Plan(ends_of((0, 2)))
        assert not plan.add(turn_of(TEXTS, start=4))
        assert not plan.add(turn_of(TEXTS, start=6))
        assert plan.add(turn_of(TEXTS, start=2))
        assert added(plan) == [(2, 6)]

    def test_one_that_lacks_its_beginning_is_written_again_with_it(self) -> None:
        plan = Plan(ends_of((0, 2), (4, 5), (5, 6)))
        assert plan.add(turn_of(TEXTS))
        assert added(plan) == [(2, 6)]
        assert plan.replaced == [CHAIN[5]]

    def test_one_without_text_does_not_count_for_who_has_it(self) -> None:
        stored = ends_of((0, 3), text=False)
        for kept, new in ((True, [(0, 3)]), (False, [])):
            plan = Plan(stored)
            assert plan.add(turn_of(TEXTS[:3], kept=kept))
            assert added(plan) == new
            assert plan.replaced == [CHAIN[stop - 1] for _, stop in new]

    def test_one_that_reaches_back_beyond_what_is_brought_counts(self) -> None:
        plan = Plan(ends_of((0, 2), (0, 4)))
        assert plan.add(turn_of(TEXTS, start=2))
        assert added(plan) == [(4, 6)]

    def test_a_path_is_renewed_as_a_whole_once_an_hour(self) -> None:
        stored = ends_of((0, 2), seen=1000.0) | ends_of((2, 4), seen=900.0)
        for late, renewed in ((0.0, set()), (1.0, {CHAIN[1], CHAIN[3]})):
            plan = Plan({last: replace(end) for last, end in stored.items()})
            now = 900.0 + STAMP_SECONDS + late
            assert plan.add(turn_of(TEXTS, time=now))
            assert plan.renewed == renewed
            assert plan.seen(CHAIN[5]) == plan.seen(CHAIN[3]) == (now if late else 900.0)

    def test_what_follows_is_never_newer(self) -> None:
        plan = Plan(ends_of((0, 2), seen=900.0))
        assert plan.add(turn_of(TEXTS, start=2, time=1000.0))
        assert plan.seen(CHAIN[5]) == 900.0


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[str], bool, int]]:
    """Requests over two words, so that they share beginnings; whether each brings its text; and
    which earlier request of its own history it goes on from, counted from the last."""
    words = st.lists(st.sampled_from("ab"), min_size=1, max_size=6)
    return draw(st.lists(st.tuples(words, st.booleans(), st.integers(0, 3)), max_size=8))


@given(histories(), st.booleans())
def test_every_history_is_a_path(drawn: list[tuple[list[str], bool, int]], one_batch: bool) -> None:
    """Whatever was there, every segment begins where the one before it ends, text where it was
    brought, and none is older than what follows it."""
    stored: dict[bytes, End] = {}
    plan = Plan(stored)
    for number, (texts, kept, back) in enumerate(drawn):
        chain = chain_of(texts)
        known = [0, *(n + 1 for n, each in enumerate(chain) if each in plan._ends)]
        start = known[-1 - min(back, len(known) - 1)]
        turn = turn_of(texts, start=start, kept=kept, time=number * module.STAMP_SECONDS)
        assert plan.add(turn)
        ends = plan._ends
        last, stop, above = chain[-1], len(chain), 0.0
        while stop > 0:
            end = ends[last]
            assert end.has_text or not kept or stop <= start
            assert end.seen >= above
            stop, above, last = end.start, end.seen, end.parent
            assert last == chain[max(stop - 1, 0)]
        if not one_batch:
            plan = Plan(dict(ends))


@pytest.mark.parametrize("joined", [b"", b"a" * 16, b"a" * 16 + b"b" * 16])
def test_in_sixteens_takes_apart_what_was_joined(joined: bytes) -> None:
    assert b"".join(in_sixteens(joined)) == joined
    assert {len(part) for part in in_sixteens(joined)} <= {16}
