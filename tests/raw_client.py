"""A client that speaks bytes: what really came over the wire, when, and whether it ended well."""

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_WAIT_SECONDS = 10


@dataclass
class Answer:
    """One response. `chunks` are (seconds since the request, bytes); `complete`: it ended well."""

    status: int
    headers: list[tuple[str, str]]
    chunks: list[tuple[float, bytes]] = field(default_factory=list)
    complete: bool = False
    head_at: float = 0.0

    @property
    def body(self) -> bytes:
        return b"".join(chunk for _, chunk in self.chunks)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def all(self, name: str) -> list[str]:
        """Every value of a header, in order."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def one(self, name: str) -> str | None:
        """The only value of a header, or None."""
        values = self.all(name)
        assert len(values) <= 1, f"{name} repeated: {values}"
        return values[0] if values else None


class RawClient:
    """One connection."""

    def __init__(self, port: int) -> None:
        """Connects to this machine."""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=_WAIT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = b""
        self._since = time.monotonic()

    def send(self, data: bytes) -> None:
        self._since = time.monotonic()
        self.socket.sendall(data)

    def request(self, method: str, target: str, body: bytes | None = None, *headers: str) -> None:
        """Sends a request with nothing but Host, a length for the body, and the headers given."""
        lines = [f"{method} {target} HTTP/1.1"]
        if not any(header.lower().startswith("host:") for header in headers):
            lines.append("Host: localhost")
        lines.extend(headers)
        if body is not None and not any("transfer-encoding" in h.lower() for h in headers):
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b""))

    def chat(self, body: Any, *headers: str, target: str = "/v1/chat/completions") -> None:
        """Posts a chat."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.request("POST", target, data, "Content-Type: application/json", *headers)

    def read_head(self) -> Answer:
        """Status and headers of a final response; interim ones are passed over."""
        while True:
            while b"\r\n\r\n" not in self._read:
                self._more()
            head, _, self._read = self._read.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            status = int(first.split(" ")[1])
            if status >= 200:
                break
        headers = [(n, v.strip()) for n, _, v in (line.partition(":") for line in lines)]
        return Answer(status, headers, head_at=time.monotonic() - self._since)

    def read_answer(self, *, method: str = "POST") -> Answer:
        """A whole response, or what came of it before the connection was cut."""
        answer = self.read_head()
        if method == "HEAD" or answer.status in (204, 304):
            answer.complete = True
            return answer
        for at, chunk in self.chunks(answer):
            answer.chunks.append((at, chunk))
        return answer

    def chunks(self, answer: Answer) -> Iterator[tuple[float, bytes]]:
        """The body's chunks as they come; sets `answer.complete` at a good end."""
        length = answer.one("content-length")
        chunked = answer.one("transfer-encoding") == "chunked"
        assert (length is None) != (not chunked) or not chunked, "both a length and chunked"
        if chunked:
            yield from self._chunked(answer)
            return
        left = int(length) if length is not None else -1
        while left:
            if not self._read and not self._try_more():
                answer.complete = left < 0
                return
            piece = self._read if left < 0 else self._read[:left]
            self._read = self._read[len(piece) :]
            left -= len(piece) if left > 0 else 0
            yield time.monotonic() - self._since, piece
        answer.complete = True

    def _chunked(self, answer: Answer) -> Iterator[tuple[float, bytes]]:
        while True:
            while b"\r\n" not in self._read:
                if not self._try_more():
                    return
            size = int(self._read.partition(b"\r\n")[0], 16)
            start = self._read.index(b"\r\n") + 2
            while len(self._read) < start + size + 2:
                if not self._try_more():
                    return
            piece = self._read[start : start + size]
            self._read = self._read[start + size + 2 :]
            if size == 0:
                answer.complete = True
                return
            yield time.monotonic() - self._since, piece

    def _more(self) -> None:
        assert self._try_more(), f"the connection closed after {self._read!r}"

    def _try_more(self) -> bool:
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            return False
        self._read += data
        return bool(data)

    def leave(self) -> None:
        """Goes away as a killed client does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


@contextlib.contextmanager
def connected(port: int) -> Iterator[RawClient]:
    """A client whose connection is closed at the end."""
    client = RawClient(port)
    try:
        yield client
    finally:
        client.socket.close()


def ask(port: int, method: str, target: str, body: bytes | None = None, *headers: str) -> Answer:
    """One request on one connection, answered."""
    with connected(port) as client:
        client.request(method, target, body, *headers)
        return client.read_answer(method=method)


def ask_chat(port: int, body: Any, *headers: str, target: str = "/v1/chat/completions") -> Answer:
    """One chat on one connection, answered."""
    with connected(port) as client:
        client.chat(body, *headers, target=target)
        return client.read_answer()
