"""SSE on bytes. Rows R101, R102, R103, R105 of the fault list, as far as the parser goes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.sse import Event, EventParser

CASES = [
    # line ends
    (b"data: a\n\ndata: b\n\n", [Event(b"a"), Event(b"b")]),
    (b"data: a\r\n\r\ndata: b\r\n\r\n", [Event(b"a"), Event(b"b")]),
    (b"data: a\r\rdata: b\r\r", [Event(b"a"), Event(b"b")]),
    (b"data: a\r\n\ndata: b\n\r\n", [Event(b"a"), Event(b"b")]),
    # fields
    (b"data:{}\n\n", [Event(b"{}")]),
    (b"data:  two\n\n", [Event(b" two")]),
    (b"data: a\ndata: b\n\n", [Event(b"a\nb")]),
    (b"data\n\n", [Event(b"")]),
    (b"event: x.progress\nid: 7\nretry: 1000\ndata: a\n\n", [Event(b"a", b"x.progress", b"7")]),
    (b"unknown: 1\ndata: a\n\n", [Event(b"a")]),
    # nothing to dispatch
    (b": ping\n\n:\n\n", []),
    (b": ping\ndata: a\n: pong\n\n", [Event(b"a")]),
    (b"event: error\n\ndata: a\n\n", [Event(b"a")]),
    (b"\n\n\n", []),
    # text that other parsers cut
    ("data: x\u2028y\u0085z\n\n".encode(), [Event("x\u2028y\u0085z".encode())]),
    ("data: 你好 🙂\n\n".encode(), [Event("你好 🙂".encode())]),
    (b"\xef\xbb\xbfdata: a\n\n", [Event(b"a")]),
    (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [Event(b"a")]),
    # the end without a blank line, or without a line end
    (b"data: a\n\ndata: [DONE]\n", [Event(b"a"), Event(b"[DONE]")]),
    (b"data: a\n\ndata: [DONE]", [Event(b"a"), Event(b"[DONE]")]),
    (b'data: a\n\ndata: {"cut', [Event(b"a"), Event(b'{"cut')]),
    (b"data: [DONE]\r", [Event(b"[DONE]")]),
]


def parse(stream: bytes, cuts: list[int], **bound: int) -> list[Event]:
    parser = EventParser(**bound)
    events: list[Event] = []
    edges = [0, *sorted(cuts), len(stream)]
    for start, end in pairwise(edges):
        events.extend(parser.feed(stream[start:end]))
    last = parser.end()
    return [*events, last] if last is not None else events


@pytest.mark.parametrize(("stream", "events"), CASES)
def test_whole_byte_by_byte_and_cut_anywhere_once(stream: bytes, events: list[Event]) -> None:
    assert parse(stream, []) == events
    assert parse(stream, list(range(1, len(stream)))) == events
    for cut in range(len(stream)):
        assert parse(stream, [cut]) == events, cut


FRAGMENTS = st.sampled_from(
    [
        *(b"data", b":", b" ", b"\n", b"\r", b"\r\n", b"event", b"id", b"x", b"\n\n", b"{}"),
        *(b"\xef\xbb\xbf", b"[DONE]", b"\xff", b"data: {}\n\n", "\u2028🙂".encode()),
    ]
)


@given(st.lists(FRAGMENTS, max_size=30).map(b"".join), st.data())
def test_any_chunking_gives_the_same_events(stream: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    assert parse(stream, cuts) == parse(stream, [])


@given(st.lists(FRAGMENTS, max_size=30).map(b"".join), st.data())
def test_any_chunking_of_bounded_events_gives_the_same(stream: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    found = parse(stream, cuts, max_event_bytes=8)
    assert [e.oversized for e in found] == [
        e.oversized for e in parse(stream, [], max_event_bytes=8)
    ]


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0")), max_size=5))
def test_what_is_encoded_is_decoded(texts: list[str]) -> None:
    stream = b"".join(b"data: " + text.encode() + b"\n\n" for text in texts)
    assert [event.data.decode() for event in parse(stream, [])] == texts


def test_an_event_over_the_bound_keeps_no_data_and_harms_no_other() -> None:
    stream = b"data: a\n\ndata: " + b"x" * 100 + b"\n\ndata: b\n\n"
    for cuts in ([], list(range(1, len(stream)))):
        assert parse(stream, cuts, max_event_bytes=20) == [
            Event(b"a"),
            Event(b"", oversized=True),
            Event(b"b"),
        ]


def test_many_lines_of_data_count_together() -> None:
    stream = b"data: aaaa\n" * 10 + b"\n"
    assert parse(stream, [], max_event_bytes=20) == [Event(b"", oversized=True)]


def test_a_long_comment_is_no_event() -> None:
    stream = b": " + b"x" * 100 + b"\n\ndata: a\n\n"
    for cuts in ([], list(range(1, len(stream)))):
        assert parse(stream, cuts, max_event_bytes=20) == [Event(b"a")]


def test_memory_stays_bounded_while_a_line_does_not_end() -> None:
    parser = EventParser(max_event_bytes=1000)
    for _ in range(1000):
        assert parser.feed(b"x" * 1000) == []
    assert len(parser._partial) <= 1000


@pytest.mark.parametrize(
    ("stream", "between"),
    [
        (b"", False),  # a byte order mark may come
        (b"data: a\n\n", True),
        (b"data: a\r\n\r\n", True),
        (b"data: a\n\nd", False),
        (b"data: a\n\ndata: b\n", False),
        (b"data: a\n\nevent: e\n", False),
        (b"data: a\n\n: comment\n", True),
        (b"data: a\r\r", False),  # a line feed may belong to the last CR
    ],
)
def test_it_knows_when_nothing_of_an_event_is_pending(stream: bytes, between: bool) -> None:
    parser = EventParser()
    parser.feed(stream)
    assert parser.between_events is between


def test_done_is_told_from_data() -> None:
    assert Event(b"[DONE]").done
    assert Event(b" [DONE] ").done
    assert not Event(b'"[DONE]"').done
