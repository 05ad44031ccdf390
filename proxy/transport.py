"""The way out: aiohttp's client, held so that it adds nothing and joins nothing.

By itself it would add headers, keep cookies, rewrite the URL and read the environment; each of
these is switched off here. Chunks are handed on as they arrive.
"""

import asyncio
import ssl
import weakref
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache

import aiohttp
import certifi
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from yarl import URL

from proxy.relay import ProviderRequest

# aiohttp waits for the kernel once 64 KB are on their way, headers counted: a smaller body is
# written at once, a larger one in slices and watched.
WRITTEN_AT_ONCE_BYTES = 1 << 15
# Under TLS progress shows only slice by slice.
_SLICE_BYTES = 1 << 18
# How often within the write limit it is looked whether the upstream takes anything.
_LOOKS = 4

# Idle connections are kept less long than the usual server keeps them (nginx 75 s, uvicorn 5 s:
# those that close first are met by the one retry on a fresh connection).
KEEPALIVE_SECONDS = 30.0
# A pool whose connections are too old to be used again the moment they come back.
_FRESH_ONLY_SECONDS = 0.001

# aiohttp's own limit is 8190; providers' cookies, policies and link headers are longer at times.
_MAX_HEADER_BYTES = 64 * 1024
_MAX_HEADERS = 512

_AUTO_HEADERS = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")


class StaleConnection(Exception):
    """A pooled connection closed before any response byte: the request may be sent once more."""


class WriteStalled(Exception):
    """The upstream took no byte of the request body within the write limit."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits per gap, none in total. The first byte's is counted from the request's end."""

    connect_seconds: float = 10
    first_byte_seconds: float = 600
    between_bytes_seconds: float = 600
    write_seconds: float = 60


class ReplyStream:
    """A reply's body: each read gives what has arrived. A cancelled read loses nothing."""

    def __init__(self, response: aiohttp.ClientResponse, between_seconds: float) -> None:
        """The stream owns the response, and through it the connection."""
        self._response = response
        self._content = response.content
        self._between_seconds = between_seconds
        self._loop = asyncio.get_running_loop()
        self._waiting_since: float | None = None
        self._given_up_since: float | None = None  # when a read that was cancelled had begun
        self._next_look: asyncio.TimerHandle | None = None
        self._protocol: ResponseHandler | None = None
        self._lost: asyncio.Future[None] | None = None
        connection = response.connection
        if connection is not None and connection.protocol is not None:
            self._protocol = connection.protocol
            self._protocol.read_timeout = between_seconds
            self._lost = self._protocol.closed
        if self._lost is not None:
            self._lost.add_done_callback(self._tell_lost)

    @property
    def arrived(self) -> bool:
        """Whether all of it is here, so that no read has to wait."""
        return self._content.is_eof()

    async def read(self) -> bytes:
        """The bytes at hand, or those that come next; empty at the end."""
        protocol = self._protocol
        if protocol is not None:
            if not self._content.is_eof():
                protocol.start_timeout()  # in place of the one that ran for the first byte
            chunk = await self._content.readany()
            self._time_gaps(protocol)
            return chunk
        given_up = self._given_up_since  # nothing came since, or it is at hand now
        self._waiting_since = since = self._loop.time() if given_up is None else given_up
        try:
            chunk = await self._content.readany()
        except asyncio.CancelledError:
            self._given_up_since = since
            raise
        finally:
            self._waiting_since = None
        self._given_up_since = None
        return chunk

    async def aclose(self) -> None:
        """Gives the connection back after a whole body, closes it otherwise. Never waits."""
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        if self._lost is not None:
            self._lost.remove_done_callback(self._tell_lost)
            self._lost = None
        if self._content.is_eof() and not self._content.exception():
            self._response.release()
        else:
            self._response.close()

    def _time_gaps(self, protocol: ResponseHandler) -> None:
        """From the first bytes on the gaps are timed here: aiohttp makes a timer for each packet,
        this makes one for all, which looks again when a gap could have become too long."""
        self._protocol = None
        protocol.read_timeout = None
        if self._content.is_eof():
            return
        protocol.start_timeout()  # which ends the one that runs
        if self._between_seconds:
            self._next_look = self._loop.call_later(self._between_seconds, self._look)

    def _look(self) -> None:
        """Ends a reader's waiting that has lasted too long."""
        now = self._loop.time()
        since = now if self._waiting_since is None else self._waiting_since
        due = since + self._between_seconds
        if due > now:
            self._next_look = self._loop.call_at(due, self._look)
        else:
            self._content.set_exception(aiohttp.SocketTimeoutError("nothing came in time"))

    def _tell_lost(self, lost: asyncio.Future[None]) -> None:
        """Wakes a reader whose connection has closed.

        aiohttp 3.14 forgets to when chunked framing goes wrong in mid-body: it closes the
        connection, drops its own read limit, and the reader would wait for ever.
        """
        if not lost.cancelled():
            lost.exception()
        if not self._content.is_eof() and self._content.exception() is None:
            self._content.set_exception(
                aiohttp.ClientPayloadError("the connection closed in mid-body")
            )


