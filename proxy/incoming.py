"""A client's request as it is received: its body, bounded, and the moment when the client left."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from starlette.types import Receive

from proxy.core.errors import InvalidRequest
from proxy.off_loop import off_loop

logger = logging.getLogger(__name__)

# How long a body over the limit is read on and thrown away before its refusal is sent.
_DISCARD_SECONDS = 5.0

DISCONNECT = "http.disconnect"


class ClientGone(Exception):
    """The client closed its connection; nothing can be answered any more."""


class Incoming:
    """Reads one request. `answered` is set by whoever sends the last byte of the answer."""

    def __init__(
        self, receive: Receive, *, max_body_bytes: int, declared_bytes: int | None
    ) -> None:
        """`declared_bytes` is the Content-Length, if any."""
        self.answered = False
        self.refusal: InvalidRequest | None = None
        self._receive = receive
        self._max_body_bytes = max_body_bytes
        self._received_bytes = 0
        self._gone = False
        self._body_over = asyncio.Event()
        self._declared_bytes = declared_bytes or 0
        self._complete = False

    async def next_chunk(self) -> bytes | None:
        """The next bytes of the body, None at its end.

        Raises:
            ClientGone: the client left before the end.
            InvalidRequest: 413, the body is over the limit.
        """
        if self._declared_bytes > self._max_body_bytes:
            raise self._too_large()
        while not self._body_over.is_set():
            message = await self._receive()
            if message["type"] == DISCONNECT:
                self._gone = True
                self._body_over.set()
                break
            if not message.get("more_body", False):
                self._complete = True
                self._body_over.set()
            chunk: bytes = message.get("body", b"")
            self._received_bytes += len(chunk)
            if self._received_bytes > self._max_body_bytes:
                raise self._too_large()
            if chunk:
                return chunk
        if self._gone:
            raise ClientGone
        return None

    async def beginning(self, *, up_to_bytes: int) -> tuple[bytes, bool]:
        """The body, or its beginning when it is longer; and whether that is all of it."""
        chunks: list[bytes] = []
        taken = 0
        while taken <= up_to_bytes:
            chunk = await self.next_chunk()
            if chunk is None:
                return await off_loop(taken, b"".join, chunks), True
            chunks.append(chunk)
            taken += len(chunk)
            if self._body_over.is_set() and not self._gone:
                return await off_loop(taken, b"".join, chunks), True
        return await off_loop(taken, b"".join, chunks), False

    async def whole(self) -> bytes:
        """The whole body."""
        body, _ = await self.beginning(up_to_bytes=self._max_body_bytes)
        return body

    async def rest(self, beginning: bytes) -> AsyncIterator[bytes]:
        """The body again from its beginning, then as it comes."""
        if beginning:
            yield beginning
        while (chunk := await self.next_chunk()) is not None:
            yield chunk

    async def discard_rest(self) -> None:
        """Reads what the client is still sending, so that it gets to reading the answer."""
        try:
            async with asyncio.timeout(_DISCARD_SECONDS):
                while not (self._gone or self._complete):
                    message = await self._receive()
                    self._gone = message["type"] == DISCONNECT
                    self._complete = not message.get("more_body", False)
        except TimeoutError:
            return

    async def client_left(self) -> None:
        """Returns when the client has left; after the whole answer was sent it never does."""
        await self._body_over.wait()
        while not self._gone:
            message = await self._receive()
            self._gone = message["type"] == DISCONNECT
        if self.answered:
            await asyncio.Event().wait()

    def _too_large(self) -> InvalidRequest:
        self._body_over.set()
        self.refusal = InvalidRequest(
            f"The request body is larger than {self._max_body_bytes} bytes.",
            status=413,
            code="request_too_large",
            headers={"connection": "close"},
        )
        return self.refusal


async def while_connected(incoming: Incoming, work: Coroutine[Any, Any, None]) -> bool:
    """Runs the work; cancels it as soon as the client leaves. False when it was cancelled so."""
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(incoming.client_left())
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        task.result()
        return True
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.wait({task, watcher})
        if not task.cancelled() and (error := task.exception()) is not None:
            # Raised above when it came first; an error made by the cancelling itself is only noted.
            logger.debug("work_ended error=%s", type(error).__name__)
