"""A strict provider that is picky about images, in the words and numbers that a test asks for, and
images to try it with."""

import base64
import json
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.fake_provider import Scripted, Seen
from tests.proxied import JsonObject
from tests.strict_provider import Call, StrictProvider, request_tokens


@dataclass(frozen=True)
class Shown:
    """What a provider sees of a request: its images' URLs in order, its body."""

    urls: Sequence[str]
    body: bytes

    @property
    def sizes_bytes(self) -> list[int]:
        """The decoded size of each image that is in the request."""
        return [len(url.partition(",")[2]) * 3 // 4 for url in self.urls if url[:5] == "data:"]


Refusal = tuple[int, bytes]
Judge = Callable[[Shown], Refusal | None]


class PickyProvider(StrictProvider):
    """Refuses what `judge` has something against, summary calls too if `summaries`; nothing else
    than chats is served."""

    def __init__(
        self, judge: Judge, window: int | None = None, *, summaries: bool = True, **options: Any
    ) -> None:
        super().__init__(window, **options)
        self.judge = judge
        self.summaries_too = summaries

    @property
    def refused(self) -> list[Call]:
        """Every call refused for its images."""
        return [call for call in self.calls if call.refusal is not None]

    async def _answer(self, seen: Seen, send: Any) -> None:
        if seen.path.endswith("/chat/completions"):
            await super()._answer(seen, send)
            return
        await self._send(send, seen, Scripted(status=404), [b"{}"], "application/json")

    async def _chat(self, send: Any, seen: Seen, script: Scripted, chat: Any) -> None:
        summary = self.is_summary(chat)
        refusal = self.judge(Shown(image_urls(chat["messages"]), seen.body))
        if refusal is None or (summary and not self.summaries_too):
            await super()._chat(send, seen, script, chat)
            return
        status, body = refusal
        self.calls.append(Call(seen, chat, request_tokens(chat), 0, summary, body, ()))
        await self._send(send, seen, Scripted(status=status), [body], "application/json")


def said(message: str, *, status: int = 400, code: str | None = None) -> Refusal:
    """A refusal in OpenAI's envelope."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return status, json.dumps({"error": error}).encode()


IN_VLLM_WORDS = "At most {limit} image(s) may be provided in one request."


def at_most(count: int, words: str = IN_VLLM_WORDS) -> Judge:
    """A judge that takes so many images; `words` may name `{limit}` and `{count}`."""

    def judge(shown: Shown) -> Refusal | None:
        if len(shown.urls) <= count:
            return None
        return said(words.format(limit=count, count=len(shown.urls)))

    return judge


def no_images(shown: Shown) -> Refusal | None:
    """A judge for a model that takes text alone."""
    words = "Invalid content type. image_url is only supported by certain models."
    return said(words) if shown.urls else None


def image_urls(messages: Sequence[Any]) -> list[str]:
    """The URL of every image in user and tool messages, in order."""
    return [
        part["image_url"]["url"]
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if part.get("type") == "image_url"
    ]


def png(width_px: int, height_px: int, *, size_bytes: int = 300, seed: int = 0) -> str:
    """A data URL of a PNG with that size in its header and noise for a picture."""
    size = struct.pack(">IIBBBBB", width_px, height_px, 8, 2, 0, 0, 0)
    noise = random.Random(seed).randbytes(max(size_bytes - 45, 0))
    whole = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", size) + _chunk(b"IDAT", noise)
    return "data:image/png;base64," + base64.b64encode(whole).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + check


def showing(text: str, *urls: str) -> JsonObject:
    """A user message with images."""
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"role": "user", "content": [{"type": "text", "text": text}, *images]}
