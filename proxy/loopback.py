"""Serves an ASGI application on a free loopback port from a thread, until the block ends.

For what runs beside the command itself: the practice provider of `tidegate serve`, both servers of
`tidegate demo`.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    from starlette.types import ASGIApp

HOST = "127.0.0.1"
THREAD_NAME = "loopback server"
START_SECONDS = 20.0
"""A cold start on a loaded machine reads the vocabularies first."""

STOP_SECONDS = 5.0
_POLL_SECONDS = 0.005


class NotServing(RuntimeError):
    """The server did not start, or did not stop, in time."""


def http_options() -> dict[str, Any]:
    """How uvicorn speaks HTTP here: with no header and no log line of its own."""
    return {
        "http": "proxy.header_limit:BoundedHeadProtocol",
        "ws": "none",
        "lifespan": "on",
        # `Server` and `Date` are the upstream's alone.
        "server_header": False,
        "date_header": False,
        # Forwarded headers of strangers must not decide who is on loopback.
        "proxy_headers": False,
        # One line per chat is written by the proxy itself.
        "access_log": False,
        "log_config": None,
    }


@contextmanager
def served(application: "ASGIApp") -> Iterator[str]:
    """The URL of the running server, without a path.

    Raises: NotServing.
    """
    with socket.create_server((HOST, 0), backlog=1024) as listener:
        server = uvicorn.Server(
            uvicorn.Config(
                application, timeout_graceful_shutdown=int(STOP_SECONDS), **http_options()
            )
        )
        # A daemon: a command that is killed while the server hangs must still end.
        thread = threading.Thread(
            target=_run, args=(server, listener), name=THREAD_NAME, daemon=True
        )
        thread.start()
        try:
            _wait_until_started(server, thread)
            yield f"http://{HOST}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(2 * STOP_SECONDS)
        if thread.is_alive():
            raise NotServing("the server on loopback did not stop")


def _run(server: uvicorn.Server, listener: socket.socket) -> None:
    # uvicorn ends a start that failed, which it has logged, by leaving the interpreter.
    with suppress(SystemExit):
        server.run(sockets=[listener])


def _wait_until_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise NotServing("the server on loopback did not start; its log says why")
        time.sleep(_POLL_SECONDS)
