"""Heads of requests as bytes, before uvicorn with the bound."""

import contextlib
import socket
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from proxy.header_limit import MAX_HEAD_BYTES
from proxy.loopback import http_options
from tests.serving import Served, serve

GET = b"GET / HTTP/1.1\r\nHost: a\r\n"


@pytest.fixture
def served() -> Iterator[Served]:
    async def size(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(len(await request.body())))

    application = Starlette(routes=[Route("/{rest:path}", size, methods=["GET", "POST"])])
    with serve(application, http=http_options()["http"]) as one:
        yield one


def answer(served: Served, *pieces: bytes) -> bytes:
    """What comes back; a peer that closes early is no failure of the sender."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=5) as client:
        received = b""
        with contextlib.suppress(OSError):
            for piece in pieces:
                client.sendall(piece)
        with contextlib.suppress(OSError):
            while chunk := client.recv(65536):
                received += chunk
        return received


@pytest.mark.parametrize(
    "head",
    [
        GET + b"X-A: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n",
        GET + b"".join(b"X-%d: a\r\n" % n for n in range(10_000)) + b"\r\n",
        b"GET /" + b"a" * (MAX_HEAD_BYTES + 1) + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
    ids=["one long header", "many headers", "a long target"],
)
def test_a_head_over_the_bound_is_refused(served: Served, head: bytes) -> None:
    said = answer(served, head)
    assert said.startswith(b"HTTP/1.1 431 ")
    assert b'"code": "headers_too_large"' in said
    assert said.count(b"HTTP/1.1") == 1


def test_a_header_that_never_ends_is_refused_while_it_comes(served: Served) -> None:
    pieces = [GET + b"X-A: ", *[b"a" * 16_384] * 64]
    assert answer(served, *pieces).startswith(b"HTTP/1.1 431 ")


def test_a_head_below_it_and_any_body_pass_again_and_again(served: Served) -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nX-A: " + b"a" * 30_000 + b"\r\n"
    one = head + b"Content-Length: 300000\r\n\r\n" + b"b" * 300_000
    last = GET + b"Connection: close\r\n\r\n"
    said = answer(served, one, one, one, last)
    assert said.count(b"HTTP/1.1 200 ") == 4
    assert said.count(b"300000") == 3


def test_what_is_no_http_is_still_a_400(served: Served) -> None:
    assert answer(served, b"\x00\x01 no request\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_a_later_head_of_a_connection_is_bounded_too(served: Served) -> None:
    small = GET + b"\r\n"
    body = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + b"b" * 100_000
    many = GET + b"".join(b"X-%d: a\r\n" % n for n in range(10_000)) + b"\r\n"
    said = answer(served, small, body, many[:40_000], many[40_000:])
    assert said.count(b"HTTP/1.1 200 ") <= 2  # the last one may be cut off by the refusal
    assert said.count(b"HTTP/1.1 431 ") == 1
