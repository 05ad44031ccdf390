"""Requests out, replies back. Errors of the way out become errors that know their HTTP status here,
and nowhere else; the provider's own errors are replies like any other.
"""

import logging
import os
import socket
import ssl

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from proxy.codings import accepts, codings_of, make_decoder
from proxy.core.errors import ProviderBroke, ProviderError, ProviderTimeout, ProviderUnreachable
from proxy.holding import MAX_ERROR_BYTES, Opening, hold
from proxy.relay import ProviderRequest
from proxy.reply import Reply
from proxy.tap import BodyTap, EventTap, Tap
from proxy.transport import ReplyStream, Response, StaleConnection, Transport, WriteStalled
from proxy.transport import Timeouts as Timeouts

logger = logging.getLogger(__name__)

# One connection per running chat; the bound is there to stop a runaway, not to queue.
MAX_CONNECTIONS = 16384


class Provider:
    """The way to every upstream. Made, used and closed inside one event loop."""

    def __init__(self, timeouts: Timeouts | None = None) -> None:
        """To be made inside the running loop."""
        self._transport = Transport(timeouts or Timeouts(), max_connections=MAX_CONNECTIONS)

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
        coding, _ = _content_headers(response)
        return _reply(response, request, coding, tap=None)

    async def open_chat(self, request: ProviderRequest, *, hold_seconds: float) -> Opening:
        """The reply to a chat, held until its beginning is judged.

        Raises:
            ProviderError: as `send`; ProviderBroke when it broke off before anything was judged.
        """
        response = await self._exchange(request)
        coding, kind = _content_headers(response)
        reply = _reply(response, request, coding, tap=_chat_tap(response.status, kind))
        try:
            return await hold(reply, hold_seconds=hold_seconds)
        except BaseException:
            await reply.aclose()
            raise

    async def _exchange(self, request: ProviderRequest) -> Response:
        whole = isinstance(request.body, bytes)
        try:
            # What is still being received cannot be sent again, so it gets a fresh connection.
            return await self._handle(request, fresh=not whole)
        except StaleConnection as exc:
            if not whole:
                raise _unreachable(request, exc) from exc
        logger.info("sent_again because=stale_connection upstream=%s", _where(request))
        return await self._handle(request, fresh=True)

    async def _handle(self, request: ProviderRequest, *, fresh: bool) -> Response:
        try:
            return await self._transport.send(request, fresh=fresh)
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

    def __init__(self, stream: ReplyStream) -> None:
        self._stream = stream

    @property
    def arrived(self) -> bool:
        return self._stream.arrived

    async def read(self) -> bytes:
        try:
            return await self._stream.read()
        except aiohttp.SocketTimeoutError as exc:
            raise ProviderBroke("The provider sent nothing more within the time limit.") from exc
        except (OSError, aiohttp.ClientError, HttpProcessingError) as exc:
            raise ProviderBroke(f"The provider's reply broke off ({type(exc).__name__}).") from exc

    async def aclose(self) -> None:
        await self._stream.aclose()


def _reply(
    response: Response, request: ProviderRequest, coding: bytes, *, tap: Tap | None
) -> Reply:
    codings = codings_of(coding) if coding else ()
    undo = bool(codings) and not accepts(request.accepts, codings) and request.method != "HEAD"
    decoder = make_decoder(codings) if codings and (undo or tap is not None) else None
    if codings and decoder is None:
        tap = None  # a coding not known: nothing in there can be read
    return Reply(
        response.status,
        response.headers,
        _Translating(response.stream),
        decoder=decoder,
        tap=tap,
        decoded=undo and decoder is not None,
    )


def _chat_tap(status: int, content_type: bytes) -> Tap | None:
    media_type = content_type.partition(b";")[0].strip().lower()
    if status >= 400:
        return BodyTap(max_bytes=MAX_ERROR_BYTES)
    if status != 200:
        return None
    if media_type == b"text/event-stream":
        return EventTap()
    if media_type.endswith(b"json") or not media_type:
        return BodyTap()
    return None


def _content_headers(response: Response) -> tuple[bytes, bytes]:
    """The values of Content-Encoding, joined as one, and of Content-Type."""
    codings: list[bytes] = []
    types: list[bytes] = []
    for key, value in response.headers:
        name = key.lower()
        if name == b"content-type":
            types.append(value)
        elif name == b"content-encoding":
            codings.append(value)
    return b", ".join(codings), b", ".join(types)


def _where(request: ProviderRequest) -> str:
    """The upstream's address without a path, a query or credentials."""
    scheme, _, rest = request.origin.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _timeout_message(request: ProviderRequest, error: Exception) -> str:
    if isinstance(error, WriteStalled):
        return f"The upstream {_where(request)} stopped taking the request within the time limit."
    return f"The upstream {_where(request)} sent no response within the time limit."


def _unreachable(request: ProviderRequest, error: Exception) -> ProviderError:
    return ProviderUnreachable(f"No response from the upstream {_where(request)}: {_cause(error)}.")


def _cause(error: Exception) -> str:
    """What an operator can act on, in the system's words where it has some."""
    if isinstance(error, StaleConnection | aiohttp.ServerDisconnectedError):
        return "it closed the connection without an answer"
    of_system = getattr(error, "os_error", error)
    if isinstance(of_system, socket.gaierror):
        return "its name cannot be resolved"
    if isinstance(of_system, OSError) and not isinstance(of_system, ssl.SSLError):
        return os.strerror(of_system.errno) if of_system.errno else type(of_system).__name__
    return type(error).__name__
