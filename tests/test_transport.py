"""What goes out, byte for byte, and how the way out fails. Row R148."""

import asyncio
import os
import ssl
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
import certifi
import pytest
from aiohttp.http_exceptions import HttpProcessingError

from proxy.relay import ProviderRequest
from proxy.transport import (
    WRITTEN_AT_ONCE_BYTES,
    Response,
    StaleConnection,
    Timeouts,
    Transport,
    WriteStalled,
)
from tests.raw_provider import RawConnection, RawProvider

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
TIMEOUTS = Timeouts(5, 5, 5, 5)


def request(
    url: str,
    *,
    method: str = "POST",
    target: str = "/x",
    headers: Sequence[tuple[bytes, bytes]] = (),
    body: bytes | AsyncIterator[bytes] = b"",
) -> ProviderRequest:
    return ProviderRequest(method, url, target, tuple(headers), body)


async def read(response: Response, got: list[bytes] | None = None) -> bytes:
    chunks = got if got is not None else []
    try:
        while chunk := await response.stream.read():
            chunks.append(chunk)
        return b"".join(chunks)
    finally:
        await response.stream.aclose()


@asynccontextmanager
async def limited(timeouts: Timeouts) -> AsyncIterator[Transport]:
    made = Transport(timeouts, max_connections=10_000)
    try:
        yield made
    finally:
        await made.aclose()


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    async with limited(TIMEOUTS) as made:
        yield made


