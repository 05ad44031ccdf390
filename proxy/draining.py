"""From the moment a stop is asked for until it begins: nothing is refused, but `/readyz` says no,
so that a load balancer sends its requests elsewhere first."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Draining:
    """Whether this process was asked to stop."""

    def __init__(self, seconds: float) -> None:
        """`seconds` pass between SIGTERM and the stop; another SIGTERM, or SIGINT, ends them."""
        self.asked = False
        self._seconds = seconds

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Notice signals before the server does, which installed its handlers already.

        Outside of the main thread there are none to notice.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with self._watched(signal.SIGTERM, self._seconds), self._watched(signal.SIGINT, 0):
            yield

    @contextmanager
    def _watched(self, number: signal.Signals, seconds: float) -> Iterator[None]:
        stop = signal.getsignal(number)
        if not callable(stop):
            # Nobody's signal: it ends the process, as it would without us.
            yield
            return
        loop = asyncio.get_running_loop()

        def noticed(number: int, frame: FrameType | None) -> None:
            waits = bool(seconds) and not self.asked
            self.asked = True
            if waits:
                loop.call_soon_threadsafe(loop.call_later, seconds, stop, number, frame)
            else:
                stop(number, frame)

        signal.signal(number, noticed)
        try:
            yield
        finally:
            signal.signal(number, stop)
