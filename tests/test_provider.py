"""Errors of the way out and their statuses; the retry on a stale connection; codings.

Rows R093, R099 as far as the provider goes; the client's side of them is in test_routes.
"""

import asyncio
import gzip
import json
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy.core.errors import ProviderBroke, ProviderError, ProviderTimeout, ProviderUnreachable
from proxy.provider import Provider, Timeouts
from proxy.relay import ProviderRequest
from proxy.reply import Reply
from tests.fake_provider import FakeProvider, completion, running, stream_event
from tests.raw_provider import RawConnection, RawProvider

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def request(url: str, body: Any = b"{}", **fields: Any) -> ProviderRequest:
    values: dict[str, Any] = {
        "method": "POST",
        "origin": url,
        "target": "/v1/chat/completions",
        "headers": ((b"content-length", b"%d" % len(body)),) if isinstance(body, bytes) else (),
        "body": body,
    }
    return ProviderRequest(**(values | fields))


async def whole(reply: Reply) -> bytes:
    try:
        return b"".join([chunk async for chunk in reply.chunks()])
    finally:
        await reply.aclose()


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    made = Provider(Timeouts(5, 5, 5, 5))
    yield made
    await made.aclose()


async def impatient(**seconds: float) -> Provider:
    values = {"connect": 5.0, "first_byte": 5.0, "between_bytes": 5.0, "write": 5.0} | seconds
    return Provider(Timeouts(**{f"{name}_seconds": value for name, value in values.items()}))


class TestErrorsBeforeTheFirstByte:
    async def test_a_refused_connection_is_502(self, provider: Provider) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ProviderUnreachable) as failed:
            await provider.send(request(url))
        assert failed.value.status == 502
        assert failed.value.message == f"No response from the upstream {url}: Connection refused."

    async def test_a_name_that_does_not_resolve_is_502(self, provider: Provider) -> None:
        with pytest.raises(ProviderUnreachable, match="its name cannot be resolved"):
            await provider.send(request("http://nowhere.invalid"))

    async def test_credentials_in_the_address_are_not_told(self, provider: Provider) -> None:
        with pytest.raises(ProviderUnreachable) as failed:
            await provider.send(request("http://user:secret@nowhere.invalid"))
        assert "secret" not in failed.value.message

    async def test_no_first_byte_in_time_is_504(self) -> None:
        def handler(connection: RawConnection) -> None:
            connection.read_request()
            connection.wait_closed()

        provider = await impatient(first_byte=0.1)
        async with RawProvider(handler) as upstream:
            with pytest.raises(ProviderTimeout) as failed:
                await provider.send(request(upstream.url))
            await provider.aclose()
        assert failed.value.status == 504

    async def test_an_upstream_that_stops_reading_is_504(self) -> None:
        def handler(connection: RawConnection) -> None:
            connection.read_head()
            done.wait()

        done = threading.Event()
        provider = await impatient(write=0.2)
        async with RawProvider(handler, receive_bytes=65536) as upstream:
            with pytest.raises(ProviderTimeout):
                await provider.send(request(upstream.url, bytes(15 << 20)))
            done.set()
            await provider.aclose()

    async def test_a_response_that_is_none_is_502(self, provider: Provider) -> None:
        def handler(connection: RawConnection) -> None:
            connection.read_request()
            connection.send(b"SSH-2.0-OpenSSH\r\n\r\n")

        async with RawProvider(handler) as upstream:
            with pytest.raises(ProviderError) as failed:
                await provider.send(request(upstream.url))
        assert failed.value.status == 502


class TestStaleConnections:
    async def test_one_that_closes_before_any_byte_is_followed_by_a_fresh_one(
        self, provider: Provider
    ) -> None:
        bodies: list[bytes] = []

        def handler(connection: RawConnection) -> None:
            bodies.append(connection.read_request()[1])
            connection.send(OK)
            if connection.index == 0:
                bodies.append(connection.read_request()[1])

        async with RawProvider(handler) as upstream:
            assert await whole(await provider.send(request(upstream.url, b"1"))) == b"ok"
            assert await whole(await provider.send(request(upstream.url, b"2"))) == b"ok"
        assert bodies == [b"1", b"2", b"2"]

    async def test_a_fresh_one_that_closes_is_not_followed_by_another(
        self, provider: Provider
    ) -> None:
        async with RawProvider(lambda c: c.read_request() and None) as upstream:
            with pytest.raises(ProviderUnreachable, match="closed the connection without"):
                await provider.send(request(upstream.url))
            assert upstream.connections == 1

    async def test_a_body_still_coming_starts_on_a_fresh_one(self, provider: Provider) -> None:
        def handler(connection: RawConnection) -> None:
            connection.read_request()
            connection.send(OK)
            connection.wait_closed()

        async def chunks() -> AsyncIterator[bytes]:
            yield b"ab"

        headers = ((b"content-length", b"2"),)
        async with RawProvider(handler) as upstream:
            await whole(await provider.send(request(upstream.url)))
            await whole(await provider.send(request(upstream.url, chunks(), headers=headers)))
            assert upstream.connections == 2
            await provider.aclose()


