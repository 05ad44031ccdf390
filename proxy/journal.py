"""Log writes, off the request's path: recording never waits and never fails.

Entries are written in the order recorded, many in one transaction. While the store is away they
wait in a backlog of bounded size; what does not fit is dropped, the oldest first, and counted.
After `flush()` everything recorded before it can be read.
"""

import asyncio
import logging
import operator
from collections import deque
from typing import Protocol

from proxy.core.errors import StoreUnavailable
from proxy.store.originals import without_images
from proxy.store.segments import text_bytes
from proxy.store.store import Batch, Event, StoreRefused, Turn

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.2
# Where there are so many by then, the time is longer: an entry costs less in a large batch.
BUSY_ENTRIES = 200
BUSY_FACTOR = 2.5
FULL_ENTRIES = 1_500  # so many do not wait for the time
BATCH_ENTRIES = 2_000
BATCH_BYTES = 8 * 1024 * 1024
MAX_BACKLOG_ENTRIES = 50_000
MAX_BACKLOG_BYTES = 128 * 1024 * 1024  # twice the largest request body
RETRY_SECONDS = 1.0
CLOSE_SECONDS = 5.0
ENTRY_BYTES = 1024  # what an entry weighs beside the messages it carries
IMAGE_SECRET = "images"

Entry = Event | Turn


class LogStore(Protocol):
    """The two things that a journal asks of a store."""

    async def secret(self, name: str) -> bytes:
        """A key of that name."""

    async def write(self, batch: Batch) -> None:
        """Append; written twice, it is there once."""


