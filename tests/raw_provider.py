"""A provider that speaks bytes on a socket, for faults that no HTTP server would make.

    def handler(connection):
        request = connection.read_request()
        connection.send(b"HTTP/1.1 200 OK\r\n...")

    async with RawProvider(handler) as provider: ...    # or `with`, outside of an event loop

The handler runs in a thread of its own for every connection, which closes when it returns.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Self

_WAIT_SECONDS = 10


class RawConnection:
    """One accepted connection."""

    def __init__(self, peer: socket.socket, index: int, stopping: threading.Event) -> None:
        """`index` counts connections from 0."""
        self.index = index
        self.socket = peer
        self.stopping = stopping
        self._read = b""
        peer.settimeout(_WAIT_SECONDS)

    def read_head(self) -> bytes:
        """The request line and headers, as sent; b"" when the peer closed instead."""
        while b"\r\n\r\n" not in self._read:
            data = self.socket.recv(65536)
            if not data:
                return b""
            self._read += data
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        return head + b"\r\n\r\n"

    def read_request(self) -> tuple[bytes, bytes]:
        """Head and body (by Content-Length); (b"", b"") when the peer closed instead."""
        head = self.read_head()
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        while len(self._read) < length:
            data = self.socket.recv(65536)
            if not data:
                break
            self._read += data
        body, self._read = self._read[:length], self._read[length:]
        return head, body

    def read_some(self) -> bytes:
        """What comes next, of a head or a body; b"" when the peer closed."""
        data, self._read = self._read, b""
        return data or self.socket.recv(65536)

    def send(self, data: bytes) -> None:
        """All of it."""
        self.socket.sendall(data)

    def send_slowly(self, data: bytes) -> None:
        """One byte per packet."""
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for index in range(len(data)):
            self.socket.sendall(data[index : index + 1])

    def reset(self) -> None:
        """Closes with a reset instead of an end."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def wait_closed(self, *, seconds: float = _WAIT_SECONDS) -> bool:
        """Whether the peer closes within the time."""
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True


class RawProvider:
    """Listens on a port of its own; `connections` counts what was accepted."""

    def __init__(self, handler: Callable[[RawConnection], None], *, receive_bytes: int = 0) -> None:
        """`receive_bytes` makes the socket's receive buffer small, for peers that stop reading."""
        self._handler = handler
        self._stopping = threading.Event()
        self._listener = socket.socket()
        if receive_bytes:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(64)
        self._threads: list[threading.Thread] = []
        self.connections = 0
        self.errors: list[BaseException] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()
        self._threads.append(thread)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(timeout=_WAIT_SECONDS)
        if self.errors and exc[0] is None:
            raise self.errors[0]

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *exc: object) -> None:
        """Waits for the handlers without stopping the loop that they may be waiting for."""
        await asyncio.to_thread(self.__exit__, *exc)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            connection = RawConnection(peer, self.connections, self._stopping)
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, connection: RawConnection) -> None:
        try:
            self._handler(connection)
        except OSError:
            pass  # the peer left, or was meant to
        except BaseException as exc:
            self.errors.append(exc)
        finally:
            connection.socket.close()