@dataclass(frozen=True, slots=True)
class Response:
    """What came back: the status, the headers as sent, and the body, which is still coming."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    stream: ReplyStream


class Transport:
    """Requests sent over two aiohttp pools: one that reuses connections, one that never does.

    Raises aiohttp's errors, `StaleConnection` and `WriteStalled`; the provider translates them.
    """

    def __init__(
        self,
        timeouts: Timeouts,
        *,
        max_connections: int,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """To be made inside the running loop, which the sessions belong to."""
        self._write_seconds = timeouts.write_seconds
        self._between_seconds = timeouts.between_bytes_seconds
        self._timeout = aiohttp.ClientTimeout(
            connect=timeouts.connect_seconds, sock_read=timeouts.first_byte_seconds
        )
        self._context = context
        self._fresh = _session(
            aiohttp.TCPConnector(limit=max_connections, keepalive_timeout=_FRESH_ONLY_SECONDS)
        )
        self._pooled = _session(_Pool(limit=max_connections, keepalive_timeout=KEEPALIVE_SECONDS))

    async def send(self, request: ProviderRequest, *, fresh: bool = False) -> Response:
        """Sends the request, waits for the reply's headers. `fresh`: over no pooled connection."""
        session = self._fresh if fresh else self._pooled
        body = request.body
        _reused.set(False)
        try:
            if isinstance(body, bytes) and len(body) <= WRITTEN_AT_ONCE_BYTES:
                response = await self._request(session, request, body or None)
            else:
                response = await self._request_watched(session, request, body)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as exc:
            if _reused.get() and _before_any_byte(exc):
                raise StaleConnection from exc
            raise
        stream = ReplyStream(response, self._between_seconds)
        return Response(response.status, response.raw_headers, stream)

    async def _request(
        self, session: aiohttp.ClientSession, request: ProviderRequest, data: object
    ) -> aiohttp.ClientResponse:
        return await session.request(
            request.method,
            URL(request.origin + request.target, encoded=True),
            headers=[(_name(name), _text(value)) for name, value in request.headers],
            data=data,
            allow_redirects=False,
            timeout=self._timeout,
            ssl=self._trusted() if request.origin.startswith("https:") else True,
        )

    async def _request_watched(
        self,
        session: aiohttp.ClientSession,
        request: ProviderRequest,
        body: bytes | AsyncIterator[bytes],
    ) -> aiohttp.ClientResponse:
        """For a body that the upstream may stop taking."""
        try:
            async with asyncio.timeout(None) as limit:
                watched = (
                    _LargeBody(body, limit, self._write_seconds)
                    if isinstance(body, bytes)
                    else _watched(body, limit, self._write_seconds)
                )
                return await self._request(session, request, watched)
        except TimeoutError as exc:
            if limit.expired():
                raise WriteStalled from exc
            raise

    def _trusted(self) -> ssl.SSLContext:
        """Certificates checked against certifi's list, whatever the environment says. The list is
        read at the first request that needs it: 25 ms, and many upstreams are plain HTTP."""
        if self._context is None:
            self._context = ssl.create_default_context(cafile=certifi.where())
        return self._context

    async def aclose(self) -> None:
        """Closes both pools."""
        await self._fresh.close()
        await self._pooled.close()