class Journal:
    """Takes events and turns at once, and writes them soon."""

    def __init__(
        self,
        store: LogStore,
        *,
        messages: bool = True,
        images: bool = False,
        flush_seconds: float = FLUSH_SECONDS,
        max_backlog_bytes: int = MAX_BACKLOG_BYTES,
    ) -> None:
        """`messages`: whether message text is kept; `images`: whether image bytes are, too."""
        self._store = store
        self._messages = messages
        self._images = images
        self._flush_seconds = flush_seconds
        self._max_backlog_bytes = max_backlog_bytes
        self._backlog: deque[tuple[Entry, int]] = deque()
        self._backlog_bytes = 0
        self._being_written = 0
        self._recorded = 0
        self._one_writer = asyncio.Lock()
        self._has_entries = asyncio.Event()
        self._is_full = asyncio.Event()
        self.dropped = 0
        self.behind = False

    def event(self, event: Event) -> None:
        """Record something that happened."""
        self._add(event, ENTRY_BYTES)

    def turn(self, turn: Turn) -> None:
        """Record a request. Views are copied, so that the request's own buffer can go."""
        if not self._messages:
            turn = turn._replace(bodies=None, head=None, tools=None)
        elif turn.bodies and set(map(type, turn.bodies)) != {bytes}:
            turn = turn._replace(bodies=[bytes(body) for body in turn.bodies])
        self._add(turn, _size_bytes(turn))

    async def run(self) -> None:
        """Write what is recorded, until cancelled."""
        while True:
            await self._has_entries.wait()
            await self._fills_up(self._flush_seconds)
            if len(self._backlog) >= BUSY_ENTRIES:
                await self._fills_up(self._flush_seconds * (BUSY_FACTOR - 1))
            try:
                await self.flush()
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)

    async def _fills_up(self, seconds: float) -> None:
        """Wait until it is full, but no longer than that."""
        try:
            async with asyncio.timeout(seconds):
                await self._is_full.wait()
        except TimeoutError:
            pass

    async def flush(self) -> None:
        """Write everything recorded before this call.

        Raises:
            StoreUnavailable: the store did not take it; the entries wait for the next time.
        """
        goal = self._recorded
        while self._settled < goal:
            async with self._one_writer:
                if self._settled < goal:
                    await self._write_some()

    async def close(self, *, seconds: float = CLOSE_SECONDS) -> None:
        """Write what is left, as far as the store takes it in that time."""
        try:
            async with asyncio.timeout(seconds):
                await self.flush()
        except (StoreUnavailable, TimeoutError):
            lost = self._recorded - self._settled
            self.dropped += lost
            self._backlog.clear()
            logger.warning("journal closed lost_entries=%d", lost)

    @property
    def _settled(self) -> int:
        """How many entries were written or dropped; always the oldest ones."""
        return self._recorded - len(self._backlog) - self._being_written

    def _add(self, entry: Entry, size_bytes: int) -> None:
        self._recorded += 1
        self._backlog.append((entry, size_bytes))
        self._backlog_bytes += size_bytes
        self._keep_bounds()
        self._tell_loop()

    def _keep_bounds(self) -> None:
        while self._backlog and (
            len(self._backlog) > MAX_BACKLOG_ENTRIES
            or self._backlog_bytes > self._max_backlog_bytes
        ):
            self._backlog_bytes -= self._backlog.popleft()[1]
            self.dropped += 1

    def _tell_loop(self) -> None:
        if self._backlog:
            self._has_entries.set()
        else:
            self._has_entries.clear()
        if len(self._backlog) >= FULL_ENTRIES:
            self._is_full.set()
        else:
            self._is_full.clear()

    async def _write_some(self) -> None:
        taken = self._take()
        written = False
        try:
            await self._write([entry for entry, _ in taken])
            written = True
        except StoreUnavailable as error:
            if not self.behind:
                logger.warning("journal behind=true error=%s", error)
            self.behind = True
            raise
        finally:
            self._being_written = 0
            if not written:  # cancelled, too: what is written twice is there once
                self._backlog.extendleft(reversed(taken))
                self._backlog_bytes += sum(size for _, size in taken)
                self._keep_bounds()
            self._tell_loop()
        if self.behind:
            logger.warning("journal behind=false dropped_entries=%d", self.dropped)
        self.behind = False

    def _take(self) -> list[tuple[Entry, int]]:
        taken: list[tuple[Entry, int]] = []
        size_bytes = 0
        while self._backlog and len(taken) < BATCH_ENTRIES and size_bytes < BATCH_BYTES:
            taken.append(self._backlog.popleft())
            size_bytes += taken[-1][1]
        self._backlog_bytes -= size_bytes
        self._being_written = len(taken)
        return taken

    async def _write(self, entries: list[Entry]) -> None:
        if not self._images and any(isinstance(entry, Turn) for entry in entries):
            key = await self._store.secret(IMAGE_SECRET)
            entries = await asyncio.to_thread(_without_images, entries, key)
        try:
            await self._store.write(_batch(entries))
            return
        except StoreRefused as error:
            logger.warning("journal refused_entries=%d error=%s", len(entries), error)
        # One of them cannot be stored, ever: it must not keep the others back.
        for entry in entries:
            try:
                await self._store.write(_batch([entry]))
            except StoreRefused as error:
                self.dropped += 1
                logger.warning("journal dropped=%s error=%s", type(entry).__name__, error)


def _size_bytes(turn: Turn) -> int:
    return ENTRY_BYTES + 100 * len(turn.fingerprints) + text_bytes(turn)


def _without_images(entries: list[Entry], key: bytes) -> list[Entry]:
    return [_slim(entry, key) if isinstance(entry, Turn) else entry for entry in entries]


def _slim(turn: Turn, key: bytes) -> Turn:
    bodies = turn.bodies and [without_images(body, key) for body in turn.bodies]
    head = turn.head and without_images(turn.head, key)
    if head is turn.head and all(map(operator.is_, bodies or (), turn.bodies or ())):
        return turn
    return turn._replace(bodies=bodies, head=head)


def _batch(entries: list[Entry]) -> Batch:
    return Batch(
        events=[entry for entry in entries if isinstance(entry, Event)],
        turns=[entry for entry in entries if isinstance(entry, Turn)],
    )
