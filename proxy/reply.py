"""A provider's reply: its status, its headers as sent, its bytes as they come, and its end.

A reply owns its upstream stream. Whoever holds a reply closes it, on every way out; closing twice,
or after the end, does nothing. A reply that breaks off raises after the bytes that came.
"""

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from proxy.codings import CodingError, Decoder, codings_of, make_decoder
from proxy.core.errors import ProviderBroke, ProviderError
from proxy.tap import EventTap, Tap

logger = logging.getLogger(__name__)

# A compressed reply is decoded for the tap up to here. No honest chat is longer; a few bytes that
# stand for gigabytes would hold the event loop.
MAX_TAPPED_BYTES = 64 << 20


class ByteSource(Protocol):
    """Where a reply's bytes come from; a cancelled read loses nothing."""

    @property
    def arrived(self) -> bool:
        """Whether all of them are here, so that no read has to wait."""

    async def read(self) -> bytes:
        """The bytes at hand, or those that come next; empty at the end."""

    async def aclose(self) -> None:
        """Gives the source up. May be called more than once."""


class Sieve(Protocol):
    """Takes something out of the bytes that pass to the client."""

    def feed(self, piece: bytes) -> bytes:
        """What may pass now."""

    def end(self) -> bytes:
        """What was held back, once nothing more comes; empty when asked again."""


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
        """`decoder` undoes the content coding for the tap; `decoded`: the client cannot do it."""
        self.status = status
        self.headers = tuple(headers)
        self.local = False
        self.on_end: Callable[[ReplyEnd], None] | None = None
        self.tap = tap
        self._source = source
        self._decoder = decoder
        self._tapped_bytes = 0
        self._client_decoder: Decoder | None = None
        self._sieve: Sieve | None = None
        self._pieces: Iterator[bytes] | None = None
        self._held: deque[bytes] = deque()
        self._held_error: ProviderError | None = None
        self._at_end = False
        self._passed_bytes = 0
        self._closed = False
        self._end: ReplyEnd | None = None
        if decoded:
            self.decode_for_client()

    @property
    def decoded(self) -> bool:
        """Whether `read` gives bytes without the content coding that the headers name."""
        return self._client_decoder is not None

    @property
    def arrived(self) -> bool:
        """Whether the whole reply is here, so that neither `read` nor `hold` has to wait."""
        return self._at_end or self._source.arrived

    @property
    def is_event_stream(self) -> bool:
        """Whether it is a stream of events that is read as it passes."""
        return isinstance(self.tap, EventTap)

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
        while True:
            piece = None if self._pieces is None else self._next_piece(self._pieces)
            if piece is None:
                try:
                    piece = self._next_held() or (None if self._at_end else await self._pull())
                except ProviderError as exc:
                    self._finish(completed=False, broke=exc.message)
                    rest = self._sifted_rest()
                    if not rest:
                        raise
                    self._held_error = exc
                    return rest
                if piece is None:
                    rest = self._sifted_rest()
                    if rest:
                        return rest
                    self._finish(completed=True, broke=None)
                    return None
                if self._client_decoder is not None:
                    self._pieces = self._client_decoder.feed(piece)
                    continue
            if self._sieve is not None:
                piece = self._sieve.feed(piece)
                if not piece:
                    continue
            self._passed_bytes += len(piece)
            return piece

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
        self._client_decoder = self._client_decoder or make_decoder(codings_of(named))

    def sift(self, sieve: Sieve) -> None:
        """From here on `read` gives what the sieve lets pass; nothing was read before."""
        self._sieve = sieve
        self.headers = tuple(item for item in self.headers if item[0].lower() != b"content-length")

    def _sifted_rest(self) -> bytes:
        """What the sieve held back of a reply that ended, however it did."""
        rest = self._sieve.end() if self._sieve is not None else b""
        self._passed_bytes += len(rest)
        return rest

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
            if not self._at_end:
                await self._source.aclose()
        finally:
            self._finish(completed=False, broke=None)

    def _next_held(self) -> bytes | None:
        """What was held and not yet given; after it the break, if holding met one."""
        if self._held:
            return self._held.popleft()
        if self._held_error is not None:
            raise self._held_error
        return None

    async def _pull(self) -> bytes | None:
        """The next bytes as they came; None when the reply ended and is whole."""
        chunk = await self._source.read()
        if not chunk:
            await self._source.aclose()
            self._at_end = True
            self._judge_end()
            return None
        if self.tap is not None:
            self._show(chunk, self.tap)
        return chunk

    def _show(self, chunk: bytes, tap: Tap) -> None:
        """Shows the chunk's plain bytes to the tap, for as long as they can be read."""
        if self._decoder is None:
            tap.feed(chunk)
            return
        try:
            for piece in self._decoder.feed(chunk):
                tap.feed(piece)
                self._tapped_bytes += len(piece)
                if self._tapped_bytes > MAX_TAPPED_BYTES:
                    logger.warning("reply_too_large_to_read status=%d", self.status)
                    self.tap = None
                    return
        except CodingError as exc:
            if self.decoded:
                raise _not_that_coding() from exc
            logger.warning("reply_coding_wrong status=%d", self.status)
            self.tap = None

    def _next_piece(self, pieces: Iterator[bytes]) -> bytes | None:
        """What is left of the last chunk: each piece is decoded when the client has taken those
        before it, so that a small chunk never becomes a large one in memory."""
        try:
            return next(pieces, None)
        except CodingError as exc:
            broke = _not_that_coding()
            self._finish(completed=False, broke=broke.message)
            raise broke from exc

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


def _not_that_coding() -> ProviderBroke:
    return ProviderBroke("The provider's reply is not in the content coding it names.")


class LocalSource:
    """Bytes that Tidegate made itself."""

    def __init__(self, chunks: Sequence[bytes]) -> None:
        """The chunks, in order."""
        self._chunks = deque(chunks)

    @property
    def arrived(self) -> bool:
        """All of them were here from the start."""
        return True

    async def read(self) -> bytes:
        """The next chunk that is not empty."""
        while self._chunks:
            if chunk := self._chunks.popleft():
                return chunk
        return b""

    async def aclose(self) -> None:
        """Nothing is open."""
        self._chunks.clear()


def local_reply(status: int, headers: Sequence[tuple[bytes, bytes]], *chunks: bytes) -> Reply:
    """An answer of Tidegate's own in the shape of a reply."""
    reply = Reply(status, headers, LocalSource(chunks))
    reply.local = True
    return reply
