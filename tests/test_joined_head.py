"""What goes out in one piece, and that nothing waits longer than a turn of the loop."""

import asyncio
import socket
from typing import Any, cast

import pytest

from proxy.joined_head import MAX_COPIED_BYTES, JoiningTransport
from proxy.loopback import http_options
from tests.serving import serve

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Sent(asyncio.Transport):
    """A transport that remembers each call."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[object] = []
        self.closing = False

    def write(self, data: Any) -> None:
        self.pieces.append(data)

    def writelines(self, list_of_data: Any) -> None:
        self.pieces.append(tuple(list_of_data))

    def close(self) -> None:
        self.closing = True
        self.pieces.append("closed")

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.pieces.append("paused")

    def resume_reading(self) -> None:
        self.pieces.append("resumed")


def joining(sent: Sent) -> JoiningTransport:
    return JoiningTransport(sent, asyncio.get_running_loop())


async def test_a_head_goes_out_with_what_follows_it() -> None:
    sent = Sent()
    transport = joining(sent)
    transport.head_is_next = True
    transport.write(HEAD)
    transport.write(b"")
    assert sent.pieces == []
    transport.write(b"one")
    transport.write(b"two")
    await asyncio.sleep(0)
    assert sent.pieces == [HEAD + b"one", b"two"]


async def test_a_head_that_nothing_follows_goes_out_in_the_same_turn() -> None:
    sent = Sent()
    transport = joining(sent)
    transport.head_is_next = True
    transport.write(HEAD)
    await asyncio.sleep(0)
    transport.write(b"one")
    assert sent.pieces == [HEAD, b"one"]


async def test_a_large_body_is_not_copied() -> None:
    sent = Sent()
    transport = joining(sent)
    body = bytes(MAX_COPIED_BYTES + 1)
    transport.head_is_next = True
    transport.write(HEAD)
    transport.write(body)
    assert sent.pieces == [(HEAD, body)]


async def test_what_comes_before_a_head_and_after_one_waits_for_nothing() -> None:
    sent = Sent()
    transport = joining(sent)
    transport.write(b"before")
    transport.head_is_next = True
    transport.write(HEAD)
    transport.write(b"body")
    transport.write(b"after")
    assert sent.pieces == [b"before", HEAD + b"body", b"after"]


async def test_a_connection_is_closed_behind_the_head() -> None:
    sent = Sent()
    transport = joining(sent)
    transport.head_is_next = True
    transport.write(HEAD)
    transport.close()
    await asyncio.sleep(0)
    assert sent.pieces == [HEAD, "closed"]
    assert transport.is_closing()


async def test_nothing_goes_to_a_connection_that_was_closed_meanwhile() -> None:
    sent = Sent()
    transport = joining(sent)
    transport.head_is_next = True
    transport.write(HEAD)
    sent.close()
    await asyncio.sleep(0)
    assert sent.pieces == ["closed"]


async def test_the_rest_is_the_transports_own() -> None:
    sent = Sent()
    transport = joining(sent)
    transport.pause_reading()
    transport.resume_reading()
    assert sent.pieces == ["paused", "resumed"]
    assert transport.get_extra_info("peername", 7) == 7


@pytest.mark.parametrize("expects", [b"", b"Expect: 100-continue\r\n"])
def test_a_client_gets_the_head_before_a_body_that_takes_long(expects: bytes) -> None:
    gone_on = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
            return
        loops.append(asyncio.get_running_loop())
        await receive()
        length = [(b"content-length", b"4")]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await gone_on.wait()
        await send({"type": "http.response.body", "body": b"tide"})

    with (
        serve(cast(Any, application), http=http_options()["http"]) as served,
        socket.create_connection(("127.0.0.1", served.port), timeout=10) as client,
    ):
        for _ in range(2):  # one connection, two requests
            gone_on.clear()
            client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n" + expects)
            client.sendall(b"\r\n")
            if expects:
                assert _until(client, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.sendall(b"hi")
            head = _until(client, b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            loops[-1].call_soon_threadsafe(gone_on.set)
            assert _until(client, b"tide") == b"tide"


def _until(client: socket.socket, end: bytes) -> bytes:
    received = b""
    while not received.endswith(end):
        piece = client.recv(1 if end == b"\r\n\r\n" else 65536)
        assert piece, received
        received += piece
    return received
