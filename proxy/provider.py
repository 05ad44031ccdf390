"""Requests out, replies back. Errors of the way out become errors that know their HTTP status here,
and nowhere else; the provider's own errors are replies like any other.
"""

import logging
from dataclasses import dataclass

import aiohttp
import httpx
from aiohttp.http_exceptions import HttpProcessingError

from proxy.codings import accepts, codings_of, make_decoder
from proxy.core.errors import ProviderBroke, ProviderError, ProviderTimeout, ProviderUnreachable
from proxy.holding import MAX_ERROR_BYTES, Opening, hold
from proxy.relay import ProviderRequest
from proxy.reply import Reply
from proxy.tap import BodyTap, EventTap, Tap
from proxy.transport import ComingBody, StaleConnection, UpstreamTransport, WholeBody, WriteStalled

logger = logging.getLogger(__name__)

# One connection per running chat; the bound is there to stop a runaway, not to queue.
MAX_CONNECTIONS = 16384

_PLACEHOLDER_URL = httpx.URL("http://upstream/")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits per gap, none in total. `read` of the first byte is counted from the request's end."""

    connect_seconds: float = 10
    first_byte_seconds: float = 600
    between_bytes_seconds: float = 600
    write_seconds: float = 60


class Provider:
    """The way to every upstream. Made, used and closed inside one event loop."""

    def __init__(
        self,
        timeouts: Timeouts = Timeouts(),
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`transport` is for measurements; the default is the one that is meant."""
        self._transport = transport or UpstreamTransport(max_connections=MAX_CONNECTIONS)
        self._timeout = {
            "connect": timeouts.connect_seconds,
            "read": timeouts.first_byte_seconds,
            "between": timeouts.between_bytes_seconds,
            "write": timeouts.write_seconds,
            "pool": timeouts.connect_seconds,
        }

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._transport.aclose()

    async def send(self, request: ProviderRequest) -> Reply:
        """The reply, as soon as its headers are there; nothing of it is judged.

        Raises:
            ProviderUnreachable: no connection, or it closed before any response byte.
            ProviderTimeout: no response byte in time, or the upstream took none of ours.
        """
        response = await self._exchange(request)
        return _reply(response, request, tap=None)

    async def open_chat(self, request: ProviderRequest, *, hold_seconds: float) -> Opening:
        """The reply to a chat, held until its beginning is judged.

        Raises:
            ProviderError: as `send`; ProviderBroke when it broke off before anything was judged.
        """
        response = await self._exchange(request)
        reply = _reply(response, request, tap=_chat_tap(response))
        try:
            return await hold(reply, hold_seconds=hold_seconds)
        except BaseException:
            await reply.aclose()
            raise

    async def _exchange(self, request: ProviderRequest) -> httpx.Response:
        whole = isinstance(request.body, bytes)
        try:
            # What is still being received cannot be sent again, so it gets a fresh connection.
            return await self._handle(request, fresh=not whole)
        except StaleConnection as exc:
            if not whole:
                raise _unreachable(request, exc) from exc
        logger.info("stale_connection origin=%s", request.origin)
        return await self._handle(request, fresh=True)

    async def _handle(self, request: ProviderRequest, *, fresh: bool) -> httpx.Response:
        body = request.body
        stream = WholeBody(body) if isinstance(body, bytes) else ComingBody(body)
        outgoing = httpx.Request(
            request.method,
            _PLACEHOLDER_URL,
            headers=list(request.headers),
            stream=stream,
            extensions={
                "origin": request.origin,
                "target": request.target,
                "timeout": self._timeout,
                "fresh": fresh,
            },
        )
        try:
            return await self._transport.handle_async_request(outgoing)
        except StaleConnection:
            raise
        except (WriteStalled, aiohttp.SocketTimeoutError) as exc:
            raise ProviderTimeout(_timeout_message(request, exc)) from exc
        except aiohttp.ClientResponseError as exc:
            message = f"The upstream {_where(request)} sent no well-formed response."
            raise ProviderError(message) from exc
        except (OSError, aiohttp.ClientError, HttpProcessingError) as exc:
            raise _unreachable(request, exc) from exc


class _Translating:
    """A reply's stream whose errors are ours."""

    __slots__ = ("_stream",)

    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._stream)  # type: ignore[call-overload,no-any-return]
        except StopAsyncIteration:
            raise
        except aiohttp.SocketTimeoutError as exc:
            raise ProviderBroke("The provider sent nothing more within the time limit.") from exc
        except (OSError, aiohttp.ClientError, HttpProcessingError) as exc:
            raise ProviderBroke(f"The provider's reply broke off ({type(exc).__name__}).") from exc

    async def aclose(self) -> None:
        await self._stream.aclose()


def _reply(response: httpx.Response, request: ProviderRequest, *, tap: Tap | None) -> Reply:
    codings = codings_of(response.headers.get("content-encoding", "").encode())
    undo = bool(codings) and not accepts(request.accepts, codings) and request.method != "HEAD"
    decoder = make_decoder(codings) if codings and (undo or tap is not None) else None
    if codings and decoder is None:
        tap = None  # a coding not known: nothing in there can be read
    assert isinstance(response.stream, httpx.AsyncByteStream)
    return Reply(
        response.status_code,
        response.headers.raw,
        _Translating(response.stream),
        decoder=decoder,
        tap=tap,
        decoded=undo and decoder is not None,
    )


def _chat_tap(response: httpx.Response) -> Tap | None:
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.status_code >= 400:
        return BodyTap(max_bytes=MAX_ERROR_BYTES)
    if response.status_code != 200:
        return None
    if media_type == "text/event-stream":
        return EventTap()
    if media_type.endswith("json") or not media_type:
        return BodyTap()
    return None


def _where(request: ProviderRequest) -> str:
    """The upstream's address without a path, a query or credentials."""
    scheme, _, rest = request.origin.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _timeout_message(request: ProviderRequest, error: Exception) -> str:
    if isinstance(error, WriteStalled):
        return f"The upstream {_where(request)} stopped taking the request within the time limit."
    return f"The upstream {_where(request)} sent no response within the time limit."


def _unreachable(request: ProviderRequest, error: Exception) -> ProviderError:
    return ProviderUnreachable(
        f"No response from the upstream {_where(request)} ({type(error).__name__})."
    )
