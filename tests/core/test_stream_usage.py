"""The usage event that nobody asked for is taken out; every other byte passes as it came."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.sse import MAX_EVENT_BYTES
from proxy.core.stream_usage import (
    UsageSieve,
    asks_for_usage,
    is_extra,
    stream_options_asking,
)

USAGE = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
FIRST = b'data: {"choices":[{"delta":{"content":"a\\n\\nb"}}],"usage":null}\n\n'
EXTRA = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n"
WITH_CONTENT = b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}\r\n\r\n'
DONE = b"data: [DONE]\n\n"
COMMENT = b": waiting\r\r"


def sifted(*pieces: bytes) -> bytes:
    sieve = UsageSieve()
    return b"".join([*(sieve.feed(piece) for piece in pieces), sieve.end()])


def test_the_client_who_asks_is_told_apart() -> None:
    assert asks_for_usage({"stream_options": {"include_usage": True}})
    for options in (None, {}, {"include_usage": False}, "yes"):
        assert not asks_for_usage({"stream_options": options})
    assert stream_options_asking({"x": 1}) == {"x": 1, "include_usage": True}
    assert stream_options_asking(None) == {"include_usage": True}


@given(cuts=st.lists(st.integers(0, 400), max_size=12))
def test_only_the_extra_event_goes_in_any_chunking(cuts: list[int]) -> None:
    whole = COMMENT + FIRST + WITH_CONTENT + EXTRA.replace(b"\n\n", b"\r\n\r\n") + EXTRA + DONE
    places = [0, *sorted(cut % len(whole) for cut in cuts), len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(places)]
    assert sifted(*pieces) == COMMENT + FIRST + WITH_CONTENT + DONE


def test_whole_events_pass_at_once() -> None:
    sieve = UsageSieve()
    assert sieve.feed(FIRST) == FIRST
    assert sieve.feed(EXTRA) == b""
    assert sieve.feed(DONE[:5]) == b""
    assert sieve.feed(DONE[5:]) == DONE
    assert sieve.end() == b""


def test_a_cut_off_event_passes_as_it_is() -> None:
    assert sifted(FIRST, b'data: {"choi') == FIRST + b'data: {"choi'
    assert sifted(FIRST, EXTRA.strip()) == FIRST


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"choices":[],"usage":null}\n\n',
        b'data: {"choices":[],"usage":{"a":1},"error":{"message":"x"}}\n\n',
        b'data: {"choices":[],"usage":{"a":1}\n\n',
        b'data: ["choices":[], "usage"]\n\n',
        b'data: {"choices":[{"delta":{"content":"\\"choices\\":[] \\"usage\\""}}]}\n\n',
    ],
)
def test_anything_more_or_less_than_usage_is_not_extra(event: bytes) -> None:
    assert not is_extra(event)
    assert sifted(event) == event


def test_a_very_long_event_passes_in_pieces() -> None:
    long = b"data: " + b"x" * (MAX_EVENT_BYTES + 10)
    sieve = UsageSieve()
    passed = sieve.feed(long)
    assert len(passed) > MAX_EVENT_BYTES
    passed += sieve.feed(b"y\n\n") + sieve.feed(EXTRA) + sieve.end()
    assert passed == long + b"y\n\n"
