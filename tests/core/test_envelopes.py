"""Texts and codes are found in every envelope, and the caller's own words are not."""

import json
from typing import Any

import pytest

from proxy.core.envelopes import NODES_MAX, TEXT_CHARS_MAX, unwrap


def texts(value: Any) -> list[str]:
    return unwrap(json.dumps(value).encode()).texts


INNER = {"error": {"message": "too long"}}


@pytest.mark.parametrize(
    "value",
    [
        {"error": {"message": "too long", "type": "x"}},
        {"type": "error", "error": {"type": "x", "message": "too long"}},
        {"object": "error", "message": "too long"},
        [{"error": {"code": 400, "message": "too long"}}],
        {"error": "too long"},
        {"code": "A sentence", "error": "too long"},
        "too long",
        {"errors": [{"code": 1, "message": "too long"}], "success": False},
        {"base_resp": {"status_code": 1, "status_msg": "too long"}},
        {"Response": {"Error": {"Code": "X", "Message": "too long"}}},
        {"error_type": "x", "error_message": "too long"},
        {"detail": "too long"},
        {"detail": json.dumps(INNER)},
        {"detail": [{"loc": ["body"], "msg": "too long", "input": "mine"}]},
        {"error": {"message": json.dumps({"error": {"message": json.dumps(INNER)}})}},
        {"error": {"message": f"Some.Exception - b'{json.dumps(INNER)}'"}},
        {"response": {"error": {"message": "too long"}}},
        {"validationException": {"message": "too long"}},
    ],
)
def test_the_message_is_found(value: Any) -> None:
    assert "too long" in texts(value)


def test_what_the_caller_wrote_is_not_collected() -> None:
    for key in ("request", "input", "body", "flagged_input", "messages", "choices"):
        assert texts({key: {"message": "mine"}, "message": "yours"}) == ["yours"]
    echoed = 'cannot parse [{"role": "user", "content": "mine"}]'
    assert "mine" not in " ".join(texts({"error": echoed}))


def test_an_error_document_that_nothing_introduces_as_one_is_a_quotation() -> None:
    quoted = 'the field reads {"message": "mine"}'
    assert texts({"error": quoted}) == [quoted]
    wrapped = 'Upstream returned 400: {"message": "yours"}'
    assert texts({"error": wrapped}) == ["Upstream returned 400:", "yours"]


def test_plain_text_html_and_cut_json_are_read() -> None:
    assert unwrap(b" length limit exceeded\n").texts == ["length limit exceeded"]
    assert unwrap(b"<html><title>413 Too Large</title></html>").texts == ["413 Too Large"]
    assert unwrap(b'{"error": {"message": "too \\"long\\"", "x": [1, ').texts == ['too "long"']
    assert unwrap(b'event: error\ndata: {"error": "too long"}\n\n').texts == ["too long"]
    assert unwrap(b"").texts == []
    assert unwrap(b"{").texts == []
    assert unwrap(b"\xff\xfe too long").texts[0].endswith("too long")


def test_codes_figures_and_params_are_kept() -> None:
    envelope = unwrap(
        json.dumps(
            {"error": {"message": "m", "code": 400, "type": "A_B", "param": "p", "n_ctx": 512}}
        ).encode()
    )
    assert envelope.codes == ["400", "a_b"]
    assert envelope.figures["n_ctx"] == 512
    assert envelope.params == ["p"]
    assert envelope.http_status() == 400
    assert unwrap(b'{"code": "2013"}').http_status() is None
    assert unwrap(b'{"fooException": {"ok": true}}').codes == ["fooexception"]


def test_work_is_bounded() -> None:
    long = "a" * (3 * TEXT_CHARS_MAX) + " end"
    (kept,) = texts({"message": long})
    assert len(kept) <= TEXT_CHARS_MAX + 1
    assert kept.endswith(" end")
    many = texts([{"message": f"text {n}"} for n in range(10 * NODES_MAX)])
    assert len(many) <= NODES_MAX
    assert sum(map(len, texts([{"message": str(n) * 900} for n in range(90)]))) <= (
        TEXT_CHARS_MAX + 90
    )


def test_deep_and_huge_documents_do_not_raise() -> None:
    for body in (b"[" * 99_999, b'{"a":' * 99_999, b'{"code": ' + b"7" * 9_999 + b"}"):
        assert unwrap(body).texts == [] or body.startswith(b"{")
    deep: Any = "bottom"
    for _ in range(200):
        deep = {"error": deep}
    assert texts(deep) == []
    nested = "bottom"
    for _ in range(8):
        nested = json.dumps({"error": nested})
    assert "bottom" not in unwrap(nested.encode()).texts


def test_a_wide_object_is_read_in_part() -> None:
    wide = {f"k{n}": n for n in range(1000)} | {"message": "late"}
    assert texts(wide) == []


def test_a_repeated_text_is_kept_once() -> None:
    assert texts({"message": "same", "details": "same"}) == ["same"]


def test_brackets_that_are_no_json_stay_text() -> None:
    assert texts({"message": "length should be [1, 6000]"}) == ["length should be [1, 6000]"]
    assert texts({"message": "a {b} {c} {d} {e}"}) == ["a {b} {c} {d} {e}"]
