"""Echoed runs are blanked; a message that is nothing but echo stays."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.core.echoes import flat, without_echoes

SENT = "please explain why the maximum context length is so small on this old machine"


def test_a_long_run_of_the_request_is_blanked() -> None:
    (left,) = without_echoes([f"Unexpected value in field: {SENT} (line 4)"], [SENT])
    assert "context" not in left
    assert "unexpected value in field" in left
    assert "line 4" in left


def test_a_cut_echo_is_blanked_too() -> None:
    (left,) = without_echoes([f"Unexpected value in field: {SENT[5:50]}..."], ["x " + SENT])
    assert "context" not in left


def test_white_space_and_case_do_not_hide_an_echo() -> None:
    sent = SENT.upper().replace(" ", "\n\t")
    (left,) = without_echoes([f"Unexpected value in field: {SENT}"], [sent])
    assert "context" not in left


def test_a_short_text_counts_only_whole() -> None:
    error = "Unexpected value in field: 'prompt too long'"
    assert "prompt" not in without_echoes([error], ["prompt too long"])[0]
    assert "prompt" in without_echoes([error], ["a prompt too long"])[0]


def test_a_message_that_is_all_echo_is_the_providers_own() -> None:
    assert without_echoes([SENT], [f"they said: {SENT}"]) == [flat(SENT)]
    prefixed = f"vendor.BadRequestError: {SENT}"
    assert without_echoes([prefixed], [SENT]) == [flat(prefixed)]


def test_texts_without_echo_come_back_as_they_are() -> None:
    assert without_echoes(["The  Prompt is too long", ""], ["unrelated words here"]) == [
        "The  Prompt is too long",
        "",
    ]


def test_the_scan_is_bounded() -> None:
    def endless() -> object:
        while True:
            yield "spam and eggs " * 1000

    assert without_echoes(["nothing to see"], endless()) == ["nothing to see"]  # type: ignore[arg-type]
    assert without_echoes(["ab " * 5000], ["ab " * 50_000])


@given(st.lists(st.text(max_size=80), max_size=4), st.lists(st.text(max_size=80), max_size=4))
def test_nothing_raises_and_nothing_is_added(errors: list[str], sent: list[str]) -> None:
    for before, after in zip(errors, without_echoes(errors, sent), strict=True):
        assert after == before or set(after) <= set(flat(before)) | {" "}
