"""The way out: aiohttp's client, held so that it adds nothing and joins nothing.

By itself it would add headers, keep cookies, rewrite the URL and read the environment; each of
these is switched off here. Chunks are handed on as they arrive.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Self

import aiohttp
import certifi
from yarl import URL

from proxy.relay import ProviderRequest

# Larger bodies go out in slices, so that a write that makes no progress is noticed.
WRITE_SLICE_BYTES = 1 << 16

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

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        """The stream owns the response, and through it the connection."""
        self._response = response
        self._lost: asyncio.Future[None] | None = None
        connection = response.connection
        if connection is not None and connection.protocol is not None:
            self._lost = connection.protocol.closed
        if self._lost is not None:
            self._lost.add_done_callback(self._tell_lost)

    def __aiter__(self) -> Self:
        """Itself: one body is read once."""
        return self

    async def __anext__(self) -> bytes:
        """The bytes at hand, or those that come next."""
        chunk = await self._response.content.readany()
        if not chunk:
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        """Gives the connection back after a whole body, closes it otherwise. Never waits."""
        if self._lost is not None:
            self._lost.remove_done_callback(self._tell_lost)
        if self._response.content.is_eof() and not self._response.content.exception():
            self._response.release()
        else:
            self._response.close()

    def _tell_lost(self, lost: asyncio.Future[None]) -> None:
        """Wakes a reader whose connection has closed.

        aiohttp 3.14 forgets to when chunked framing goes wrong in mid-body: it closes the
        connection, drops its own read limit, and the reader would wait for ever.
        """
        if not lost.cancelled():
            lost.exception()
        content = self._response.content
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection closed in mid-body"))


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
        context = context or _ssl_context()
        reuses = aiohttp.TraceConfig()
        reuses.on_connection_reuseconn.append(_mark_reused)
        self._fresh = _session(context, max_connections, _FRESH_ONLY_SECONDS, ())
        self._pooled = _session(context, max_connections, KEEPALIVE_SECONDS, (reuses,))

    async def send(self, request: ProviderRequest, *, fresh: bool = False) -> Response:
        """Sends the request, waits for the reply's headers. `fresh`: over no pooled connection."""
        attempt = _Attempt()
        session = self._fresh if fresh else self._pooled
        url = URL(request.origin + request.target, encoded=True)
        try:
            async with asyncio.timeout(None) as write_limit:
                response = await session.request(
                    request.method,
                    url,
                    headers=[(_text(name), _text(value)) for name, value in request.headers],
                    data=_body(request.body, write_limit, self._write_seconds),
                    allow_redirects=False,
                    timeout=self._timeout,
                    trace_request_ctx=attempt,
                )
        except TimeoutError as exc:
            if write_limit.expired():
                raise WriteStalled from exc
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as exc:
            if attempt.reused and _before_any_byte(exc):
                raise StaleConnection from exc
            raise
        connection = response.connection
        if connection is not None and connection.protocol is not None:
            connection.protocol.read_timeout = self._between_seconds
        return Response(response.status, response.raw_headers, ReplyStream(response))

    async def aclose(self) -> None:
        """Closes both pools."""
        await self._fresh.close()
        await self._pooled.close()


class _Attempt:
    __slots__ = ("reused",)

    def __init__(self) -> None:
        self.reused = False


async def _mark_reused(
    session: aiohttp.ClientSession,
    context: SimpleNamespace,
    params: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    context.trace_request_ctx.reused = True


def _ssl_context() -> ssl.SSLContext:
    """Certificates checked against certifi's list, whatever the environment says."""
    return ssl.create_default_context(cafile=certifi.where())


def _session(
    context: ssl.SSLContext,
    max_connections: int,
    keepalive_seconds: float,
    traces: tuple[aiohttp.TraceConfig, ...],
) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=max_connections, ssl=context, keepalive_timeout=keepalive_seconds
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=_AUTO_HEADERS,
        auto_decompress=False,
        trust_env=False,
        timeout=aiohttp.ClientTimeout(total=None),
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
        max_headers=_MAX_HEADERS,
        trace_configs=list(traces),
    )


def _text(raw: bytes) -> str:
    """Text goes out as UTF-8, so UTF-8 keeps its bytes; Latin-1 keeps its characters."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _before_any_byte(error: aiohttp.ClientError) -> bool:
    """Whether the connection closed with nothing of a response read."""
    return not (isinstance(error, aiohttp.ServerDisconnectedError) and _partly_read(error))


def _partly_read(error: aiohttp.ServerDisconnectedError) -> bool:
    return not isinstance(error.message, str)


def _body(
    body: bytes | AsyncIterator[bytes], limit: asyncio.Timeout, write_seconds: float
) -> bytes | AsyncIterator[bytes] | None:
    """The body in the form that sends it best: none, whole, or watched slice by slice."""
    if not isinstance(body, bytes):
        return _watched(body, limit, write_seconds)
    if len(body) <= WRITE_SLICE_BYTES:
        return body or None
    return _watched(slices(body), limit, write_seconds)


async def slices(whole: bytes) -> AsyncIterator[bytes]:
    """A large body in slices."""
    view = memoryview(whole)
    for start in range(0, len(view), WRITE_SLICE_BYTES):
        yield bytes(view[start : start + WRITE_SLICE_BYTES])


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
