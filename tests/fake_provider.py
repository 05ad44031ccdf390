"""A provider small enough to read: it really counts, really refuses, really streams, on a socket.

    with running(FakeProvider(window=1000)) as provider:
        provider.next(status=503)  # the next chat gets this; later ones are answered
        ... requests to provider.url ...
        assert len(provider.chats) == 2

For faults that no HTTP server makes there is `tests.raw_provider`, which speaks bytes.
"""

import asyncio
import contextlib
import gzip
import json
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.serving import serve

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Seen:
    """One request as the provider received it."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    at: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        """The first value of a header."""
        for key, value in self.headers:
            if key == name.lower().encode():
                return value.decode("latin-1")
        return None

    def header_list(self, name: str) -> list[str]:
        """Every value of a header, in order."""
        wanted = name.lower().encode()
        return [value.decode("latin-1") for key, value in self.headers if key == wanted]


@dataclass
class Scripted:
    """What happens to one chat instead of an ordinary answer; unset fields stay ordinary."""

    status: int = 200
    body: bytes | None = None
    chunks: Sequence[bytes] | None = None
    headers: Headers = ()
    content_type: str | None = None
    delay: float = 0  # before the response's headers
    pause: float | None = None  # between chunks
    break_after: int | None = None  # chunks sent before the connection is cut
    coding: str | None = None  # gzip or deflate
    overflow: bool = False
    never: bool = False  # no response at all until the client leaves


def word_count(messages: Any) -> int:
    """A countable stand-in for tokens: words of all text, 4 per message."""
    total = 0
    for message in messages if isinstance(messages, list) else ():
        total += 4 + len(json.dumps(message, ensure_ascii=False).split())
    return total


def overflow_body(window: int, prompt: int) -> bytes:
    """OpenAI's own words."""
    return json.dumps(
        {
            "error": {
                "message": f"This model's maximum context length is {window} tokens. However, your"
                f" messages resulted in {prompt} tokens. Please reduce the length of the messages.",
                "type": "invalid_request_error",
                "param": "messages",
                "code": "context_length_exceeded",
            }
        }
    ).encode()


