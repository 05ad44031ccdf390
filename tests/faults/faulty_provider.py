"""A provider that breaks in the way that the request's header `x-fault` names, or the name of a
summary call's model; over bytes, since no HTTP server would do it. Otherwise it answers."""

import gzip
import hashlib
import json
import time
from functools import lru_cache

from tests.fake_provider import completion, stream_events
from tests.raw_provider import RawConnection
from tests.strict_provider import is_summary

HUGE_BYTES = 100 * 1024 * 1024
BOMB_BYTES = 1024 * 1024 * 1024
STALL_SECONDS = 30
EVENTS = stream_events("It is done, as you asked.")
WHOLE_STREAM = b"".join(EVENTS)
WHOLE = json.dumps(completion("It is done.")).encode()


def serve_faults(connection: RawConnection) -> None:
    """Requests of one connection, until one of them breaks it."""
    while True:
        head, body = connection.read_request()
        if not head:
            return
        chat = json.loads(body) if body else {}
        fault = _fault(head)
        if is_summary(chat):
            fault = chat["model"].removeprefix("summary-")
        if not _break(connection, fault, stream=bool(chat.get("stream"))):
            return


def _fault(head: bytes) -> str:
    for line in head.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "x-fault":
            return value.strip()
    return ""


def _answer(connection: RawConnection, *, stream: bool) -> bool:
    if stream:
        connection.send(_head("text/event-stream", b"transfer-encoding: chunked"))
        for event in EVENTS:
            connection.send(b"%x\r\n%b\r\n" % (len(event), event))
        connection.send(b"0\r\n\r\n")
    else:
        connection.send(_head("application/json", b"content-length: %d" % len(WHOLE)) + WHOLE)
    return True


def _head(kind: str, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    lines = [b"HTTP/1.1 " + status, b"content-type: " + kind.encode(), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _break(connection: RawConnection, fault: str, *, stream: bool) -> bool:
    """Whether the connection goes on."""
    chunked = _head("text/event-stream", b"transfer-encoding: chunked")
    first = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS[:3])
    match fault:
        case "reset":
            connection.reset()
        case "close":
            pass
        case "reset-in-headers":
            connection.send(b"HTTP/1.1 200 OK\r\ncontent-ty")
            connection.reset()
        case "reset-in-stream":
            connection.send(chunked + first)
            time.sleep(0.2)  # or the reset overtakes the bytes
            connection.reset()
        case "close-in-stream":
            connection.send(chunked + first)
        case "stall":
            connection.wait_closed(seconds=STALL_SECONDS)
        case "stall-in-stream":
            connection.send(chunked + first)
            connection.wait_closed(seconds=STALL_SECONDS)
        case "garbage":
            connection.send(bytes(range(256)) * 8)
        case "garbage-in-stream":
            connection.send(chunked + first)
            time.sleep(0.2)  # or nothing of it is read
            connection.send(b"this is no chunk size\r\n" + bytes(range(256)))
        case "one-byte-chunks":
            connection.send(chunked)
            for index in range(len(WHOLE_STREAM)):
                connection.send(b"1\r\n%b\r\n" % WHOLE_STREAM[index : index + 1])
            connection.send(b"0\r\n\r\n")
            return True
        case "huge":
            connection.send(_head("application/json", b"content-length: %d" % HUGE_BYTES))
            for piece in huge_pieces():
                connection.send(piece)
            return True
        case "too-long-length":
            length = b"content-length: %d" % (len(WHOLE) + 100)
            connection.send(_head("application/json", length) + WHOLE)
        case "too-short-length":
            length = b"content-length: %d" % (len(WHOLE) - 5)
            connection.send(_head("application/json", length) + WHOLE)
        case "bomb":
            bomb = gzip_bomb()
            headers = (b"content-encoding: gzip", b"content-length: %d" % len(bomb))
            head = _head("application/json", *headers, status=b"400 Bad Request")
            connection.send(head + bomb)
            return True
        case _:
            return _answer(connection, stream=stream)
    return False


@lru_cache(1)
def huge_pieces() -> tuple[bytes, ...]:
    """100 MB, the same each time."""
    block = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(32768))
    return (block,) * (HUGE_BYTES // len(block))


@lru_cache(1)
def gzip_bomb() -> bytes:
    """An error of a gigabyte in a megabyte."""
    return gzip.compress(b" " * BOMB_BYTES, 1, mtime=0)
