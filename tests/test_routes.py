"""The HTTP edge on a real socket: what is relayed, what is bounded, who leaves when.

Rows R088, R089, R093, R099, R104, R115, R121, R150.
"""

import asyncio
import contextlib
import gzip
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import brotli  # type: ignore[import-untyped]
import pytest

from proxy.core.errors import InvalidRequest
from proxy.own_work import COMMENT
from proxy.provider import Timeouts
from proxy.relay import Upstream
from proxy.wire import MAX_MODEL_CHARS
from tests.edge import chat_body, serve_edge
from tests.fake_provider import FakeProvider, running, stream_event, stream_events
from tests.raw_client import ask, ask_chat, connected
from tests.raw_provider import RawConnection, RawProvider
from tests.serving import Served, wait_until


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeProvider]:
    with running(FakeProvider()) as provider:
        yield provider


@pytest.fixture(scope="module")
def edge(fake: FakeProvider) -> Iterator[Served]:
    with serve_edge(fake.url, max_body_bytes=2 << 20) as served:
        yield served


class TestPassingThrough:
    @pytest.mark.parametrize(
        ("method", "target"),
        [
            ("GET", "/v1/models?limit=2&after=a%20b"),
            ("POST", "/v1/embeddings"),
            ("POST", "/v1/responses"),
            ("POST", "/v1/audio/speech"),
            ("PUT", "/v1/unknown/%2F/x"),
            ("DELETE", "/v1/files/f-1"),
            ("PATCH", "/v1/x"),
            ("OPTIONS", "/v1/chat/completions"),
            ("GET", "/v1/chat/completions"),
        ],
    )
    def test_every_path_is_relayed(
        self, method: str, target: str, fake: FakeProvider, edge: Served
    ) -> None:
        body = None if method in ("GET", "OPTIONS") else bytes(range(256))
        answer = ask(edge.port, method, target, body, "X-Mine: 1", "Content-Type: a/b")
        seen = fake.requests[-1]
        assert answer.status == 200
        assert seen.method == method
        sent = seen.path + (f"?{seen.query.decode()}" if seen.query else "")
        assert sent == target
        assert seen.body == (body or b"")
        assert seen.header("x-mine") == "1"
        assert answer.body == (body or b"")

    def test_a_chats_bytes_arrive_as_they_were_sent(self, fake: FakeProvider, edge: Served) -> None:
        body = (
            b' {"model" : "m",\n "messages":[{"role":"user","content":"\\u00e9 \xc3\xa9"}],\t'
            b'"n":123456789012345678901234567890,"x":1.0,"x":2, "stream":false } '
        )
        ask_chat(edge.port, body)
        assert fake.requests[-1].body == body

    def test_nothing_is_added_to_a_clients_headers(self, fake: FakeProvider, edge: Served) -> None:
        """R115: Host is the upstream's, addresses stay here, custom names pass."""
        custom = [
            "HTTP-Referer: https://a",
            "X-Title: t",
            "OpenAI-Organization: o",
            "OpenAI-Beta: b",
            "Idempotency-Key: k",
            "Authorization: Bearer c",
        ]
        dropped = ["Host: proxy.local", "X-Forwarded-Host: p", "X-Real-IP: 1.2.3.4"]
        ask_chat(edge.port, chat_body(), *custom, *dropped, "X-Tidegate-Mode: on")
        names = [name for name, _ in fake.requests[-1].headers]
        assert sorted(names) == sorted(
            [b"host", b"content-type", b"content-length"]
            + [line.partition(":")[0].lower().encode() for line in custom]
        )
        assert fake.requests[-1].header("host") == fake.url.removeprefix("http://")

    @pytest.mark.parametrize(
        "body",
        [
            *(b"", b"{", b"[]", b'{"messages":3}', b"\xff", b"null"),
            pytest.param(
                json.dumps(chat_body(model="m" * (MAX_MODEL_CHARS + 1))).encode(),
                id="a name without end",
            ),
        ],
    )
    def test_what_is_no_chat_is_relayed_untouched(
        self, body: bytes, fake: FakeProvider, edge: Served
    ) -> None:
        fake.next(status=400, body=b'{"error":{"message":"its own"}}')
        answer = ask_chat(edge.port, body)
        assert fake.requests[-1].body == body
        assert answer.status == 400
        assert answer.json["error"]["message"] == "its own"
        assert answer.one("x-tidegate-action") is None

    def test_mode_off_passes_a_chat_by_the_pipeline(self, fake: FakeProvider, edge: Served) -> None:
        assert ask_chat(edge.port, chat_body()).one("x-tidegate-action") == "none"
        answer = ask_chat(edge.port, chat_body(), "X-Tidegate-Mode: off")
        assert answer.status == 200
        assert answer.one("x-tidegate-action") is None

    @pytest.mark.parametrize(
        "target",
        [
            "/openai/deployments/x/chat/completions?api-version=1",
            "/api/v1/chat/completions",
            "/v1beta/openai/chat/completions",
            "/chat/completions",
        ],
    )
    def test_every_chat_path_walks_the_pipeline(self, target: str, edge: Served) -> None:
        answer = ask_chat(edge.port, chat_body(), target=target)
        assert answer.one("x-tidegate-action") == "none"

    def test_a_configured_key_serves_clients_without_one(self, fake: FakeProvider) -> None:
        with serve_edge(fake.url, api_key="sk-op") as served:
            ask_chat(served.port, chat_body())
        assert fake.requests[-1].header("authorization") == "Bearer sk-op"


