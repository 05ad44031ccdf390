"""A client that drops or rewrites its oldest messages is found out after two misses in a row."""

from proxy.core.stability import MAX_TAIL, LastSummary, after_summary, judged_by, unstable


def meanings(*numbers: int) -> tuple[bytes, ...]:
    return tuple(bytes([number]) for number in numbers)


FIRST = after_summary(None, b"end", meanings(1, 2, 3, 4))


def test_a_summary_is_remembered_with_the_tail_newest_first() -> None:
    assert LastSummary(b"end", meanings(4, 3, 2, 1)) == FIRST


def test_only_the_newest_part_of_a_long_tail_is_remembered() -> None:
    tail = [bytes([n // 256, n % 256]) for n in range(MAX_TAIL + 10)]
    last = after_summary(None, b"end", tail)
    assert len(last.tail) == MAX_TAIL
    assert last.tail[0] == tail[-1]


def test_a_request_that_still_holds_the_end_forgives() -> None:
    missed = LastSummary(b"end", meanings(1), misses=1)
    assert judged_by(missed, [b"a", b"end"], meanings(1)) == LastSummary(
        b"end", meanings(1), misses=0, judged=True
    )


def test_half_of_the_tail_without_the_end_is_a_miss() -> None:
    assert judged_by(FIRST, [b"other"], meanings(3, 4)).misses == 1
    assert judged_by(FIRST, [b"other"], meanings(3, 4)).judged


def test_less_than_half_of_the_tail_is_another_conversation() -> None:
    assert judged_by(FIRST, [b"other"], meanings(4, 9)) is FIRST


def test_an_empty_tail_says_nothing() -> None:
    empty = after_summary(None, b"end", [])
    assert judged_by(empty, [b"other"], meanings(1)) is empty


def test_each_summary_is_judged_once() -> None:
    judged = judged_by(FIRST, [b"other"], meanings(3, 4))
    assert judged_by(judged, [b"other"], meanings(3, 4)) is judged


def test_two_misses_in_a_row_are_unstable() -> None:
    missed = judged_by(FIRST, [b"other"], meanings(1, 2, 3, 4))
    second = after_summary(missed, b"end2", meanings(5, 6))
    assert not unstable(second)
    assert unstable(judged_by(second, [b"other"], meanings(5, 6)))


def test_a_summary_that_nobody_judged_breaks_the_row() -> None:
    """The conversation ended there, or another one came between."""
    assert after_summary(LastSummary(b"end", (), misses=1), b"end2", ()).misses == 0


def test_nothing_remembered_is_stable() -> None:
    assert not unstable(None)
