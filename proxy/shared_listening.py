"""Workers that listen on one socket share its connections: the one with the fewest takes the next.

By itself the worker that wakes first takes all that wait, and has them for as long as clients keep
them. Here one that has more than another leaves a connection to it for a moment. Not on Windows.
"""

import asyncio
import fcntl
import logging
import mmap
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import uvloop

from proxy.header_limit import BoundedHeadProtocol

logger = logging.getLogger(__name__)

FILE_VARIABLE = "_TIDEGATE_CROWDS"
# How long a connection is left to a worker that has fewer: it may be busy, or wait for a core.
LEAVE_SECONDS = 0.005
# After an accept that failed: most likely no descriptor is left.
RETRY_SECONDS = 1.0
_NOBODY = 2**32 - 1
_PLACE_BYTES = 4


@contextmanager
def crowds_file(workers: int) -> Iterator[None]:
    """The file in which workers count their connections for each other; the environment names it.
    Where no file can be made, each takes what it can."""
    try:
        file = tempfile.NamedTemporaryFile(prefix="tidegate-")  # noqa: SIM115  # closed below
    except OSError as error:
        logger.warning("connections_not_shared cause=%s", error)
        yield
        return
    with file:
        # Twice as many places: a worker's successor may begin before it has ended.
        file.write(_NOBODY.to_bytes(_PLACE_BYTES, "little") * (2 * workers))
        file.flush()
        os.environ[FILE_VARIABLE] = file.name
        try:
            yield
        finally:
            del os.environ[FILE_VARIABLE]


class Crowd(Protocol):
    """How many connections this worker has, and the others."""

    def is_now(self, connections: int) -> None:
        """So many are open here."""

    def larger_than_another(self) -> bool:
        """Whether another worker has fewer."""

    def end(self) -> None:
        """This worker takes no more."""


class CrowdInFile:
    """A place in the file, locked until the process ends, however it ends: a successor takes it."""

    def __init__(self, path: Path) -> None:
        """Takes the first place that is free. Without any this worker is not counted."""
        self._descriptor = os.open(path, os.O_RDWR)
        self._counts = memoryview(mmap.mmap(self._descriptor, 0)).cast("I")
        self._own = next(filter(self._lock, range(len(self._counts))), None)
        self._connections = 0

    def _lock(self, place: int) -> bool:
        how = fcntl.LOCK_EX | fcntl.LOCK_NB
        try:
            fcntl.lockf(self._descriptor, how, _PLACE_BYTES, place * _PLACE_BYTES)
        except OSError:
            return False
        return True

    def is_now(self, connections: int) -> None:
        """So many are open here."""
        self._connections = connections
        if self._own is not None:
            self._counts[self._own] = connections

    def larger_than_another(self) -> bool:
        """Whether another worker has fewer."""
        return any(count < self._connections for count in self._counts)

    def end(self) -> None:
        """This worker takes no more."""
        if self._own is not None:
            self._counts[self._own] = _NOBODY


class SharingLoop(uvloop.Loop):
    """uvloop, but for how connections to a socket that workers share are taken."""

    async def create_server(self, *args: Any, **options: Any) -> Any:
        """In a worker uvicorn names the socket."""
        path = os.environ.get(FILE_VARIABLE)
        shared = options.get("sock")
        if path is None or shared is None:
            return await super().create_server(*args, **options)
        shared.listen(options["backlog"])
        return SharedListener(args[0], shared, CrowdInFile(Path(path)))


class SharedListener:
    """Takes connections from a listening socket until it is closed."""

    def __init__(
        self, protocol: Callable[[], BoundedHeadProtocol], shared: socket.socket, crowd: Crowd
    ) -> None:
        """Begins at once, in the running loop."""
        self._protocol = protocol
        self._shared = shared
        self._crowd = crowd
        self._loop = asyncio.get_running_loop()
        self._open = 0
        self._next_look: asyncio.TimerHandle | None = None
        self._beginning = set[asyncio.Task[None]]()
        shared.setblocking(False)
        crowd.is_now(0)
        self._listen()

    def close(self) -> None:
        """Takes no more; those that are open stay."""
        self._loop.remove_reader(self._shared)
        if self._next_look is not None:
            self._next_look.cancel()
        self._crowd.end()

    async def wait_closed(self) -> None:
        """It is closed at once."""

    def _listen(self) -> None:
        self._loop.add_reader(self._shared, self._somebody_waits)

    def _somebody_waits(self) -> None:
        if self._crowd.larger_than_another():
            self._look_again_in(LEAVE_SECONDS)
        else:
            self._take()

    def _look_again_in(self, seconds: float) -> None:
        self._loop.remove_reader(self._shared)
        self._next_look = self._loop.call_later(seconds, self._take_all)

    def _take_all(self) -> None:
        """What nobody has taken meanwhile."""
        self._listen()
        while self._take():
            pass

    def _take(self) -> bool:
        """Whether there was one."""
        try:
            connection, _ = self._shared.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError as error:
            logger.warning("connection_not_taken cause=%s", error)
            self._look_again_in(RETRY_SECONDS)
            return False
        self._opened(1)
        beginning = self._loop.create_task(self._begin(connection))
        self._beginning.add(beginning)
        beginning.add_done_callback(self._beginning.discard)
        return True

    async def _begin(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        protocol = self._protocol()
        protocol.when_lost = lambda: self._opened(-1)
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError as error:  # it closed again already
            logger.info("connection_not_begun cause=%s", error)
            connection.close()
            self._opened(-1)

    def _opened(self, change: int) -> None:
        self._open += change
        self._crowd.is_now(self._open)