class TestBreaks:
    async def test_a_reset_after_the_first_bytes_is_told_after_them(
        self, provider: Provider
    ) -> None:
        got = threading.Event()

        def handler(connection: RawConnection) -> None:
            connection.read_request()
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nab")
            got.wait(5)
            connection.reset()

        async with RawProvider(handler) as upstream:
            reply = await provider.send(request(upstream.url))
            assert await reply.read() == b"ab"
            got.set()
            with pytest.raises(ProviderBroke):
                await reply.read()
            await reply.aclose()
        assert reply.ended is not None
        assert reply.ended.broke is not None
        assert not reply.finished

    async def test_silence_between_bytes_is_a_break(self) -> None:
        def handler(connection: RawConnection) -> None:
            connection.read_request()
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
            connection.send(b"ab")
            connection.wait_closed()

        provider = await impatient(between_bytes=0.1, first_byte=0.3)
        async with RawProvider(handler) as upstream:
            reply = await provider.send(request(upstream.url))
            with pytest.raises(ProviderBroke):
                await whole(reply)
            await provider.aclose()


class TestCodings:
    plain = json.dumps(completion("hello", usage={"prompt_tokens": 3})).encode()

    async def open(self, provider: Provider, accepts: frozenset[str], **script: Any) -> Reply:
        fake = FakeProvider()
        fake.next(**script)
        with running(fake):
            opening = await provider.open_chat(request(fake.url, accepts=accepts), hold_seconds=5)
            while await opening.reply.hold():
                pass
            return opening.reply

    async def test_a_coding_that_the_client_accepts_passes_and_is_read(
        self, provider: Provider
    ) -> None:
        packed = gzip.compress(self.plain, mtime=0)
        headers = [(b"content-encoding", b"gzip")]
        reply = await self.open(provider, frozenset({"gzip"}), body=packed, headers=headers)
        assert not reply.decoded
        assert await whole(reply) == packed
        assert reply.usage == {"prompt_tokens": 3}

    @pytest.mark.parametrize("coding", ["gzip", "deflate"])
    async def test_a_coding_that_it_does_not_accept_is_undone(
        self, provider: Provider, coding: str
    ) -> None:
        reply = await self.open(provider, frozenset({"br"}), body=self.plain, coding=coding)
        assert reply.decoded
        assert await whole(reply) == self.plain
        assert reply.usage == {"prompt_tokens": 3}

    async def test_an_unknown_coding_passes_unread(self, provider: Provider) -> None:
        headers = [(b"content-encoding", b"compress")]
        reply = await self.open(provider, frozenset(), body=self.plain, headers=headers)
        assert not reply.decoded
        assert await whole(reply) == self.plain
        assert reply.usage is None

    async def test_bytes_in_another_coding_pass_to_a_client_that_accepts_it(
        self, provider: Provider
    ) -> None:
        headers = [(b"content-encoding", b"gzip")]
        reply = await self.open(provider, frozenset({"gzip"}), body=b"not gzip", headers=headers)
        assert await whole(reply) == b"not gzip"

    async def test_and_are_a_break_for_one_that_needs_them_undone(self, provider: Provider) -> None:
        headers = [(b"content-encoding", b"gzip")]
        with pytest.raises(ProviderBroke):
            await self.open(provider, frozenset(), body=b"not gzip", headers=headers)


async def test_a_reply_left_early_closes_its_connection(provider: Provider) -> None:
    closed: list[bool] = []

    def handler(connection: RawConnection) -> None:
        connection.read_request()
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        connection.send(stream_event({"content": "a"}))
        closed.append(connection.wait_closed(seconds=5))

    async with RawProvider(handler) as upstream:
        opening = await provider.open_chat(request(upstream.url), hold_seconds=5)
        await opening.reply.aclose()
        await opening.reply.aclose()
    assert closed == [True]


async def test_a_cancelled_opening_closes_its_connection(provider: Provider) -> None:
    closed: list[bool] = []
    seen = asyncio.Event()
    loop = asyncio.get_running_loop()

    def handler(connection: RawConnection) -> None:
        connection.read_request()
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: hi\n\n")
        loop.call_soon_threadsafe(seen.set)
        closed.append(connection.wait_closed(seconds=5))

    async with RawProvider(handler) as upstream:
        opening = asyncio.create_task(provider.open_chat(request(upstream.url), hold_seconds=0))
        await asyncio.wait_for(seen.wait(), 5)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    assert closed == [True]
