"""What was marked is in, whatever else is; of the rest few seem to be."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.marks import Marks


def digest_of(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=16).digest()


@given(st.lists(st.binary(max_size=20)))
def test_what_was_marked_is_in(digests: list[bytes]) -> None:
    marks = Marks(64)
    for digest in digests:
        marks.add(digest)
    assert all(digest in marks for digest in digests)


def test_of_the_rest_one_in_eighty_seems_to_be() -> None:
    marks = Marks(1024)
    for number in range(800):
        marks.add(digest_of(number))
    assert sum(digest_of(number) in marks for number in range(800, 8800)) < 200


def test_nothing_is_in_at_first() -> None:
    assert digest_of(1) not in Marks(64)
