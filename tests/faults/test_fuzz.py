"""Whatever bytes come in: bodies, event streams and errors are read or left, never a crash."""

import gzip
import json
import math
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.codings import CodingError, TooLarge, decode_bounded
from proxy.core.fingerprints import chain, meaning
from proxy.core.overflow import classify
from proxy.core.ranges import pair
from proxy.core.sse import EventParser
from proxy.core.surface import fold
from proxy.wire import read_chat
from tests.faults.cluster import cluster
from tests.faults.scale import figure, scaled
from tests.strategies import conversations

# 100,000 in all in the long mode, over the four tests.
INPUTS = settings(max_examples=scaled(150, 25_000), deadline=None)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "tool_calls", "id", "function", "name"]
            )
            | st.text(max_size=8),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)
bodies = st.builds(
    lambda fields: json.dumps(fields).encode(),
    st.dictionaries(
        st.sampled_from(["model", "messages", "tools", "stream", "max_tokens", "n"])
        | st.text(max_size=8),
        json_values,
        max_size=6,
    ),
)


@st.composite
def broken(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """A document cut, doubled, or with bytes of it replaced."""
    data = bytearray(draw(whole))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(data)


@INPUTS
@given(broken(bodies) | bodies | st.binary(max_size=200))
def test_bodies_are_read_or_left(body: bytes) -> None:
    """What is read can be walked to its surface, and its messages are its own bytes."""
    chat = read_chat(body)
    if chat is None:
        return
    pairing = pair(chat.history)
    prints = chain(b"k" * 32, [meaning(b"k" * 32, one) for one in chat.history], pairing)
    assert len(prints) == len(chat.history) == len(chat.raw_history)
    assert not fold(chat.history, pairing, ()).replaced
    for raw, message in zip(chat.raw_messages, chat.messages, strict=True):
        # NaN is no JSON, and unlike itself.
        if not any(isinstance(v, float) and math.isnan(v) for v in message.values()):
            assert isinstance(json.loads(raw), dict)


LINES = st.sampled_from(
    [b"data: ", b"data:", b"\r", b"\n", b"\r\n", b":", b"event: ", b"[DONE]", b"\xe2\x80\xa8"]
) | st.binary(max_size=6)


@INPUTS
@given(st.lists(LINES, max_size=30), st.lists(st.integers(0, 120), max_size=6))
def test_event_streams_are_the_same_events_however_they_are_cut(
    parts: Sequence[bytes], cuts: Sequence[int]
) -> None:
    stream = b"".join(parts)

    def parsed(pieces: Sequence[bytes]) -> list[bytes]:
        parser = EventParser()
        events = [event for piece in pieces for event in parser.feed(piece)]
        last = parser.end()
        return [event.data for event in (*events, *([last] if last is not None else []))]

    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(places)]
    assert parsed(pieces) == parsed([stream])


WORDS = st.sampled_from(
    [
        b"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        b'"code": "context_length_exceeded"',
        b"prompt is too long: 210000 tokens > 200000 maximum",
        b"image",
        b"rate limit",
        b"99999999999999999999999999",
        b"tokens",
    ]
)
errors = st.builds(
    lambda text, extra: json.dumps({"error": {"message": text, **extra}}).encode(),
    st.text(max_size=60) | WORDS.map(bytes.decode),
    st.dictionaries(st.sampled_from(["type", "code", "param"]), json_values, max_size=3),
)


@INPUTS
@given(
    st.sampled_from([200, 400, 413, 422, 429, 500, 503]),
    broken(errors) | bodies | st.binary(max_size=120) | WORDS,
    st.booleans(),
)
def test_error_bodies_are_judged(status: int, body: bytes, in_stream: bool) -> None:
    refusal = classify(status, body, in_stream=in_stream)
    assert classify(status, body, in_stream=in_stream) == refusal
    for tokens in (refusal.window_tokens, refusal.prompt_tokens):
        assert tokens is None or tokens >= 0
    if status == 429:
        assert refusal.window_tokens is None


@INPUTS
@given(
    broken(st.binary(max_size=300).map(lambda data: gzip.compress(data, mtime=0)))
    | broken(st.binary(max_size=300).map(zlib.compress)),
    st.sampled_from([("gzip",), ("deflate",), ("br",), ("zstd",), ("gzip", "br")]),
)
def test_codings_are_undone_or_refused(data: bytes, codings: tuple[str, ...]) -> None:
    try:
        decoded = decode_bounded((data,), codings, max_bytes=1000)
    except (CodingError, TooLarge):
        return
    assert len(decoded) <= 1000


def test_no_body_is_a_500(tmp_path: Path) -> None:
    """Over HTTP, before a provider that answers 400 to what it cannot read."""
    store = f"sqlite:///{tmp_path}/tidegate.db"
    with (
        cluster(tmp_path, store) as running,
        httpx.Client(timeout=20, trust_env=False) as client,
    ):
        url = f"{running.replicas[0].url}/v1/chat/completions"
        sent = 0

        @settings(max_examples=scaled(80, 3000), deadline=None)
        @given(broken(bodies) | bodies | conversations().map(_as_chat))
        def ask(body: bytes) -> None:
            nonlocal sent
            sent += 1
            reply = client.post(url, content=body)
            # The strict provider, which is no part of this, may give up on nonsense by a 500.
            ours = "x-tidegate-request-id" in reply.headers
            assert reply.status_code < 500 or not ours, body

        ask()
        said = running.replicas[0].said()
        figure("fuzzed over HTTP", bodies=sent, tracebacks=said.count("Traceback"))
        assert "Traceback" not in said


def _as_chat(messages: object) -> bytes:
    return json.dumps({"model": "gpt-4o", "messages": messages}, default=str).encode()
