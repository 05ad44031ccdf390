"""What is read from a reply while it passes. Rows R106, R107, R108: usage in every shape."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.verdicts import decode_json
from proxy.tap import BodyTap, EventTap, decoded
from tests.fake_provider import completion, stream_event, stream_events

USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 0},
    "prompt_cache_hit_tokens": 4,
    "cost": 0.1,
}


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def read(stream: bytes, *cuts: int) -> EventTap:
    tap = EventTap()
    edges = [0, *sorted(cuts), len(stream)]
    for start, end in zip(edges, edges[1:], strict=False):  # noqa: RUF007
        if end > start:
            tap.feed(stream[start:end])
    tap.end()
    return tap


class TestDecoding:
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        ),
        st.booleans(),
    )
    def test_a_value_is_the_one_that_the_core_reads(self, value: Any, ascii_only: bool) -> None:
        data = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        assert repr(decoded(data)) == repr(decode_json(data))

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"[DONE]",
            b"plain",
            b'{"a":NaN}',
            b'{"a":1e400}',
            b'{"a":123456789012345678901234567890}',
            b'{"a":"\\ud800"}',
            b'{"a":"\xff"}',
            b'{"a":"x\ny"}',
            b'{"a":1,"a":2}',
            b'{"a":01}',
            b'{"a":1}x',
            b' {"a":-0.0} \n',
            b'\xef\xbb\xbf{"a":1}',
            '{"a":1}'.encode("utf-16"),
            b"[" * 5000 + b"]" * 5000,
        ],
    )
    def test_so_is_what_is_odd_or_no_json(self, data: bytes) -> None:
        assert repr(decoded(data)) == repr(decode_json(data))


class TestEvents:
    @given(st.data())
    def test_any_chunking_reads_the_same(self, data: st.DataObject) -> None:
        text = data.draw(st.text(max_size=20))
        stream = b"".join(stream_events(text, usage=USAGE))
        if data.draw(st.booleans()):
            stream = stream.replace(b"\n", b"\r\n")
        cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10))
        tap = read(stream, *cuts)
        assert tap.usage == USAGE
        assert tap.finish_reason == "stop"
        assert tap.broken is None

    @pytest.mark.parametrize("extra", [{"choices": []}, {"choices": None}, {}])
    def test_usage_with_choices_empty_null_or_missing(self, extra: Any) -> None:
        stream = stream_event({"content": "a"}, finish="stop") + event({"usage": USAGE, **extra})
        assert read(stream).usage == USAGE

    def test_the_last_usage_counts_and_null_is_none(self) -> None:
        first = event({"choices": [], "usage": {"prompt_tokens": 1}})
        null = event({"choices": [{"delta": {"content": "a"}}], "usage": None})
        assert read(first + null + event({"usage": USAGE}) + b"data: [DONE]\n\n").usage == USAGE
        assert read(null + b"data: [DONE]\n\n").usage is None

    def test_text_that_looks_like_keys_is_text(self) -> None:
        text = '{"usage": {"prompt_tokens": 1}, "finish_reason": "stop", "error": {}} [DONE]'
        tap = read(stream_event({"content": text}))
        assert tap.usage is None
        assert tap.finish_reason is None
        assert tap.broken is not None

    @pytest.mark.parametrize(
        "end",
        [
            b"data: [DONE]\n\n",
            b"data: [DONE]",
            b"data:[DONE]\r\n\r\n",
            stream_event({}, finish="stop"),
            stream_event({}, finish="tool_calls").removesuffix(b"\n\n"),
            b'data: {"error":{"message":"m"}}\n\n',
            b"event: error\ndata: overloaded\n\n",
            b'data: {"error_type":"t","error_message":"m"}\n\n',
        ],
    )
    def test_a_finish_done_or_an_error_makes_it_whole(self, end: bytes) -> None:
        stream = stream_event({"content": "a"}) + end
        assert read(stream).broken is None
        assert read(stream, *range(1, len(stream))).broken is None

    @pytest.mark.parametrize(
        "stream",
        [
            b"",
            b": only a comment\n\n",
            stream_event({"content": "a"}),
            b"".join(stream_events("a")[:-1]) + b'data: {"usage": {"prom',
            stream_event({"content": "a"}, finish="stop") + b"data: [DO",
            stream_event({"content": "a"}) + b'data: {"error": null, "choices": []}\n\n',
        ],
    )
    def test_anything_else_is_broken(self, stream: bytes) -> None:
        assert read(stream).broken is not None

    @given(st.data())
    def test_in_any_chunking_every_event_counts_that_names_something(
        self, data: st.DataObject
    ) -> None:
        """However many plain events stand around it, and whatever stands in their texts."""
        texts = st.sampled_from(["a", "error", "D", '"error"', '"usage": {', "[DONE]", "event: x"])
        plain = [stream_event({"content": text}) for text in data.draw(st.lists(texts, max_size=9))]
        named = data.draw(
            st.sampled_from(
                [
                    event({"choices": [{"delta": {}, "finish_reason": "error"}]}),
                    event({"error": {"message": "m"}}),
                    event({"error_type": "t", "error_message": "m"}),
                    b"event: error\ndata: overloaded\n\n",
                    b'data: {"usage" : {"prompt_tokens": 9}}\n\ndata: [DONE]\n\n',
                    b"data: [DONE]\n\n",
                ]
            )
        )
        at = data.draw(st.integers(0, len(plain)))
        stream = b"".join([stream_event({"content": "a"}), *plain[:at], named, *plain[at:]])
        tap = read(stream, *data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
        assert tap.broken is None
        assert (tap.usage is None) is (b'usage" :' not in named)
        assert tap.finish_reason == ("error" if b'reason": "error' in named else None)

    def test_whole_events_that_name_nothing_are_not_parsed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tap = EventTap()
        tap.feed(stream_event({"content": "a"}))
        parsed = 0
        feed = tap._parser.feed

        def counting(chunk: bytes) -> Any:
            nonlocal parsed
            parsed += 1
            return feed(chunk)

        monkeypatch.setattr(tap._parser, "feed", counting)
        for _ in range(10):
            tap.feed(stream_event({"content": "b"}))
        assert parsed == 0
        tap.feed(stream_event({}, finish="stop"))
        assert parsed == 1

    def test_of_many_events_in_one_piece_only_those_that_matter_are_parsed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        role, first = stream_event({"role": "assistant"}), stream_event({"content": "a"})
        more, last = stream_event({"content": "b"}), stream_event({}, finish="stop")
        tap = EventTap()
        feed, parsed = tap._parser.feed, bytearray()

        def noting(chunk: bytes) -> Any:
            parsed.extend(chunk)
            return feed(chunk)

        monkeypatch.setattr(tap._parser, "feed", noting)
        tap.feed(role + first + 10 * more + last + b"data: [DONE]\n\n")
        tap.end()
        assert parsed == role + first + last + b"data: [DONE]\n\n"
        assert tap.broken is None
        assert tap.finish_reason == "stop"


class TestBodies:
    def test_usage_and_finish_reason_are_read_at_the_end(self) -> None:
        tap = BodyTap()
        body = json.dumps(completion("x", usage=USAGE)).encode()
        tap.feed(body[:20])
        tap.feed(body[20:])
        assert (tap.usage, tap.body(), tap.kept_bytes) == (None, body, len(body))
        tap.end()
        assert tap.usage == USAGE
        assert tap.finish_reason == "stop"
        assert tap.broken is None

    def test_beyond_the_bound_nothing_is_kept(self) -> None:
        tap = BodyTap(max_bytes=10)
        tap.feed(b"x" * 8)
        tap.feed(b"x" * 8)
        assert tap.overflowed
        tap.feed(b"x" * 100)
        assert tap.kept_bytes == 0
        tap.end()
        assert tap.usage is None

    @pytest.mark.parametrize("body", [b"", b'{"usage": {', b'[{"usage": {"a": 1}}]'])
    def test_what_cannot_be_read_is_none(self, body: bytes) -> None:
        tap = BodyTap()
        tap.feed(body)
        tap.end()
        assert tap.usage is None
        assert tap.finish_reason is None
