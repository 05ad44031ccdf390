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

# Answers that take less than this are not watched: two tasks for each would cost more than all the
# rest of the edge. So a client's leaving is noticed at most this much later.
WATCH_AFTER_SECONDS = 0.05


class ClientGone(Exception):
    """The client closed its connection; nothing can be answered any more."""


class Incoming:
    """Reads one request. `answered` is set by whoever sends the last byte of the answer."""

    __slots__ = (
        "_body_over",
        "_complete",
        "_declared_bytes",
        "_gone",
        "_max_body_bytes",
        "_receive",
        "_received_bytes",
        "_timer",
        "_watcher",
        "_working",
        "answered",
        "left",
        "refusal",
    )

    def __init__(
        self, receive: Receive, *, max_body_bytes: int, declared_bytes: int | None
    ) -> None:
        """`declared_bytes` is the Content-Length, if any."""
        self.answered = False
        self.left = False  # while it was worked for, which that cancelled
        self.refusal: InvalidRequest | None = None
        self._receive = receive
        self._max_body_bytes = max_body_bytes
        self._received_bytes = 0
        self._gone = False
        self._body_over = False
        self._declared_bytes = declared_bytes or 0
        self._complete = False
        self._working: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def next_chunk(self) -> bytes | None:
        """The next bytes of the body, None at its end.

        Raises:
            ClientGone: the client left before the end.
            InvalidRequest: 413, the body is over the limit.
        """
        if self._declared_bytes > self._max_body_bytes:
            raise self._too_large()
        while not self._body_over:
            message = await self._receive()
            if message["type"] == DISCONNECT:
                self._gone = True
                self._end_body()
                break
            if not message.get("more_body", False):
                self._complete = True
                self._end_body()
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
        chunk = await self.next_chunk()
        if chunk is None or self._complete:
            return chunk or b"", True
        chunks = [chunk]
        taken = len(chunk)
        while taken <= up_to_bytes:
            chunk = await self.next_chunk()
            if chunk is not None:
                chunks.append(chunk)
                taken += len(chunk)
            if chunk is None or self._complete:
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

    def watch(self, working: asyncio.Task[Any]) -> None:
        """From the body's end on, cancel that task when the client leaves; `left` says so then."""
        self._working = working
        if self._body_over:
            self._end_body()

    def unwatch(self) -> None:
        """The work is over: nothing is cancelled any more."""
        self._working = None
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    def _end_body(self) -> None:
        """Until here the client's leaving was seen by whoever read; from here on nobody reads."""
        self._body_over = True
        if self._working is not None and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(WATCH_AFTER_SECONDS, self._begin_watching)

    def _begin_watching(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while not self._gone:
            message = await self._receive()
            self._gone = message["type"] == DISCONNECT
        # After a whole answer the server says the same of a client that is still there.
        if self._working is not None and not self.answered:
            self.left = True
            self._working.cancel()

    def _too_large(self) -> InvalidRequest:
        """Not watched from here on: what is left to do is to read on, which sees a leaving too."""
        self._body_over = True
        self.refusal = InvalidRequest(
            f"The request body is larger than {self._max_body_bytes} bytes.",
            status=413,
            code="request_too_large",
            headers={"connection": "close"},
        )
        return self.refusal


async def while_connected(incoming: Incoming, work: Coroutine[Any, Any, None]) -> bool:
    """Runs the work, in this task; cancels it when the client leaves. False when it was cancelled
    so. An error that is raised while the work is being cancelled is only noted."""
    task = asyncio.current_task()
    assert task is not None
    cancelled_before = task.cancelling()
    incoming.watch(task)
    try:
        await work
    except (Exception, asyncio.CancelledError) as error:
        if task.cancelling() == cancelled_before:
            raise
        if not isinstance(error, asyncio.CancelledError):
            logger.debug("work_ended error=%s", type(error).__name__)
    finally:
        incoming.unwatch()
    if task.cancelling() == cancelled_before:
        return True
    if incoming.left and task.uncancel() == cancelled_before:
        return False
    raise asyncio.CancelledError  # the server's own
