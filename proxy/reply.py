"""A provider's reply: its status, its headers as sent, its bytes as they come, and its end.

A reply owns its upstream stream. Whoever holds a reply closes it, on every way out; closing twice,
or after the end, does nothing. A reply that breaks off raises after the bytes that came.
"""

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from proxy.codings import CodingError, Decoder, codings_of, make_decoder
from proxy.core.errors import ProviderBroke, ProviderError
from proxy.tap import Tap

logger = logging.getLogger(__name__)


class ByteSource(Protocol):
    """Where a reply's bytes come from; a cancelled read loses nothing."""

    async def __anext__(self) -> bytes:
        """The bytes at hand, or those that come next."""

    async def aclose(self) -> None:
        """Gives the source up. May be called more than once."""


@dataclass(frozen=True, slots=True)
class ReplyEnd:
    """How a reply ended: whole (`completed`), broken off (`broke` says why), or left (neither)."""

    status: int
    usage: Mapping[str, Any] | None
    finish_reason: str | None
    completed: bool
    broke: str | None
    passed_bytes: int


class Reply:
    """One reply, read once. `on_end` is called once, when it ends or is closed before that."""

    def __init__(
        self,
        status: int,
        headers: Sequence[tuple[bytes, bytes]],
        source: ByteSource,
        *,
        decoder: Decoder | None = None,
        tap: Tap | None = None,
        decoded: bool = False,
    ) -> None:
        """`decoder` undoes the content coding for the tap; `decoded`: for the client as well."""
        self.status = status
        self.headers = tuple(headers)
        self.decoded = decoded
        self.local = False
        self.on_end: Callable[[ReplyEnd], None] | None = None
        self.tap = tap
        self._source = source
        self._decoder = decoder
        self._held: deque[bytes] = deque()
        self._held_error: ProviderError | None = None
        self._at_end = False
        self._passed_bytes = 0
        self._closed = False
        self._end: ReplyEnd | None = None

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """The reported usage, once the reply has ended."""
        return self._end.usage if self._end is not None else None

    @property
    def ended(self) -> ReplyEnd | None:
        """How the reply ended, once it has."""
        return self._end

    @property
    def finished(self) -> bool:
        """Whether the whole reply has passed."""
        return self._end is not None and self._end.completed

    def header(self, name: bytes) -> bytes | None:
        """The first header of that (lower case) name."""
        for key, value in self.headers:
            if key.lower() == name:
                return value
        return None

    async def read(self) -> bytes | None:
        """The next bytes for the client, held ones first; None at the end of a whole reply.

        Raises:
            ProviderBroke: the reply broke off; all bytes that came were given before.
        """
        if self._held:
            chunk = self._held.popleft()
        else:
            pulled = await self._pull_or_raise()
            if pulled is None:
                self._finish(completed=True, broke=None)
                return None
            chunk = pulled
        self._passed_bytes += len(chunk)
        return chunk

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes for the client, as `read` gives them."""
        while (chunk := await self.read()) is not None:
            yield chunk

    async def whole(self, *, max_bytes: int) -> bytes:
        """All of it, for an answer that Tidegate itself asked for.

        Raises:
            ProviderBroke: it broke off, or is longer than `max_bytes`.
        """
        chunks: list[bytes] = []
        left = max_bytes
        async for chunk in self.chunks():
            left -= len(chunk)
            if left < 0:
                raise ProviderBroke(f"The provider's answer is longer than {max_bytes} bytes.")
            chunks.append(chunk)
        return b"".join(chunks)

    async def hold(self) -> bool:
        """Takes in the next bytes without passing them on; False when no more come.

        Raises:
            ProviderError: the reply broke off. `read` raises it again, after the held bytes.
        """
        if self._at_end:
            return False
        try:
            chunk = await self._pull()
        except ProviderError as exc:
            self._held_error = exc
            raise
        if chunk is None:
            return False
        self._held.append(chunk)
        return True

    def decode_for_client(self) -> None:
        """From here on `read` gives decoded bytes, those held included; nothing was read before."""
        named = b",".join(v for k, v in self.headers if k.lower() == b"content-encoding")
        decoder = make_decoder(codings_of(named))
        if self.decoded or decoder is None:
            return
        try:
            held = [piece for chunk in self._held for piece in decoder.feed(chunk)]
        except CodingError:
            logger.warning("reply_coding_wrong status=%d", self.status)
            return
        self._held = deque(held)
        self._decoder, self.decoded = decoder, True

    @property
    def held_bytes(self) -> int:
        """How much is held."""
        return sum(map(len, self._held))

    async def aclose(self) -> None:
        """Gives the upstream stream up. A reply closed before its end was left by the client."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._source.aclose()
        finally:
            self._finish(completed=False, broke=None)

    async def _pull_or_raise(self) -> bytes | None:
        try:
            if self._held_error is not None:
                raise self._held_error
            if self._at_end:
                return None
            return await self._pull()
        except ProviderError as exc:
            self._finish(completed=False, broke=exc.message)
            raise

    async def _pull(self) -> bytes | None:
        """The next bytes as the client gets them; None when the reply ended and is whole."""
        while True:
            try:
                chunk = await anext(self._source)
            except StopAsyncIteration:
                self._at_end = True
                await self._source.aclose()
                self._judge_end()
                return None
            passing = self._through(chunk)
            if passing:
                return passing

    def _through(self, chunk: bytes) -> bytes:
        """Shows the chunk to the tap, and undoes its coding when the client cannot."""
        if self._decoder is None:
            if self.tap is not None:
                self.tap.feed(chunk)
            return chunk
        passing = bytearray()
        try:
            for piece in self._decoder.feed(chunk):
                if self.tap is not None:
                    self.tap.feed(piece)
                if self.decoded:
                    passing += piece
        except CodingError as exc:
            if self.decoded:
                message = "The provider's reply is not in the content coding it names."
                raise ProviderBroke(message) from exc
            logger.warning("reply_coding_wrong status=%d", self.status)
            self._decoder, self.tap = None, None
        return bytes(passing) if self.decoded else chunk

    def _judge_end(self) -> None:
        if self.tap is None:
            return
        self.tap.end()
        if self.tap.broken is not None:
            raise ProviderBroke(f"The provider's reply is not whole: {self.tap.broken}.")

    def _finish(self, *, completed: bool, broke: str | None) -> None:
        if self._end is not None:
            return
        self._end = ReplyEnd(
            status=self.status,
            usage=self.tap.usage if self.tap is not None else None,
            finish_reason=self.tap.finish_reason if self.tap is not None else None,
            completed=completed,
            broke=broke,
            passed_bytes=self._passed_bytes,
        )
        if self.on_end is not None:
            self.on_end(self._end)


class LocalSource:
    """Bytes that Tidegate made itself."""

    def __init__(self, chunks: Sequence[bytes]) -> None:
        """The chunks, in order."""
        self._chunks = deque(chunks)

    async def __anext__(self) -> bytes:
        """The next chunk."""
        if not self._chunks:
            raise StopAsyncIteration
        return self._chunks.popleft()

    async def aclose(self) -> None:
        """Nothing is open."""
        self._chunks.clear()


def local_reply(status: int, headers: Sequence[tuple[bytes, bytes]], *chunks: bytes) -> Reply:
    """An answer of Tidegate's own in the shape of a reply."""
    reply = Reply(status, headers, LocalSource(chunks))
    reply.local = True
    return reply
