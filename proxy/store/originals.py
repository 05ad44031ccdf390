"""What of a message's JSON is kept when the bytes of images are not: everything else, as sent.

Works on the bytes, so that numbers, key order, escapes and unknown fields stay what they were. What
is encoded is found and checked in steps of bounded length: patterns that run over megabytes hold
the interpreter, and with it every stream, for seconds.
"""

import re
from collections.abc import Iterator
from hashlib import blake2b

MIN_BASE64_CHARS = 512  # shorter `data` is no picture, file or recording
STEP_BYTES = 1 << 20

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_="
_ESCAPES = (b"\\/", b"\\n", b"\\r")  # what may stand in base64 inside a JSON string
# A JSON string that is a data URL as a whole; `/` may be escaped.
_URL_START = b'"data:'
_URL_HEADER = re.compile(
    rb'"data:(?P<type>[\w.+-]+\\?/[\w.+-]+)?(?:;[\w.+-]+=[^;,"\\]*)*;base64,', re.ASCII
)
_LONGEST_HEADER_BYTES = 512
# Bare base64 stands under these keys (input_audio, file, source of type base64).
_KEYS = (b'"data"', b'"file_data"', b'"b64_json"')
_VALUE_START = re.compile(rb'\s*:\s*"')


def without_images(body: bytes, key: bytes) -> bytes:
    """The JSON with a keyed hash and the size in place of what is encoded in base64."""
    if b"base64," in body:
        body = _joined(body, _urls(body, key))
    for name in _KEYS:
        if name in body:
            body = _joined(body, _values(body, name, key))
    return body


_Change = tuple[int, int, bytes]  # `body[start:end]` becomes this


def _joined(body: bytes, changes: Iterator[_Change]) -> bytes:
    pieces: list[bytes] = []
    kept = 0
    for start, end, text in changes:
        pieces += (body[kept:start], text)
        kept = end
    return b"".join([*pieces, body[kept:]]) if pieces else body


def _urls(body: bytes, key: bytes) -> Iterator[_Change]:
    at = body.find(_URL_START)
    while at >= 0:
        end = at + len(_URL_START)
        header = _URL_HEADER.match(body, at, at + _LONGEST_HEADER_BYTES)
        if header is not None:
            end = body.find(b'"', header.end())
            marker = _marker(body, header.end(), end, key)
            if marker is not None:
                kind = (header["type"] or b"").replace(b"\\", b"")
                yield at, end, _URL_START + kind + b";" + marker + b","
            else:
                end = header.end()
        at = body.find(_URL_START, end)


def _values(body: bytes, name: bytes, key: bytes) -> Iterator[_Change]:
    at = body.find(name)
    while at >= 0:
        start = at + len(name)
        value = _VALUE_START.match(body, start)
        if value is not None:
            start = value.end()
            end = body.find(b'"', start)
            if end - start >= MIN_BASE64_CHARS:
                marker = _marker(body, start, end, key)
                if marker is not None:
                    yield start, end, marker
                    start = end
        at = body.find(name, start)


def _marker(body: bytes, start: int, end: int, key: bytes) -> bytes | None:
    """What stands for `body[start:end]`; None when that is not base64 to its last byte."""
    if end < 0:
        return None
    view = memoryview(body)[start:end]
    backslashes = 0
    for at in range(0, len(view), STEP_BYTES):
        other = bytes(view[at : at + STEP_BYTES]).translate(None, _ALPHABET)
        if other.strip(b"\\"):
            return None
        backslashes += len(other)
    digits: bytes | memoryview = view
    if backslashes:
        text = bytes(view)
        if sum(map(text.count, _ESCAPES)) != backslashes:
            return None
        for escape in (b"\\n", b"\\r", b"\\"):
            text = text.replace(escape, b"")
        digits = text
    digest = blake2b(digits, key=key, digest_size=16).hexdigest()
    padding = len(bytes(digits[-4:])) - len(bytes(digits[-4:]).rstrip(b"="))
    size_bytes = (len(digits) - padding) * 3 // 4
    return f"omitted;bytes={size_bytes};hash={digest}".encode()