@pytest.mark.parametrize(
    ("target", "body", "headers"),
    [
        ("/v1/chat/completions", b'{"model":"other-1","messages":[{"role":"user"}]}', ()),
        ("/v1/chat/completions", b'{"model":"other-1","messages":[]}', ()),
        (
            "/v1/chat/completions",
            gzip.compress(b'{"model":"other-1","messages":[{}]}'),
            ("Content-Encoding: gzip", "X-Tidegate-Mode: off"),
        ),
        ("/v1/embeddings", b'{"input":"x", "model":"other-1"}', ()),
        ("/v1/responses", b'{"input":"' + b"x" * (2 << 20) + b'", "model":"other-1"}', ()),
        ("/openai/deployments/other-1/embeddings", b'{"input":"x"}', ()),
    ],
)
def test_whatever_names_a_model_goes_to_its_upstream(
    target: str, body: bytes, headers: tuple[str, ...], fake: FakeProvider
) -> None:
    with running(FakeProvider()) as other:
        upstreams = [Upstream("default", fake.url), Upstream("other", other.url)]
        before = len(fake.requests)
        with serve_edge(
            fake.url,
            upstreams=upstreams,
            upstream_for=lambda model: upstreams[model == "other-1"],
        ) as served:
            json_type = "Content-Type: application/json"
            assert ask(served.port, "POST", target, body, json_type, *headers).status == 200
        assert [seen.body for seen in other.requests] == [body]
        assert len(fake.requests) == before


