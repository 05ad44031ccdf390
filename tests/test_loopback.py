"""The server in a thread: it answers on loopback while the block runs, and is gone after it."""

import threading

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from proxy.loopback import NotServing, served


async def _hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


def test_it_answers_inside_the_block_and_not_after() -> None:
    threads = threading.active_count()
    with served(Starlette(routes=[Route("/", _hello)])) as url:
        assert url.startswith("http://127.0.0.1:")
        reply = httpx.get(url)
        assert reply.text == "hello"
        assert "server" not in reply.headers
        assert "date" not in reply.headers
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
    assert threading.active_count() == threads


def test_an_application_that_cannot_start_is_said_to_be_so() -> None:
    async def broken(scope: object, receive: object, send: object) -> None:
        raise OSError("no store")

    with pytest.raises(NotServing, match="did not start"), served(broken):
        pytest.fail("the block ran")


def test_it_stops_when_the_block_fails() -> None:
    with (
        pytest.raises(ZeroDivisionError),
        served(Starlette(routes=[Route("/", _hello)])) as url,
    ):
        raise ZeroDivisionError
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
