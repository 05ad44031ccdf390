"""Counts the tokens of requests: each message once, long text off the event loop, never a download.

What is counted is decided in `core.counting`; the provider's own figures are in `anchor_book`.
Counts are ours, unscaled: whoever compares them with a budget scales them first.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, ParamSpec, TypeVar

import tiktoken
from cachetools import LRUCache

from proxy import vocabulary
from proxy.core.counting import (
    PIECE_MAX_CHARS,
    PRIMING_TOKENS,
    CountedMessage,
    counted,
    estimated_tokens,
    json_text,
    pieces_of,
)
from proxy.core.image_prices import price_image
from proxy.core.messages import Message
from proxy.core.tool_text import EXTRA_FIELDS, extra_texts
from proxy.image_sizes import part_size

CACHE_ENTRIES = 16_384
"""Messages remembered: about 5 MB, and 80 conversations of 200 messages beside those whose counts
are kept with their readings. Chosen."""

EXTRAS_CACHE_ENTRIES = 1024
"""Sets of tools remembered; an agent sends the same set on every turn."""

INLINE_BYTES = 32 * 1024
"""New messages up to this size are counted at once: at most about 5 ms of the event loop, less
than the way to a thread and back costs when the machine is busy. Larger ones go to a thread."""

INLINE_DIGEST_BYTES = 2 * 1024 * 1024
"""Bodies larger than this are looked up in the cache by a thread: hashing runs at 3 GB/s."""

INLINE_MESSAGES = 4096
"""The same for requests of more messages: a look-up takes about 2 microseconds."""

P = ParamSpec("P")
T = TypeVar("T")
_Key = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class MessageCount:
    """The tokens of one message, by part. `images` holds audio and files too."""

    content: int
    calls: int
    reasoning: int
    images: int
    marks: int

    @property
    def total(self) -> int:
        """What the message counts."""
        return self.content + self.calls + self.reasoning + self.images + self.marks


class Meter:
    """Token counts with a cache of messages and a few threads. One per process is enough."""

    def __init__(self, *, cache_entries: int = CACHE_ENTRIES, threads: int = 2) -> None:
        """Nothing is read yet; `prepare` reads the vocabulary ahead of the first request."""
        self._lock = Lock()
        self._messages: MutableMapping[_Key, int] = LRUCache(cache_entries)
        self._extras: MutableMapping[_Key, int] = LRUCache(EXTRAS_CACHE_ENTRIES)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tidegate-meter")

    async def prepare(self) -> None:
        """Read the usual vocabulary in a thread, so that hardly a request waits for it. That of
        older models (33 MB of memory) is read when one of them is first counted."""
        await self._in_thread(vocabulary.load, vocabulary.O200K_BASE)
        # The first thread that uses a pattern has it to itself from then on, and others wait for
        # each other: it shall be one of ours (an eighth of a long request's time).
        await self._in_thread(self.count_text, "A first text.", vocabulary.O200K_BASE.name)

    def close(self) -> None:
        """Let the threads go; what they are counting is finished, what waits is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def count_text(self, text: str, model: str) -> int:
        """The tokens of a text; what looks like a special token is plain text."""
        encoding = vocabulary.encoding_for(model)
        if len(text) <= PIECE_MAX_CHARS:
            return _piece_tokens(encoding, text)
        return sum(_piece_tokens(encoding, piece) for piece in pieces_of(text))

    def counter(self, model: str) -> Callable[[str], int]:
        """`count_text` for one model: what pure code is given to count with."""
        return lambda text: self.count_text(text, model)

    def count_parts(self, message: Message, model: str) -> MessageCount:
        """The tokens of a message by part, not cached."""
        of = counted(message)
        return MessageCount(
            content=self._texts(of.content, model),
            calls=self._texts(of.calls, model),
            reasoning=self._texts(of.reasoning, model),
            images=_image_tokens(of, model),
            marks=of.mark_tokens + self._texts((of.name,), model),
        )

    def count_message(self, raw: bytes, message: Message, model: str) -> int:
        """The tokens of a message whose JSON is `raw`, from the cache if it was seen before."""
        key = _key(raw, model)
        with self._lock:
            known = self._messages.get(key)
        return self._count_new({key: message}, model)[key] if known is None else known

    async def count_messages(
        self, items: Sequence[tuple[bytes, Message]], model: str
    ) -> tuple[int, ...]:
        """The tokens of each message, given with its JSON; only new ones are tokenised."""
        size_bytes = sum(len(raw) for raw, _ in items)
        if len(items) > INLINE_MESSAGES or size_bytes > INLINE_DIGEST_BYTES:
            return await self._in_thread(self._count_all, items, model)
        keys = [_key(raw, model) for raw, _ in items]
        with self._lock:
            known = {key: self._messages.get(key) for key in keys}
        keyed = zip(keys, items, strict=True)
        missing = {key: item for key, item in keyed if known[key] is None}
        if missing:
            new = {key: message for key, (_, message) in missing.items()}
            new_bytes = sum(len(raw) for raw, _ in missing.values())
            if new_bytes <= INLINE_BYTES and vocabulary.is_loaded(model):
                known |= self._count_new(new, model)
            else:
                known |= await self._in_thread(self._count_new, new, model)
        return tuple(known[key] or 0 for key in keys)

    def count_extras(self, params: Mapping[str, Any], model: str) -> int:
        """The tokens of a request beside its messages: tools, schemas and the reply's opening. Not
        cached."""
        extras = {field: params[field] for field in EXTRA_FIELDS if params.get(field) is not None}
        if not extras:
            return PRIMING_TOKENS
        texts, mark_tokens = extra_texts(extras, model)
        # The form with spaces could, for lists of digits, take more tokens than the client's bytes.
        most = len(json_text(extras).encode("utf-8", "surrogatepass"))
        return PRIMING_TOKENS + min(mark_tokens + self._texts(texts, model), most)

    async def measure_extras(
        self, params: Mapping[str, Any], model: str, *, fields: Mapping[str, bytes]
    ) -> int:
        """`count_extras`, in a thread when the fields are long. `fields` are the same as the client
        wrote them: what was counted is found by that, without writing it anew."""
        written = [name.encode() + fields[name] for name in EXTRA_FIELDS if name in fields]
        if not written:
            return PRIMING_TOKENS
        whole = b"\0".join(written)
        key = _key(whole, model)
        with self._lock:
            known = self._extras.get(key)
        if known is not None:
            return known
        if len(whole) <= INLINE_BYTES and vocabulary.is_loaded(model):
            tokens = self.count_extras(params, model)
        else:
            tokens = await self._in_thread(self.count_extras, params, model)
        with self._lock:
            self._extras[key] = tokens
        return tokens

    def count_request(self, request: Mapping[str, Any], model: str) -> int:
        """The tokens of a whole chat request that is at hand as values, not cached by message."""
        messages = request.get("messages")
        return self.count_extras(request, model) + sum(
            self.count_parts(message, model).total
            for message in (messages if isinstance(messages, list) else ())
            if isinstance(message, Mapping)
        )

    def image_tokens(self, message: Message, model: str) -> int:
        """The price of the images, audio and files of a message; a part of its count."""
        if not isinstance(message.get("content"), list):
            return 0
        return _image_tokens(counted(message), model)

    def upper_bound(self, *, body_bytes: int, data_url_bytes: int, image_tokens: int) -> int:
        """No request counts more than this: a token of text takes at least one byte.

        `data_url_bytes` are the bytes of the body that hold images, which `image_tokens` price.
        """
        return max(0, body_bytes - data_url_bytes) + image_tokens

    def _texts(self, texts: Iterable[str], model: str) -> int:
        return sum([self.count_text(text, model) for text in texts if text])

    def _count_new(self, messages: Mapping[_Key, Message], model: str) -> dict[_Key, int]:
        """The tokens of messages that the cache did not know, and now does."""
        found: dict[_Key, int] = {}
        for key, message in messages.items():
            # `count_parts` in one sum.
            of = counted(message)
            texts = self._texts(of.texts(), model)
            found[key] = of.mark_tokens + texts + _image_tokens(of, model)
        with self._lock:
            self._messages.update(found)
        return found

    def _count_all(self, items: Sequence[tuple[bytes, Message]], model: str) -> tuple[int, ...]:
        return tuple(self.count_message(raw, message, model) for raw, message in items)

    async def _in_thread(self, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        call = partial(work, *arguments, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _key(raw: bytes, model: str) -> _Key:
    # The model stands in the key: images cost by model, not by vocabulary. Python's own hash has 64
    # bits and a key that each process draws; it takes a third of what sha256 does (430 KB: 0.15 and
    # 0.41 ms), which besides gives other threads the interpreter at every long message.
    return model, len(raw), hash(raw)


def _image_tokens(of: CountedMessage, model: str) -> int:
    tokens = of.attachment_tokens
    for image in of.images:
        size = part_size(image)
        width_px, height_px = (size.width_px, size.height_px) if size else (None, None)
        tokens += price_image(model, width_px, height_px, image.detail)
    return tokens


def _piece_tokens(encoding: tiktoken.Encoding, piece: str) -> int:
    try:
        return len(encoding.encode_ordinary(piece))
    except BaseException as error:
        # tiktoken panics where its pattern runs out of stack; that is not an `Exception`, and its
        # class cannot be imported. Pieces are short enough that this was never seen.
        if type(error).__name__ != "PanicException":
            raise
        return estimated_tokens(piece)