# Whether this task's request went over a connection that an earlier request had used.
_reused: ContextVar[bool] = ContextVar("reused", default=False)


class _Pool(aiohttp.TCPConnector):
    """Connections that are kept, of which it is known whether they were used before."""

    def __init__(self, *, limit: int, keepalive_timeout: float) -> None:
        super().__init__(limit=limit, keepalive_timeout=keepalive_timeout)
        self._used = weakref.WeakSet[ResponseHandler]()

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # aiohttp's own signature
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        protocol = connection.protocol
        if protocol in self._used:
            _reused.set(True)
        elif protocol is not None:
            self._used.add(protocol)
        return connection


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=_AUTO_HEADERS,
        auto_decompress=False,
        trust_env=False,
        timeout=aiohttp.ClientTimeout(total=None),
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
        max_headers=_MAX_HEADERS,
    )


def _text(raw: bytes) -> str:
    """Text goes out as UTF-8, so UTF-8 keeps its bytes; Latin-1 keeps its characters."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


@lru_cache(maxsize=128)
def _name(raw: bytes) -> str:
    """The text of a header's name, of which there are few."""
    return _text(raw)


def _before_any_byte(error: aiohttp.ClientError) -> bool:
    """Whether the connection closed with nothing of a response read."""
    return not (isinstance(error, aiohttp.ServerDisconnectedError) and _partly_read(error))


def _partly_read(error: aiohttp.ServerDisconnectedError) -> bool:
    return not isinstance(error.message, str)


class _LargeBody(aiohttp.Payload):
    """A whole body written in slices. What the transport still holds of it tells whether the
    upstream takes anything; when it does not for the write limit, the request's limit is over."""

    def __init__(self, body: bytes, limit: asyncio.Timeout, write_seconds: float) -> None:
        super().__init__(body)
        self._size = len(body)
        self._limit = limit
        self._write_seconds = write_seconds
        self._loop = asyncio.get_running_loop()
        self._next_look: asyncio.TimerHandle | None = None
        self._taken_bytes = 0
        self._taken_at = 0.0

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return str(self._value, encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        body = memoryview(self._value)
        self._look(writer)
        try:
            # aiohttp copies the headers and the first slice into one.
            await writer.write(body[:WRITTEN_AT_ONCE_BYTES])
            for start in range(WRITTEN_AT_ONCE_BYTES, len(body), _SLICE_BYTES):
                await writer.write(body[start : start + _SLICE_BYTES])
        finally:
            if self._next_look is not None:
                self._next_look.cancel()

    def _look(self, writer: AbstractStreamWriter) -> None:
        now = self._loop.time()
        held = 0 if writer.transport is None else writer.transport.get_write_buffer_size()
        taken_bytes = writer.output_size - held
        if self._next_look is None or taken_bytes != self._taken_bytes:
            self._taken_bytes, self._taken_at = taken_bytes, now
        elif now - self._taken_at >= self._write_seconds:
            _reschedule(self._limit, now)
            return
        self._next_look = self._loop.call_later(self._write_seconds / _LOOKS, self._look, writer)


async def _watched(
    chunks: AsyncIterator[bytes], limit: asyncio.Timeout, write_seconds: float
) -> AsyncIterator[bytes]:
    """The chunks; between handing one out and being asked for the next at most the limit passes."""
    loop = asyncio.get_running_loop()
    async for chunk in chunks:
        _reschedule(limit, loop.time() + write_seconds)
        yield chunk
        _reschedule(limit, None)


def _reschedule(limit: asyncio.Timeout, when: float | None) -> None:
    """Moves the limit, unless the reply's headers came meanwhile and it is over."""
    try:
        limit.reschedule(when)
    except RuntimeError:
        return
