"""A provider that costs next to nothing, so that it never is what a measurement measures.

    python -m tests.benchmarks.provider PORT CORE

One uvloop protocol that reads no JSON: it finds the end of a request, looks for two words in it,
and writes bytes that were made beforehand. `stream` gets 50 chunks, each a write of its own;
the model `paced` gets one every 5 ms.
"""

import asyncio
import json
import os
import sys
from typing import cast

import uvloop

CHUNKS = 50
PACED_SECONDS = 0.005
_SEARCHED_BYTES = 16 * 1024  # streams are asked for by small requests only


def _chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    value = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "bench",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    event = b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


HEAD = b"HTTP/1.1 200 OK\r\nserver: bench\r\n"
STREAM_HEAD = HEAD + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"
STREAM = (
    STREAM_HEAD + _chunk({"role": "assistant", "content": ""}),
    *(_chunk({"content": f" word{n}"}) for n in range(CHUNKS - 2)),
    _chunk({}, "stop") + b"%x\r\n%s\r\n0\r\n\r\n" % (len(DONE), DONE),
)


def _completion(prompt_tokens: int) -> bytes:
    message = {"role": "assistant", "content": "A short answer of about a dozen words, as usual."}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 12}
    value = {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "bench",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {**usage, "total_tokens": prompt_tokens + 12},
    }
    body = json.dumps(value, separators=(",", ":")).encode()
    head = b"%scontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (HEAD, len(body))
    return head + body


class Answering(asyncio.Protocol):
    """One connection; requests come one after the other."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._pieces: list[bytes] = []
        self._missing_bytes = -1  # -1: the head is not whole yet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        if self._missing_bytes < 0:
            joined = b"".join(self._pieces)
            end = joined.find(b"\r\n\r\n")
            if end < 0:
                return
            self._missing_bytes = end + 4 + _body_bytes(joined[:end].lower()) - len(joined)
        else:
            self._missing_bytes -= len(data)
        if self._missing_bytes <= 0:
            whole, self._pieces, self._missing_bytes = b"".join(self._pieces), [], -1
            self._answer(whole)

    def _answer(self, request: bytes) -> None:
        searched = request[:_SEARCHED_BYTES] if len(request) <= _SEARCHED_BYTES else b""
        if b'"stream":true' in searched or b'"stream": true' in searched:
            self._stream(0, PACED_SECONDS if b'"paced"' in searched else 0)
        elif request.startswith(b"GET"):
            body = b'{"object":"list","data":[{"id":"bench","object":"model"}]}'
            length = b"content-length: %d\r\n\r\n" % len(body)
            self._transport.write(HEAD + b"content-type: application/json\r\n" + length + body)
        else:
            # About what a tokeniser would say: the text has 4.3 bytes for each token.
            self._transport.write(_completion(len(request) * 10 // 43))

    def _stream(self, index: int, pause_seconds: float) -> None:
        """Each chunk in a turn of its own of the loop, as a model would make them."""
        if self._transport.is_closing():
            return
        self._transport.write(STREAM[index])
        if index + 1 < len(STREAM):
            loop = asyncio.get_running_loop()
            if pause_seconds:
                loop.call_later(pause_seconds, self._stream, index + 1, pause_seconds)
            else:
                loop.call_soon(self._stream, index + 1, pause_seconds)


def _body_bytes(head: bytes) -> int:
    at = head.find(b"\r\ncontent-length:")
    return int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answering, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[2])})
    uvloop.run(_serve(int(sys.argv[1])))