class TestRequestBodies:
    def test_a_chunked_chat_arrives_once_with_its_length(
        self, fake: FakeProvider, edge: Served
    ) -> None:
        """R121."""
        body = json.dumps(chat_body()).encode()
        calls = len(fake.requests)
        framed = b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (5, body[:5], len(body) - 5, body[5:])
        answer = ask(
            edge.port, "POST", "/v1/chat/completions", framed, "Transfer-Encoding: chunked"
        )
        assert answer.status == 200
        assert len(fake.requests) == calls + 1
        assert fake.requests[-1].body == body
        assert fake.requests[-1].header_list("content-length") == [str(len(body))]
        assert fake.requests[-1].header("transfer-encoding") is None

    def test_expect_is_answered_here(self, fake: FakeProvider, edge: Served) -> None:
        body = json.dumps(chat_body()).encode()
        with connected(edge.port) as client:
            client.send(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body)
            )
            assert client.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(body)
            assert client.read_answer().status == 200
        assert fake.requests[-1].body == body
        assert fake.requests[-1].header("expect") is None

    @pytest.mark.parametrize("coding", ["gzip", "br"])
    def test_a_compressed_chat_is_forwarded_decoded(
        self, coding: str, fake: FakeProvider, edge: Served
    ) -> None:
        body = json.dumps(chat_body()).encode()
        packed = gzip.compress(body) if coding == "gzip" else brotli.compress(body)
        answer = ask_chat(edge.port, packed, f"Content-Encoding: {coding}")
        assert answer.one("x-tidegate-action") == "none"
        seen = fake.requests[-1]
        assert seen.body == body
        assert seen.header_list("content-length") == [str(len(body))]
        assert seen.header("content-encoding") is None

    @pytest.mark.parametrize(("coding", "body"), [("compress", b"x"), ("gzip", b"not gzip")])
    def test_a_coding_that_cannot_be_undone_passes_untouched(
        self, coding: str, body: bytes, fake: FakeProvider, edge: Served
    ) -> None:
        ask_chat(edge.port, body, f"Content-Encoding: {coding}")
        assert fake.requests[-1].body == body
        assert fake.requests[-1].header("content-encoding") == coding

    def test_a_bomb_is_413(self, edge: Served) -> None:
        bomb = gzip.compress(bytes(20 << 20))
        answer = ask_chat(edge.port, bomb, "Content-Encoding: gzip")
        assert answer.status == 413
        assert answer.json["error"]["code"] == "request_too_large"

    @pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/files"])
    @pytest.mark.parametrize("chunked", [False, True])
    def test_a_body_over_the_limit_is_413(
        self, target: str, chunked: bool, fake: FakeProvider, edge: Served
    ) -> None:
        calls = len([r for r in fake.requests if r.path == target])
        body = bytes(3 << 20)
        if chunked:
            framed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
            answer = ask(edge.port, "POST", target, framed, "Transfer-Encoding: chunked")
        else:
            answer = ask(edge.port, "POST", target, body)
        assert answer.status == 413
        assert answer.json["error"]["type"] == "invalid_request_error"
        assert answer.one("date") is not None
        assert len([r for r in fake.requests if r.path == target]) == calls

    def test_a_declared_length_over_the_limit_is_refused_without_reading(
        self, edge: Served
    ) -> None:
        with connected(edge.port) as client:
            client.send(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Expect: 100-continue\r\nContent-Length: 999999999\r\n\r\n"
            )
            assert client.read_answer().status == 413

    def test_an_upload_streams_through(self, fake: FakeProvider) -> None:
        """Its first bytes are with the provider before the client sends the last."""
        arrived = threading.Event()

        def handler(connection: RawConnection) -> None:
            head = connection.read_head()
            assert b"content-length: 3000000" in head.lower()
            got = connection.read_some()
            arrived.set()
            while len(got) < 3_000_000:
                got += connection.read_some()
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

        with (
            RawProvider(handler) as provider,
            serve_edge(provider.url) as served,
            connected(served.port) as client,
        ):
            head = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000000\r\n\r\n"
            client.send(head + bytes(2_000_000))
            assert arrived.wait(5)
            client.send(bytes(1_000_000))
            assert client.read_answer().body == b"ok"

    def test_an_upload_whose_client_leaves_is_given_up(self) -> None:
        closed = threading.Event()

        def handler(connection: RawConnection) -> None:
            connection.read_head()
            if connection.wait_closed(seconds=5):
                closed.set()

        with RawProvider(handler) as provider, serve_edge(provider.url) as served:
            with connected(served.port) as client:
                head = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000000\r\n"
                client.send(head + b"\r\n" + bytes(2_000_000))
                wait_until(lambda: provider.connections == 1)
                client.leave()
            assert closed.wait(5)


class TestRefusals:
    @pytest.mark.parametrize(
        ("method", "target", "headers", "status"),
        [
            ("TRACE", "/v1/models", [], 405),
            ("GET", "/v1/realtime", ["Upgrade: websocket", "Connection: Upgrade"], 426),
            ("GET", "/v1/../admin", [], 400),
            ("GET", "/v1/%2e%2e/admin", [], 400),
            ("GET", "/v1/" + "x" * 20000, [], 414),
        ],
    )
    def test_are_in_the_envelope_and_reach_no_provider(
        self,
        method: str,
        target: str,
        headers: list[str],
        status: int,
        fake: FakeProvider,
        edge: Served,
    ) -> None:
        calls = len(fake.requests)
        answer = ask(edge.port, method, target, None, *headers)
        assert answer.status == status
        assert set(answer.json["error"]) == {"message", "type", "param", "code"}
        assert answer.one("date") is not None
        assert len(fake.requests) == calls

    def test_client_keys_let_only_their_holders_in(self, fake: FakeProvider) -> None:
        with serve_edge(fake.url, client_keys=("tg-1",), api_key="sk-op") as served:
            calls = len(fake.requests)
            refused = ask_chat(served.port, chat_body(), "Authorization: Bearer wrong")
            assert refused.status == 401
            assert refused.json["error"]["code"] == "invalid_api_key"
            assert len(fake.requests) == calls
            answer = ask_chat(served.port, chat_body(), "Authorization: Bearer tg-1")
            assert answer.status == 200
            assert fake.requests[-1].header_list("authorization") == ["Bearer sk-op"]


