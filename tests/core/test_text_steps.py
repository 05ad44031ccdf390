"""Pieces of a text: nothing lost, no word cut, none longer than asked for but a long word."""

import re

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.text_steps import STEP_CHARS, steps_of

TEXTS = st.text(alphabet="ab \n\t\r\u2028é", max_size=200)


@given(TEXTS, st.integers(1, 20))
def test_the_pieces_are_the_text_and_are_cut_before_white_space_alone(text: str, step: int) -> None:
    pieces = list(steps_of(text, step))
    assert "".join(pieces) == text
    assert all(pieces)
    for piece in pieces[1:]:
        assert piece[0] in " \n\t\r"
    for piece in pieces:
        assert len(piece) <= step or not re.search(r"[ \n\t\r]", piece[1:step])


def test_a_short_text_is_one_piece_and_a_long_word_too() -> None:
    assert list(steps_of("")) == []
    assert list(steps_of("a b")) == ["a b"]
    word = "x" * (3 * STEP_CHARS)
    assert list(steps_of(word)) == [word]
    assert list(steps_of(f"a {word} b")) == ["a", f" {word}", " b"]