class TestNothingIsAdded:
    async def test_a_request_is_its_line_its_headers_and_host(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        seen: list[tuple[bytes, bytes]] = []

        def handler(connection: RawConnection) -> None:
            seen.append(connection.read_request())
            connection.send(OK)

        headers = [(b"X-B", b"1"), (b"x-a", b"2"), (b"X-B", b"3"), (b"content-length", b"4")]
        async with RawProvider(handler) as provider:
            sent = request(
                provider.url,
                target="/v1/%2F../a%7e;b?x=%20+&y",
                headers=[*headers, (b"x-utf8", "é".encode()), (b"x-latin", b"\xe9")],
                body=b"body",
            )
            assert await read(await transport.send(sent)) == b"ok"
        head, body = seen[0]
        assert head.split(b"\r\n") == [
            b"POST /v1/%2F../a%7e;b?x=%20+&y HTTP/1.1",
            b"Host: " + provider.url.removeprefix("http://").encode(),
            b"X-B: 1",
            b"x-a: 2",
            b"X-B: 3",
            b"content-length: 4",
            b"x-utf8: " + "é".encode(),
            b"x-latin: " + "é".encode(),
            b"",
            b"",
        ]
        assert body == b"body"

    async def test_a_get_has_no_body_and_no_length(self, transport: Transport) -> None:
        seen: list[bytes] = []

        def handler(connection: RawConnection) -> None:
            seen.append(connection.read_head())
            connection.send(OK)

        async with RawProvider(handler) as provider:
            await read(await transport.send(request(provider.url, method="GET")))
        assert seen[0].startswith(b"GET /x HTTP/1.1\r\nHost: ")
        assert seen[0].count(b"\r\n") == 3

    async def test_cookies_of_a_response_are_not_sent_with_the_next_request(
        self, transport: Transport
    ) -> None:
        seen: list[bytes] = []

        def handler(connection: RawConnection) -> None:
            for _ in range(2):
                seen.append(connection.read_head())
                connection.send(OK.replace(b"\r\n\r\n", b"\r\nSet-Cookie: a=1; Path=/\r\n\r\n"))

        async with RawProvider(handler) as provider:
            for _ in range(2):
                response = await transport.send(request(provider.url))
                assert (b"Set-Cookie", b"a=1; Path=/") in response.headers
                await read(response)
            assert provider.connections == 1
        assert b"cookie" not in seen[1].lower()


class TestReplies:
    async def test_headers_come_raw_and_redirects_are_not_followed(
        self, transport: Transport
    ) -> None:
        def handler(connection: RawConnection) -> None:
            connection.read_head()
            connection.send(
                b"HTTP/1.1 302 Found\r\nLocation: /y\r\nX-A: 1\r\nx-a: 2\r\n"
                b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok"
            )

        async with RawProvider(handler) as provider:
            response = await transport.send(request(provider.url))
            assert response.status == 302
            assert list(response.headers) == [
                (b"Location", b"/y"),
                (b"X-A", b"1"),
                (b"x-a", b"2"),
                (b"Content-Encoding", b"gzip"),
                (b"Content-Length", b"2"),
            ]
            assert await read(response) == b"ok"

    async def test_each_chunk_comes_when_it_is_sent(self, transport: Transport) -> None:
        go = threading.Semaphore(0)

        def handler(connection: RawConnection) -> None:
            connection.read_head()
            connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for index in range(3):
                go.acquire()
                connection.send(b"2\r\n%d\n\r\n" % index)
            connection.send(b"0\r\n\r\n")

        async with RawProvider(handler) as provider:
            response = await transport.send(request(provider.url))
            for index in range(3):
                go.release()
                assert await asyncio.wait_for(response.stream.read(), 5) == b"%d\n" % index
            assert await read(response) == b""

    async def test_a_cancelled_read_loses_nothing(self, transport: Transport) -> None:
        go = threading.Event()

        def handler(connection: RawConnection) -> None:
            connection.read_head()
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
            go.wait(5)
            connection.send(b"ok")

        async with RawProvider(handler) as provider:
            response = await transport.send(request(provider.url))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(response.stream.read(), 0.05)
            go.set()
            assert await read(response) == b"ok"

    async def test_closing_before_the_end_closes_the_connection(self, transport: Transport) -> None:
        closed: list[bool] = []

        def handler(connection: RawConnection) -> None:
            connection.read_head()
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nx")
            closed.append(connection.wait_closed(seconds=2))

        async with RawProvider(handler) as provider:
            response = await transport.send(request(provider.url))
            await response.stream.aclose()
            await response.stream.aclose()
        assert closed == [True]

    @pytest.mark.parametrize(
        "reply",
        [
            b"Content-Length: 99\r\n\r\nshort",
            b"Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        ],
    )
    async def test_a_body_cut_short_or_broken_raises_after_its_bytes(
        self, transport: Transport, reply: bytes
    ) -> None:
        def handler(connection: RawConnection) -> None:
            connection.read_head()
            connection.send(b"HTTP/1.1 200 OK\r\n" + reply)

        async with RawProvider(handler) as provider:
            response = await transport.send(request(provider.url))
            got: list[bytes] = []
            with pytest.raises(aiohttp.ClientError):
                await read(response, got)
            assert b"".join(got) == b"short"

    async def test_broken_framing_raises(self, transport: Transport) -> None:
        go = threading.Event()

        def handler(connection: RawConnection) -> None:
            connection.read_head()
            connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n")
            go.wait(5)
            connection.send(b"ZZ\r\nno size\r\n")

        async with RawProvider(handler) as provider:
            response = await transport.send(request(provider.url))
            assert await response.stream.read() == b"short"
            go.set()
            with pytest.raises((aiohttp.ClientError, HttpProcessingError)):
                await response.stream.read()
            await response.stream.aclose()

    async def test_a_silent_body_ends_at_the_limit_between_bytes(
        self,
    ) -> None:
        def handler(connection: RawConnection) -> None:
            connection.read_head()
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
            connection.send(b"x")
            connection.wait_closed()

        limits = Timeouts(first_byte_seconds=0.3, between_bytes_seconds=0.1)
        async with RawProvider(handler) as provider, limited(limits) as transport:
            response = await transport.send(request(provider.url))
            with pytest.raises(aiohttp.SocketTimeoutError):
                await read(response)

    async def test_a_gap_goes_on_when_its_reader_is_cancelled_and_comes_back(self) -> None:
        def handler(connection: RawConnection) -> None:
            connection.read_head()
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nx")
            connection.wait_closed()

        limits = Timeouts(first_byte_seconds=5, between_bytes_seconds=0.3)
        async with RawProvider(handler) as provider, limited(limits) as transport:
            response = await transport.send(request(provider.url))
            assert await response.stream.read() == b"x"
            ended = False
            for _ in range(60):
                try:
                    async with asyncio.timeout(0.05):
                        await response.stream.read()
                except aiohttp.SocketTimeoutError:
                    ended = True
                    break
                except TimeoutError:
                    continue
            await response.stream.aclose()
        assert ended

    async def test_a_body_that_takes_longer_than_the_limit_without_a_long_gap_is_whole(
        self,
    ) -> None:
        def handler(connection: RawConnection) -> None:
            connection.read_head()
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n")
            for _ in range(8):
                threading.Event().wait(0.1)
                connection.send(b"x")

        limits = Timeouts(first_byte_seconds=5, between_bytes_seconds=0.4)
        async with RawProvider(handler) as provider, limited(limits) as transport:
            response = await transport.send(request(provider.url))
            assert await read(response) == b"x" * 8

    @pytest.mark.parametrize("beginning", [b"", b"x"], ids=["headers alone", "with a byte"])
    async def test_the_limit_of_the_first_byte_is_over_with_the_headers(
        self, beginning: bytes
    ) -> None:
        def handler(connection: RawConnection) -> None:
            connection.read_head()
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n" + beginning)
            threading.Event().wait(0.5)
            connection.send(b"xy"[len(beginning) :])

        limits = Timeouts(first_byte_seconds=0.2, between_bytes_seconds=5)
        async with RawProvider(handler) as provider, limited(limits) as transport:
            assert await read(await transport.send(request(provider.url))) == b"xy"

    async def test_while_nobody_reads_no_gap_is_counted(self) -> None:
        def handler(connection: RawConnection) -> None:
            connection.read_head()
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nx")
            go.wait(10)
            connection.send(b"y")

        go = threading.Event()
        limits = Timeouts(first_byte_seconds=5, between_bytes_seconds=0.2)
        async with RawProvider(handler) as provider, limited(limits) as transport:
            response = await transport.send(request(provider.url))
            assert await response.stream.read() == b"x"
            longer, loop = asyncio.Event(), asyncio.get_running_loop()
            loop.call_later(2 * limits.between_bytes_seconds, longer.set)
            await longer.wait()
            go.set()
            assert await read(response) == b"y"


class TestConnections:
    async def test_a_stale_one_is_told_and_a_fresh_one_is_not_pooled(
        self, transport: Transport
    ) -> None:
        """The first connection serves one request and closes when the second arrives."""

        def handler(connection: RawConnection) -> None:
            connection.read_head()
            connection.send(OK)
            if connection.index == 0:
                connection.read_head()

        async with RawProvider(handler) as provider:
            await read(await transport.send(request(provider.url)))
            with pytest.raises(StaleConnection):
                await transport.send(request(provider.url))
            again = await transport.send(request(provider.url), fresh=True)
            assert await read(again) == b"ok"
            assert provider.connections == 2

    async def test_a_first_one_that_closes_is_not_stale(self, transport: Transport) -> None:
        def handler(connection: RawConnection) -> None:
            connection.read_head()

        async with RawProvider(handler) as provider:
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await transport.send(request(provider.url))

    async def test_one_that_closes_inside_the_head_is_not_stale(self, transport: Transport) -> None:
        def handler(connection: RawConnection) -> None:
            connection.read_head()
            connection.send(OK)
            if connection.index == 0:
                connection.read_head()
                connection.send(b"HTTP/1.1 200 OK\r\nX-A: 1\r\n")

        async with RawProvider(handler) as provider:
            await read(await transport.send(request(provider.url)))
            with pytest.raises(aiohttp.ClientError):
                await transport.send(request(provider.url))

    async def test_hundreds_run_at_once(self) -> None:
        """No pool of 100: every request is on its way before the first is answered."""
        count = 300
        arrived = threading.Semaphore(0)
        go = threading.Event()

        def handler(connection: RawConnection) -> None:
            connection.read_head()
            arrived.release()
            go.wait(10)
            connection.send(OK)

        async with RawProvider(handler) as provider, limited(TIMEOUTS) as transport:
            running = [
                asyncio.create_task(transport.send(request(provider.url))) for _ in range(count)
            ]
            for _ in range(count):
                assert await asyncio.to_thread(arrived.acquire, timeout=10)
            go.set()
            for task in running:
                assert await read(await task) == b"ok"


class TestWriting:
    async def test_a_slow_reader_gets_everything(self) -> None:
        """R148: longer in all than the write limit, with progress inside of it."""
        body = os.urandom(6 << 20)
        got = bytearray()

        def handler(connection: RawConnection) -> None:
            connection.read_head()
            while len(got) < len(body):
                threading.Event().wait(0.02)
                got.extend(connection.read_some())
            connection.send(OK)

        limits = Timeouts(write_seconds=1)
        async with (
            RawProvider(handler, receive_bytes=1 << 18) as provider,
            limited(limits) as transport,
        ):
            sent = request(
                provider.url,
                body=body,
                headers=[(b"content-length", b"%d" % len(body))],
            )
            assert await read(await transport.send(sent)) == b"ok"
        assert bytes(got) == body

    async def test_a_dead_reader_is_an_error_within_the_limit_and_its_connection_is_closed(
        self,
    ) -> None:
        body = bytes(15 << 20)
        closed = threading.Event()

        def handler(connection: RawConnection) -> None:
            connection.read_head()
            if connection.index == 0:
                dead.wait(10)
                if connection.wait_closed():
                    closed.set()
            else:
                connection.send(OK)

        dead = threading.Event()
        limits = Timeouts(write_seconds=0.3)
        async with (
            RawProvider(handler, receive_bytes=65536) as provider,
            limited(limits) as transport,
        ):
            sent = request(
                provider.url,
                body=body,
                headers=[(b"content-length", b"%d" % len(body))],
            )
            started = asyncio.get_running_loop().time()
            with pytest.raises(WriteStalled):
                await transport.send(sent)
            assert asyncio.get_running_loop().time() - started < 2
            dead.set()
            assert await read(await transport.send(request(provider.url))) == b"ok"
            assert await asyncio.to_thread(closed.wait, 5)
            assert provider.connections == 2

    async def test_a_body_still_coming_is_sent_as_it_comes(self, transport: Transport) -> None:
        first = asyncio.Event()
        loop = asyncio.get_running_loop()
        seen: list[bytes] = []

        def handler(connection: RawConnection) -> None:
            seen.append(connection.read_head())
            seen.append(connection.read_some())
            loop.call_soon_threadsafe(first.set)
            while b"0\r\n\r\n" not in seen[-1]:
                seen.append(connection.read_some())
            connection.send(OK)

        async def chunks() -> AsyncIterator[bytes]:
            yield b"one"
            await first.wait()
            yield b"two"

        async with RawProvider(handler) as provider:
            sent = request(provider.url, body=chunks())
            assert await read(await transport.send(sent)) == b"ok"
        assert b"transfer-encoding: chunked" in seen[0].lower()
        assert b"".join(seen[1:]) == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"

    @pytest.mark.parametrize(
        "size",
        [0, 1, WRITTEN_AT_ONCE_BYTES, WRITTEN_AT_ONCE_BYTES + 1, 1 << 16, (1 << 20) + 1],
    )
    async def test_a_whole_body_arrives_as_it_is(self, transport: Transport, size: int) -> None:
        body = os.urandom(size)
        seen: list[tuple[bytes, bytes]] = []

        def handler(connection: RawConnection) -> None:
            seen.append(connection.read_request())
            connection.send(OK)

        length = (b"content-length", b"%d" % size)
        async with RawProvider(handler) as provider:
            sent = request(provider.url, body=body, headers=[length])
            assert await read(await transport.send(sent)) == b"ok"
        head, arrived = seen[0]
        assert arrived == body
        assert head.lower().count(b"content-length: %d" % size) == 1
        assert b"transfer-encoding" not in head.lower()


class TestCertificates:
    async def test_an_https_upstream_is_spoken_to_in_tls_and_must_prove_itself(
        self, transport: Transport
    ) -> None:
        seen: list[bytes] = []

        def handler(connection: RawConnection) -> None:
            seen.append(connection.read_some())

        async with RawProvider(handler) as provider:
            with pytest.raises(aiohttp.ClientConnectorError):
                await transport.send(request(provider.url.replace("http:", "https:")))
        assert seen[0].startswith(b"\x16\x03")  # a handshake of TLS
        context = transport._trusted()
        assert context is transport._trusted()
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
        assert len(context.get_ca_certs()) > 50

    async def test_certifis_list_is_trusted_whatever_the_environment_says(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
        of_certifi = ssl.create_default_context(cafile=certifi.where())
        assert transport._trusted().get_ca_certs() == of_certifi.get_ca_certs()

    async def test_plain_http_reads_no_certificates(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(certifi, "where", lambda: pytest.fail("they were read"))

        def handler(connection: RawConnection) -> None:
            connection.read_request()
            connection.send(OK)

        async with RawProvider(handler) as provider:
            assert await read(await transport.send(request(provider.url))) == b"ok"