class TestErrorsBeforeTheFirstByte:
    """R093, R099: a true status and JSON, never an event stream."""

    @pytest.mark.parametrize("stream", [True, False])
    def test_no_connection_is_502(self, stream: bool) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with serve_edge(url) as served:
            answer = ask_chat(served.port, chat_body(stream=stream))
        assert answer.status == 502
        assert answer.one("content-type") == "application/json"
        assert answer.json["error"]["code"] == "upstream_unreachable"

    def test_no_first_byte_is_504_and_others_go_on(self, fake: FakeProvider) -> None:
        timeouts = Timeouts(first_byte_seconds=0.3)
        with serve_edge(fake.url, timeouts=timeouts) as served:
            seen = len(fake.requests)
            fake.next(never=True)
            with connected(served.port) as stalled:
                stalled.chat(chat_body(stream=True))
                wait_until(lambda: len(fake.requests) == seen + 1)
                assert ask_chat(served.port, chat_body()).status == 200
                answer = stalled.read_answer()
        assert answer.status == 504
        assert answer.json["error"]["code"] == "upstream_timeout"


class TestLeaving:
    """R088, R089: the provider sees the client leave within a second, whatever is going on."""

    @pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/responses"])
    def test_while_the_providers_headers_are_awaited(
        self, target: str, fake: FakeProvider, edge: Served
    ) -> None:
        seen, gone = len(fake.requests), fake.cancelled
        fake.next(never=True)
        with connected(edge.port) as client:
            client.chat(chat_body(), target=target)
            wait_until(lambda: len(fake.requests) == seen + 1)
            client.leave()
            wait_until(lambda: fake.cancelled == gone + 1, seconds=1)

    def test_in_mid_stream(self, fake: FakeProvider, edge: Served) -> None:
        gone, sent = fake.cancelled, fake.sent_chunks
        events = [stream_event({"content": str(n)}) for n in range(100)]
        fake.next(chunks=events, content_type="text/event-stream", pause=0.05)
        with connected(edge.port) as client:
            client.chat(chat_body(stream=True))
            chunks = client.chunks(client.read_head())
            for _ in range(5):
                next(chunks)
            client.leave()
            wait_until(lambda: fake.cancelled == gone + 1, seconds=1)
        assert fake.sent_chunks - sent < 40

    def test_before_the_first_event(self, fake: FakeProvider, edge: Served) -> None:
        gone = fake.cancelled
        fake.next(chunks=[b": wait\n\n"] * 100, content_type="text/event-stream", pause=0.05)
        sent = fake.sent_chunks
        with connected(edge.port) as client:
            client.chat(chat_body(stream=True))
            wait_until(lambda: fake.sent_chunks > sent)
            client.leave()
            wait_until(lambda: fake.cancelled == gone + 1, seconds=1)

    def test_during_own_work(self, fake: FakeProvider) -> None:
        working, cancelled = threading.Event(), threading.Event()

        async def before(request: Any, caller: Any, own_work: Any) -> None:
            with own_work.busy():
                working.set()
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    cancelled.set()
                    raise

        calls = len(fake.requests)
        with serve_edge(fake.url, before=before) as served, connected(served.port) as client:
            client.chat(chat_body(stream=True))
            assert working.wait(5)
            client.leave()
            assert cancelled.wait(1)
        assert len(fake.requests) == calls

    def test_a_client_that_does_not_read_holds_the_provider_back(self) -> None:
        """Memory stays bounded: what the client does not take is not read."""
        sent = 0
        stop = threading.Event()
        event = stream_event({"content": "x" * 60_000})

        def handler(connection: RawConnection) -> None:
            nonlocal sent
            connection.read_request()
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            connection.socket.settimeout(0.3)
            with contextlib.suppress(TimeoutError):
                for _ in range(2000):
                    connection.send(event)
                    sent += len(event)
            stop.set()

        with (
            RawProvider(handler) as provider,
            serve_edge(provider.url) as served,
            connected(served.port) as client,
        ):
            client.chat(chat_body(stream=True))
            assert stop.wait(10)
        assert sent < 60 << 20


