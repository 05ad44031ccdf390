"""The time that Tidegate spends on work of its own while a client waits for a stream.

When that is long, the client hears of it: the 200 and comments, which every SSE reader skips. Short
work says nothing, so that statuses stay true.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Send

from proxy.answers import http_date

COMMENT = b": tidegate is making room\n\n"

EVENT_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx and its like hold replies back unless told not to
    (b"x-accel-buffering", b"no"),
)


class OwnWork:
    """One request's own work. Without a heartbeat (a whole answer was asked for) it only nests."""

    def __init__(
        self,
        send: Send | None = None,
        *,
        heartbeat_seconds: float = 0,
        received_at: float | None = None,
    ) -> None:
        """`send` is used only between the first comment and `stop`. 0 seconds: never.

        `received_at` is the monotonic time at which the request's last byte was there.
        """
        self._received_at: float | None = time.monotonic() if received_at is None else received_at
        self._send = send
        self._heartbeat_seconds = heartbeat_seconds
        self._left_seconds = heartbeat_seconds
        self._depth = 0
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._beating: asyncio.Task[None] | None = None
        self._stopping: asyncio.Event | None = None  # made with the first comment

    def passed_on(self) -> float | None:
        """Seconds since the request was received, asked for the first time; None ever after."""
        received_at, self._received_at = self._received_at, None
        return None if received_at is None else time.monotonic() - received_at

    @property
    def answering(self) -> bool:
        """Whether the 200 of an event stream was sent: what comes must be readable events."""
        return self._beating is not None

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Marks own work; stretches add up, nested ones count once."""
        self._depth += 1
        if self._depth == 1:
            self._start_timer()
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._stop_timer()

    async def stop(self) -> bool:
        """Ends the heartbeats, in no middle of a comment. Whether any were sent.

        Must be awaited before anything else is sent.
        """
        self._stop_timer()
        self._heartbeat_seconds = 0
        if self._beating is None or self._stopping is None:
            return False
        self._stopping.set()
        try:
            await self._beating
        finally:
            self._beating.cancel()
        return True

    def abandon(self) -> None:
        """Ends the heartbeats at once: nobody is there any more."""
        self._stop_timer()
        if self._beating is not None:
            self._beating.cancel()

    def _start_timer(self) -> None:
        if self._send is None or not self._heartbeat_seconds or self._beating is not None:
            return
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        self._timer = loop.call_later(max(0.0, self._left_seconds), self._begin)

    def _stop_timer(self) -> None:
        if self._timer is None:
            return
        self._left_seconds -= asyncio.get_running_loop().time() - self._since
        self._timer.cancel()
        self._timer = None

    def _begin(self) -> None:
        self._timer = None
        self._stopping = asyncio.Event()
        self._beating = asyncio.get_running_loop().create_task(self._beat(self._stopping))

    async def _beat(self, stopping: asyncio.Event) -> None:
        assert self._send is not None
        headers = [(b"date", http_date()), *EVENT_STREAM_HEADERS]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        while not stopping.is_set():
            await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})
            try:
                async with asyncio.timeout(self._heartbeat_seconds):
                    await stopping.wait()
            except TimeoutError:
                continue
