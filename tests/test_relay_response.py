"""What the client gets, on the wire.

Rows R093, R101 to R103, R105 to R108, R111 to R114, R116, R117, R120, R122, R127, R129 to R131.
"""

import gzip
import json
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.relay_response import error_of, response_headers
from tests.edge import chat_body, serve_edge
from tests.fake_provider import FakeProvider, completion, running, stream_event, stream_events
from tests.raw_client import Answer, ask, ask_chat, connected
from tests.raw_provider import RawConnection, RawProvider
from tests.serving import Served

STREAM = b"".join(stream_events("one two"))
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeProvider]:
    with running(FakeProvider()) as provider:
        yield provider


@pytest.fixture(scope="module")
def edge(fake: FakeProvider) -> Iterator[Served]:
    with serve_edge(fake.url) as served:
        yield served


def relayed(raw: bytes, *headers: str, stream: bool = True, slowly: bool = False) -> Answer:
    """What comes of one raw response."""

    def handler(connection: RawConnection) -> None:
        connection.read_request()
        head, _, body = raw.partition(b"\r\n\r\n")
        connection.send(head + b"\r\n\r\n")
        if slowly:
            connection.send_slowly(body)
        else:
            connection.send(body)

    with RawProvider(handler) as provider, serve_edge(provider.url) as served:
        return ask_chat(served.port, chat_body(stream=stream), *headers)


EVENT_STREAMS = {
    "chinese and emoji": stream_event({"content": "你好，世界 🙂"}) + STREAM,
    "crlf and no space": STREAM.replace(b"\n", b"\r\n").replace(b"data: ", b"data:"),
    "comments, events, ids, retry": b": ping\n\nevent: x.progress\ndata: {}\n\nid: 7\nretry: 1000\n"
    b"data: {}\n\n:\n\n" + STREAM,
    "usage in every shape": b'data: {"usage":{"prompt_tokens":1},"choices":[]}\n\n'
    b'data: {"usage":{"prompt_tokens":1},"choices":null}\n\ndata: {"usage":{"prompt_tokens":1}}\n\n'
    b'data: {"choices":[{"index":0,"delta":null}]}\n\n' + STREAM,
    "no final blank line": STREAM.removesuffix(b"\n"),
    "no final line end": STREAM.removesuffix(b"\n\n"),
    "U+2028 in text": stream_event({"content": "a"}).replace(b'"a"', '"a\u2028b"'.encode())
    + STREAM,
    "no done": stream_event({"content": "a"}) + stream_event({}, finish="stop"),
    "usage null on all, then one with choices empty": b'data: {"choices":[{"index":0,"delta":'
    b'{"content":"a"},"finish_reason":"stop"}],"usage":null}\n\ndata: {"choices":[],"usage":'
    b'{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0},'
    b'"prompt_cache_hit_tokens":0,"cost":0.1}}\n\ndata: [DONE]\n\n',
    "long comments first": b": " + b"x" * 5000 + b"\n\n" + STREAM,
}