class TestHeartbeats:
    def edge_that_works(self, fake: FakeProvider, seconds: float, **options: Any) -> Any:
        async def before(request: Any, caller: Any, own_work: Any) -> None:
            with own_work.busy():
                await asyncio.sleep(seconds)
            if request.params.get("fails"):
                raise InvalidRequest("it failed", code="failed")

        return serve_edge(fake.url, before=before, **options)

    def test_long_own_work_sends_comments_then_the_stream(self, fake: FakeProvider) -> None:
        fake.next(coding="gzip")  # asked for or not
        with self.edge_that_works(fake, 0.5, heartbeat_seconds=0.1) as served:
            answer = ask_chat(served.port, chat_body(stream=True), "Accept-Encoding: gzip")
        assert answer.status == 200
        assert answer.one("content-type") == "text/event-stream; charset=utf-8"
        assert answer.one("date") is not None
        assert answer.one("content-encoding") is None
        assert answer.chunks[0][0] < 0.45
        beats = answer.body.count(COMMENT)
        assert beats >= 2
        assert answer.body == COMMENT * beats + b"".join(stream_events("It is done, as you asked."))
        assert answer.complete
        assert fake.requests[-1].header_list("accept-encoding") == ["identity"]

    @pytest.mark.parametrize(
        ("script", "message"),
        [
            ({"status": 429, "body": b'{"error":{"message":"slow down"}}'}, "slow down"),
            ({"status": 502, "body": b"<html>"}, "status 502"),
            ({"body": b'{"choices":[{"message":{"content":"x"}}]}'}, "something else"),
        ],
    )
    def test_a_failure_after_them_is_one_error_event(
        self, script: dict[str, Any], message: str, fake: FakeProvider
    ) -> None:
        fake.next(**script)
        with self.edge_that_works(fake, 0.25, heartbeat_seconds=0.1) as served:
            answer = ask_chat(served.port, chat_body(stream=True))
        assert answer.status == 200
        events = answer.body.replace(COMMENT, b"")
        assert events.startswith(b"data: ")
        assert events.endswith(b"\n\n")
        assert message in json.loads(events.removeprefix(b"data: "))["error"]["message"]
        assert answer.complete

    def test_an_error_of_our_own_after_them_is_one_error_event(self, fake: FakeProvider) -> None:
        with self.edge_that_works(fake, 0.25, heartbeat_seconds=0.1) as served:
            answer = ask_chat(served.port, chat_body(stream=True, fails=True))
        events = answer.body.replace(COMMENT, b"")
        assert json.loads(events.removeprefix(b"data: "))["error"]["code"] == "failed"

    @pytest.mark.parametrize(("stream", "heartbeat_seconds"), [(True, 5), (True, 0), (False, 0.1)])
    def test_short_work_whole_answers_and_0_send_nothing(
        self, stream: bool, heartbeat_seconds: float, fake: FakeProvider
    ) -> None:
        options = {"heartbeat_seconds": heartbeat_seconds}
        with self.edge_that_works(fake, 0.25, **options) as served:
            answer = ask_chat(served.port, chat_body(stream=stream, fails=True))
        assert answer.status == 400
        assert answer.json["error"]["code"] == "failed"


def test_the_providers_own_comments_are_passed_on_after_the_time() -> None:
    """R104: the provider's 200 that says nothing for long is released."""
    go = threading.Event()

    def handler(connection: RawConnection) -> None:
        connection.read_request()
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n:\n\n")
        go.wait(5)
        connection.send(b"".join(stream_events("x")))

    with (
        RawProvider(handler) as provider,
        serve_edge(provider.url, hold_seconds=0.2) as served,
        connected(served.port) as client,
    ):
        client.chat(chat_body(stream=True))
        answer = client.read_head()
        chunks = client.chunks(answer)
        assert next(chunks)[1] == b":\n\n"
        go.set()
        assert b"".join(chunk for _, chunk in chunks) == b"".join(stream_events("x"))


def test_a_chat_writes_one_line_with_its_request_id(
    fake: FakeProvider, edge: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="proxy.routes")
    ask_chat(edge.port, chat_body("a secret text"), "Authorization: Bearer sk-secret")
    wait_until(lambda: any("chat model=" in r.getMessage() for r in caplog.records))
    lines = [r.getMessage() for r in caplog.records if r.name == "proxy.routes"]
    assert len(lines) == 1
    assert "ended=complete" in lines[0]
    assert "status=200" in lines[0]
    assert "secret" not in lines[0]


def test_log_lines_cannot_be_forged_by_a_model_name(
    edge: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="proxy.routes")
    ask_chat(edge.port, chat_body(model="x\nchat model=forged" + "y" * 900))
    wait_until(lambda: any("chat model=" in r.getMessage() for r in caplog.records))
    line = next(r.getMessage() for r in caplog.records if "chat model=" in r.getMessage())
    assert "\n" not in line
    assert len(line) < 400


def test_many_streams_at_once(fake: FakeProvider, edge: Served) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(edge.port)) for _ in range(50)]
        started = time.monotonic()
        for client in clients:
            client.chat(chat_body(stream=True))
        for client in clients:
            assert client.read_answer().complete
        assert time.monotonic() - started < 10
