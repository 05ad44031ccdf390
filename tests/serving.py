"""Serves an ASGI app with real uvicorn in a thread, on a port of its own, until the block ends."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn

_START_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Served:
    """A running server."""

    port: int
    server: uvicorn.Server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def serve(app: Any, **config: Any) -> Iterator[Served]:
    """Uvicorn as the command runs it: no headers of its own, httptools, lifespan on."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    options: dict[str, Any] = {
        "http": "httptools",
        "ws": "none",
        "lifespan": "on",
        "server_header": False,
        "date_header": False,
        "log_config": None,
        "access_log": False,
        "timeout_graceful_shutdown": 1,
    }
    server = uvicorn.Server(uvicorn.Config(app, **(options | config)))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), seconds=_START_SECONDS)
        assert server.started, "the server did not start"
        yield Served(listener.getsockname()[1], server)
    finally:
        server.should_exit = True
        thread.join(timeout=_START_SECONDS)
        listener.close()
        assert not thread.is_alive(), "the server did not stop"


def wait_until(condition: Any, *, seconds: float = 5) -> None:
    """Waits for a condition of another thread, with a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {seconds} s: {condition}")
        time.sleep(0.005)