class TestEventStreams:
    @pytest.mark.parametrize("name", EVENT_STREAMS)
    @pytest.mark.parametrize("slowly", [False, True])
    def test_bytes_pass_as_they_are(self, name: str, slowly: bool) -> None:
        stream = EVENT_STREAMS[name]
        answer = relayed(SSE_HEAD + b"\r\n" + stream, slowly=slowly)
        assert answer.status == 200
        assert answer.complete
        assert answer.body == stream

    def test_each_chunk_comes_by_itself_and_when_it_was_sent(self) -> None:
        """R096, R122: headers no later than the first chunk, no chunk waits for the next."""
        events = stream_events("one two three")
        go = threading.Semaphore(0)

        def handler(connection: RawConnection) -> None:
            connection.read_request()
            connection.send(SSE_HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            for event in events:
                go.acquire(timeout=5)
                connection.send(b"%x\r\n%s\r\n" % (len(event), event))
            connection.send(b"0\r\n\r\n")

        with (
            RawProvider(handler) as provider,
            serve_edge(provider.url) as served,
            connected(served.port) as client,
        ):
            client.chat(chat_body(stream=True), "Accept-Encoding: gzip")
            go.release(2)  # the first says nothing and is held until the second
            answer = client.read_head()
            chunks = client.chunks(answer)
            got = next(chunks)[1]
            while len(got) < len(events[0] + events[1]):
                got += next(chunks)[1]
            assert got == events[0] + events[1]
            for event in events[2:]:
                go.release()
                assert next(chunks)[1] == event
            assert list(chunks) == []
            assert answer.complete

    @pytest.mark.parametrize(
        "stream",
        [
            stream_event({"content": "a"}),
            stream_event({"content": "a"}) + b'data: {"choices":[{"del',
            STREAM.removesuffix(b"data: [DONE]\n\n") + b'data: {"usage":{"prompt_tok',
        ],
    )
    def test_one_that_ends_inside_an_event_or_without_a_finish_does_not_end_well(
        self, stream: bytes
    ) -> None:
        answer = relayed(SSE_HEAD + b"\r\n" + stream)
        assert answer.status == 200
        assert answer.body == stream
        assert not answer.complete

    def test_one_that_breaks_does_not_end_well(self) -> None:
        first = stream_event({"content": "a"})
        answer = relayed(
            SSE_HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(first), first)
        )
        assert answer.body == first
        assert not answer.complete

    def test_one_that_breaks_before_any_event_is_502(self) -> None:
        answer = relayed(SSE_HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        assert answer.status == 502
        assert answer.json["error"]["code"] == "upstream_broke"


class TestHeaders:
    SENT = (
        b"Server: up/1\r\nDate: Mon, 01 Jan 2024 00:00:00 GMT\r\nSet-Cookie: a=1\r\n"
        b"Set-Cookie: b=2\r\nx-request-id: r\r\nopenai-processing-ms: 5\r\ncf-ray: c\r\n"
        b"x-ratelimit-remaining-tokens: 9\r\nanthropic-ratelimit-unified-status: ok\r\n"
        b"ratelimit-policy: 1;w=1\r\nx-vendor-anything: v\r\nConnection: x-hop\r\nx-hop: 1\r\n"
    )

    @pytest.mark.parametrize("stream", [True, False])
    def test_all_but_hop_by_hop_reach_the_client_once(self, stream: bool) -> None:
        body = STREAM if stream else json.dumps(completion("x")).encode()
        kind = b"text/event-stream" if stream else b"application/json"
        head = b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\n" + self.SENT
        answer = relayed(head + b"\r\n" + body, stream=stream)
        assert answer.one("server") == "up/1"
        assert answer.one("date") == "Mon, 01 Jan 2024 00:00:00 GMT"
        assert answer.all("set-cookie") == ["a=1", "b=2"]
        for name in ("x-request-id", "openai-processing-ms", "cf-ray", "x-vendor-anything"):
            assert answer.one(name) is not None
        for name in ("x-ratelimit-remaining-tokens", "anthropic-ratelimit-unified-status"):
            assert answer.one(name) is not None
        assert answer.one("ratelimit-policy") == "1;w=1"
        assert answer.one("x-hop") is None
        assert answer.one("x-tidegate-action") == "none"
        assert answer.body == body

    def test_no_server_and_no_date_are_made_up(self) -> None:
        answer = relayed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", stream=False)
        assert answer.one("server") is None
        assert answer.one("date") is None

    @pytest.mark.parametrize(
        ("framing", "length"),
        [
            (b"Content-Length: 2\r\n\r\n{}", "2"),
            (b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", None),
            (b"Connection: close\r\n\r\n{}", None),
        ],
    )
    @pytest.mark.parametrize("stream", [True, False])
    def test_a_length_or_chunked_and_never_both(
        self, framing: bytes, length: str | None, stream: bool
    ) -> None:
        answer = relayed(b"HTTP/1.1 200 OK\r\n" + framing, stream=stream)
        assert answer.one("content-length") == length
        assert (answer.one("transfer-encoding") == "chunked") is (length is None)
        assert answer.body == b"{}"
        assert answer.complete

    def test_a_body_shorter_than_its_length_does_not_end_well(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: audio/wav\r\nContent-Length: 9\r\n\r\nabc"
        answer = relayed(head, stream=False)
        assert answer.body == b"abc"
        assert not answer.complete

    @pytest.mark.parametrize(
        ("method", "raw"),
        [
            ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
            ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
            ("GET", b"HTTP/1.1 304 Not Modified\r\nETag: e\r\nContent-Length: 5\r\n\r\n"),
        ],
    )
    def test_replies_without_a_body(self, method: str, raw: bytes) -> None:
        def handler(connection: RawConnection) -> None:
            for _ in range(2):
                connection.read_head()
                connection.send(raw)

        with (
            RawProvider(handler) as provider,
            serve_edge(provider.url) as served,
            connected(served.port) as client,
        ):
            for _ in range(2):  # nothing is left over on the connection
                client.request(method, "/v1/models")
                answer = client.read_answer(method=method)
                assert f" {answer.status} ".encode() in raw
                assert answer.one("transfer-encoding") is None
        if method == "HEAD":
            assert answer.one("content-length") == "5"

    @pytest.mark.parametrize("status", [299, 418, 499, 520, 529, 599])
    def test_unusual_statuses_pass(self, status: int, fake: FakeProvider, edge: Served) -> None:
        fake.next(status=status, body=b"{}")
        assert ask_chat(edge.port, chat_body()).status == status


class TestHeadersAsValues:
    def passed(self, sent: list[tuple[bytes, bytes]], **how: Any) -> list[tuple[bytes, bytes]]:
        options: dict[str, Any] = {"decoded": False, "bodiless": False, "added": {}}
        return response_headers(sent, **(options | how))

    def test_block_list_only(self) -> None:
        kept = [
            (b"Server", b"up"),
            (b"Date", b"d"),
            (b"Set-Cookie", b"a=1"),
            (b"Set-Cookie", b"b=2"),
            (b"x-ratelimit-limit-tokens", b"1"),
            (b"anthropic-ratelimit-unified-status", b"ok"),
            (b"ratelimit-policy", b"1;w=1"),
            (b"retry-after", b"7"),
            (b"retry-after-ms", b"7000"),
            (b"Content-Length", b"5"),
        ]
        dropped = [(b"Transfer-Encoding", b"chunked"), (b"Connection", b"X-Hop"), (b"x-hop", b"1")]
        assert self.passed([*kept, *dropped]) == kept

    def test_a_decoded_body_loses_its_coding_and_length(self) -> None:
        sent = [(b"Content-Encoding", b"gzip"), (b"Content-Length", b"5"), (b"a", b"1")]
        assert self.passed(sent, decoded=True) == [(b"a", b"1")]

    def test_a_status_without_a_body_has_no_length(self) -> None:
        assert self.passed([(b"content-length", b"5"), (b"etag", b"e")], bodiless=True) == [
            (b"etag", b"e")
        ]

    def test_our_own_headers_replace_an_upstreams_of_that_name(self) -> None:
        sent = [(b"X-Tidegate-Action", b"theirs"), (b"a", b"1")]
        assert self.passed(sent, added={"x-tidegate-action": "none"}) == [
            (b"a", b"1"),
            (b"x-tidegate-action", b"none"),
        ]


class TestErrors:
    @pytest.mark.parametrize(
        ("status", "kind", "body"),
        [
            (401, "application/json", b'{"error":{"message":"no"}}'),
            (
                403,
                "application/json",
                b'{"error":"Permission denied","error_code":"x","request_id":"r"}',
            ),
            (404, "application/json; charset=utf-8", b'{"detail":"Not Found"}'),
            (422, "application/json", b'{ "detail" : [ ] }\n'),
            (429, "application/json", b'{"error":{"type":"tokens"}}'),
            (500, "text/plain", b""),
            (502, "text/html", b"<html>bad gateway</html>"),
            (503, "application/json", b'{"error":{"type":"overloaded"}}'),
        ],
    )
    @pytest.mark.parametrize("stream", [True, False])
    def test_the_providers_own_pass_byte_for_byte_after_one_call(
        self, status: int, kind: str, body: bytes, stream: bool, fake: FakeProvider, edge: Served
    ) -> None:
        calls = len(fake.requests)
        fake.next(
            status=status,
            body=body,
            content_type=kind,
            headers=[(b"retry-after", b"7"), (b"retry-after-ms", b"7001")],
        )
        answer = ask_chat(edge.port, chat_body(stream=stream))
        assert (answer.status, answer.one("content-type"), answer.body) == (status, kind, body)
        assert answer.one("retry-after") == "7"
        assert answer.one("retry-after-ms") == "7001"
        assert len(fake.requests) == calls + 1

    def test_one_in_mid_stream_is_not_replayed(self, fake: FakeProvider, edge: Served) -> None:
        """R094."""
        calls = len(fake.requests)
        events = [stream_event({"content": str(n)}) for n in range(5)]
        events.append(b'data: {"error":{"message":"overloaded","code":529}}\n\n')
        fake.next(chunks=events, content_type="text/event-stream")
        answer = ask_chat(edge.port, chat_body(stream=True))
        assert answer.body == b"".join(events)
        assert answer.complete
        assert len(fake.requests) == calls + 1


class TestCodings:
    PLAIN = json.dumps(completion("x" * 300)).encode()

    @pytest.mark.parametrize("coding", ["gzip", "deflate"])
    @pytest.mark.parametrize("stream", [True, False])
    def test_compressed_bytes_pass_to_a_client_that_accepts_them(
        self, coding: str, stream: bool, fake: FakeProvider, edge: Served
    ) -> None:
        fake.next(coding=coding, pause=0.02)
        answer = ask_chat(edge.port, chat_body(stream=stream), f"Accept-Encoding: {coding}")
        assert answer.one("content-encoding") == coding
        plain = zlib.decompress(answer.body, wbits=47)
        expected = "It is done, as you asked."
        if stream:
            assert plain == b"".join(stream_events(expected))
            assert len(answer.chunks) > 3
        else:
            assert json.loads(plain)["choices"][0]["message"]["content"] == expected

    @pytest.mark.parametrize("stream", [True, False])
    @pytest.mark.parametrize("accepted", [["Accept-Encoding: identity"], []])
    def test_a_client_that_accepts_none_gets_plain_bytes(
        self, stream: bool, accepted: list[str], fake: FakeProvider, edge: Served
    ) -> None:
        fake.next(coding="gzip")
        answer = ask_chat(edge.port, chat_body(stream=stream), *accepted)
        assert answer.one("content-encoding") is None
        assert answer.complete
        if stream:
            assert answer.body == b"".join(stream_events("It is done, as you asked."))
        else:
            assert answer.json["object"] == "chat.completion"

    def test_a_compressed_error_passes_as_it_is(self, fake: FakeProvider, edge: Served) -> None:
        packed = gzip.compress(b'{"error":{"message":"m"}}', mtime=0)
        fake.next(status=400, body=packed, headers=[(b"content-encoding", b"gzip")])
        answer = ask_chat(edge.port, chat_body(), "Accept-Encoding: gzip")
        assert answer.body == packed
        assert answer.one("content-length") == str(len(packed))

    def test_what_was_accepted_is_what_is_asked_for(self, fake: FakeProvider, edge: Served) -> None:
        ask_chat(edge.port, chat_body(), "Accept-Encoding: zstd;q=0.5, br")
        assert fake.requests[-1].header_list("accept-encoding") == ["zstd;q=0.5, br"]
        ask_chat(edge.port, chat_body())
        assert fake.requests[-1].header_list("accept-encoding") == []


def test_extra_keys_and_odd_white_space_of_an_answer_stay(fake: FakeProvider, edge: Served) -> None:
    """R127, R108."""
    body = (
        b'{ "choices":[{"index":0,"message":{"content":"a","audio":{"id":"x"},"x":1},'
        b'"logprobs":{"content":[]},"y":2.0},\n{"index":1,"message":{"content":"b"}}],'
        b'"usage":{"prompt_tokens":1,"completion_tokens":0,"prompt_tokens_details":'
        b'{"cached_tokens":0},"cost":1e-7},"n":123456789012345678901234567890 }\n'
    )
    fake.next(body=body)
    assert ask_chat(edge.port, chat_body()).body == body


def test_binary_replies_of_other_paths_pass(fake: FakeProvider, edge: Served) -> None:
    blob = bytes(range(256)) * 1000
    fake.next(body=blob, content_type="audio/mpeg")
    answer = ask(edge.port, "POST", "/v1/audio/speech", b'{"input":"x"}')
    assert answer.body == blob
    assert answer.one("content-type") == "audio/mpeg"


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, b'{"error":{"message":"own"}}', "own"),
        (200, b'{"choices":[]}', "something else"),
        (502, b"<html>", "status 502: <html>"),
        (500, b"", "status 500"),
        (400, b"[1]", "status 400"),
    ],
)
def test_what_becomes_an_error_event(status: int, body: bytes, message: str) -> None:
    error: Any = error_of(status, body)
    assert message in error["error"]["message"]


def test_streams_pass_within_100_ms(fake: FakeProvider, edge: Served) -> None:
    """R096: measured over one stream of chunks 30 ms apart, by the same clock."""
    sent_before = len(fake.sent_at)
    fake.next(pause=0.03)
    with connected(edge.port) as client:
        client.chat(chat_body(stream=True))
        answer = client.read_head()
        arrived = [time.monotonic() for _ in client.chunks(answer)]
    sent = fake.sent_at[sent_before:]
    assert len(arrived) >= len(sent) - 1
    late = [b - a for a, b in zip(sent[-len(arrived) :], arrived, strict=True)]
    assert sorted(late)[len(late) // 2] < 0.1