class FakeProvider:
    """Counts, refuses over its window, answers, streams, reports usage, remembers what it saw."""

    def __init__(
        self,
        *,
        window: int | None = None,
        count: Callable[[Any], int] = word_count,
        is_summary: Callable[[Any], bool] = lambda body: False,
        answer: Callable[[Any], str] = lambda body: "It is done, as you asked.",
        summary: Callable[[Any], str] = lambda body: "The user asked; it was done.",
        pause: float = 0,
    ) -> None:
        """`is_summary` tells summary calls from main calls by the request's body."""
        self.window = window
        self.count = count
        self.is_summary = is_summary
        self.answer = answer
        self.summary = summary
        self.pause = pause
        self.requests: list[Seen] = []
        self.cancelled = 0
        self.sent_chunks = 0
        self.sent_at: list[float] = []
        self.url = ""
        self._scripts: deque[Scripted] = deque()
        self._summary_scripts: deque[Scripted] = deque()

    @property
    def chats(self) -> list[Seen]:
        """Main calls."""
        return [r for r in self._chat_requests() if not self.is_summary(r.json)]

    @property
    def summaries(self) -> list[Seen]:
        """Summary calls."""
        return [r for r in self._chat_requests() if self.is_summary(r.json)]

    def _chat_requests(self) -> list[Seen]:
        return [r for r in self.requests if r.path.endswith("/chat/completions")]

    def next(self, **script: Any) -> None:
        """Scripts the next unscripted main call (or request to any other path)."""
        self._scripts.append(Scripted(**script))

    def next_summary(self, **script: Any) -> None:
        """Scripts the next unscripted summary call."""
        self._summary_scripts.append(Scripted(**script))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        body = await _read_body(receive)
        if body is None:
            self.cancelled += 1
            return
        seen = Seen(
            scope["method"],
            scope["raw_path"].decode("latin-1"),
            scope["query_string"],
            tuple(scope["headers"]),
            body,
            time.monotonic(),
        )
        self.requests.append(seen)
        answer = asyncio.create_task(self._answer(seen, send))
        left = asyncio.create_task(_left(receive))
        await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            self.cancelled += 1
        left.cancel()
        answer.cancel()
        await asyncio.wait({answer, left})
        if not answer.cancelled() and (error := answer.exception()) is not None:
            raise error

    async def _answer(self, seen: Seen, send: Any) -> None:
        is_chat = seen.path.endswith("/chat/completions")
        chat = _json_or_none(seen.body) if is_chat else None
        scripts = self._scripts
        if chat is not None and self.is_summary(chat):
            scripts = self._summary_scripts
        script = scripts.popleft() if scripts else Scripted()
        if script.never:
            await asyncio.Event().wait()
        await asyncio.sleep(script.delay)
        if script.body is not None or script.chunks is not None or script.status != 200:
            chunks = script.chunks if script.chunks is not None else [script.body or b""]
            await self._send(send, seen, script, chunks, script.content_type or "application/json")
        elif chat is None:
            kind = seen.header("content-type") or "application/octet-stream"
            await self._send(send, seen, script, [seen.body], kind)
        else:
            await self._chat(send, seen, script, chat)

    async def _chat(self, send: Any, seen: Seen, script: Scripted, chat: Any) -> None:
        prompt = self.count(chat.get("messages"))
        if script.overflow or (self.window is not None and prompt > self.window):
            script.status = 400
            refusal = overflow_body(self.window or prompt - 1, prompt)
            await self._send(send, seen, script, [refusal], "application/json")
            return
        text = self.summary(chat) if self.is_summary(chat) else self.answer(chat)
        usage = {"prompt_tokens": prompt, "completion_tokens": len(text.split())}
        usage["total_tokens"] = prompt + usage["completion_tokens"]
        if chat.get("stream"):
            options = chat.get("stream_options") or {}
            reported = usage if options.get("include_usage") else None
            await self._send(
                send, seen, script, stream_events(text, usage=reported), "text/event-stream"
            )
            return
        whole = json.dumps(completion(text, usage=usage)).encode()
        await self._send(send, seen, script, [whole], "application/json")

    async def _send(
        self, send: Any, seen: Seen, script: Scripted, chunks: Sequence[bytes], kind: str
    ) -> None:
        headers = [(b"content-type", (script.content_type or kind).encode()), *script.headers]
        compress = _compressor(script.coding)
        if script.coding is not None:
            headers.append((b"content-encoding", script.coding.encode()))
        elif len(chunks) == 1 and script.break_after is None and kind != "text/event-stream":
            headers.append((b"content-length", b"%d" % len(chunks[0])))
        await send({"type": "http.response.start", "status": script.status, "headers": headers})
        pause = self.pause if script.pause is None else script.pause
        for index, chunk in enumerate(chunks):
            if script.break_after == index:
                return  # uvicorn cuts the connection of an answer that does not complete
            if index and pause:
                await asyncio.sleep(pause)
            self.sent_chunks += 1
            self.sent_at.append(time.monotonic())
            data = compress(chunk)
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": compress(None)})


@contextlib.contextmanager
def running(provider: FakeProvider) -> Iterator[FakeProvider]:
    """The provider on a port of its own."""
    with serve(provider) as served:
        provider.url = served.url
        yield provider


def completion(text: str, *, usage: Mapping[str, Any] | None = None, **extra: Any) -> Any:
    """A whole chat completion."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "fake"}
    return {**head, "choices": [choice], "usage": usage, **extra}


def stream_event(delta: Any, *, finish: str | None = None, **extra: Any) -> bytes:
    """One chunk of a streamed completion, as an event."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
    return b"data: " + json.dumps({**head, "choices": [choice], **extra}).encode() + b"\n\n"


def stream_events(text: str, *, usage: Mapping[str, Any] | None = None) -> list[bytes]:
    """A whole stream: role, words, finish, usage when asked for, [DONE]."""
    events = [stream_event({"role": "assistant", "content": ""})]
    for index, word in enumerate(text.split(" ")):
        events.append(stream_event({"content": word if index == 0 else " " + word}))
    events.append(stream_event({}, finish="stop"))
    if usage is not None:
        last = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": []}
        events.append(b"data: " + json.dumps({**last, "usage": usage}).encode() + b"\n\n")
    events.append(b"data: [DONE]\n\n")
    return events


def _compressor(coding: str | None) -> Callable[[bytes | None], bytes]:
    """Compresses chunk by chunk, each one flushed; None ends the body."""
    if coding is None:
        return lambda chunk: chunk or b""
    packer = zlib.compressobj(wbits=31 if coding == "gzip" else 15)

    def compress(chunk: bytes | None) -> bytes:
        if chunk is None:
            return packer.flush()
        return packer.compress(chunk) + packer.flush(zlib.Z_SYNC_FLUSH)

    return compress


def gzipped(data: bytes) -> bytes:
    """The same bytes every time."""
    return gzip.compress(data, mtime=0)


def _json_or_none(body: bytes) -> Any:
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


async def _read_body(receive: Any) -> bytes | None:
    body: bytes = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _lifespan(receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})
