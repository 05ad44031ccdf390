"""Events as they happen, for whoever listens: read back from the log, so that every worker's are
among them, each once and in the log's order. A listener that does not read loses events, never
memory, and is told so."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from proxy.core.errors import StoreUnavailable, TidegateError
from proxy.journal import Journal
from proxy.store.store import Event, Store

log = logging.getLogger(__name__)

QUEUED_EVENTS = 1000  # for each listener; about half a megabyte
MAX_LISTENERS = 100
READ_EVENTS = 500
OTHERS_SECONDS = 1.0  # how often other workers' events are looked for
RETRY_SECONDS = 2.0
GATHER_SECONDS = 0.05  # events come in groups: one read for all of them


class TooManyListeners(TidegateError):
    """Every listener holds a queue; there is a bound."""

    status = 503
    code = "too_many_listeners"


class Listener:
    """One listener's queue; `lost` tells that events were dropped since it was last read."""

    def __init__(self, tenant: str | None, conversation: str | None) -> None:
        """`tenant` None hears of every tenant."""
        self.lost = False
        self._tenant = tenant
        self._conversation = conversation
        self._queue: asyncio.Queue[Event] = asyncio.Queue(QUEUED_EVENTS)

    def offer(self, event: Event) -> None:
        """Take an event if it concerns this listener and there is room."""
        if self._tenant not in (None, event.tenant):
            return
        if self._conversation not in (None, event.conversation):
            return
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            self.lost = True

    async def next(self) -> Event:
        """The next event; waits for it."""
        return await self._queue.get()


class LiveEvents:
    """Reads the log while somebody listens, and nothing otherwise."""

    def __init__(self, store: Store, journal: Journal, *, shared: bool) -> None:
        """`shared`: other processes write events too, and are looked for now and then."""
        self._store = store
        self._journal = journal
        self._shared = shared
        self._listeners: set[Listener] = set()
        self._news = asyncio.Event()
        self._after = 0

    def happened(self, event: Event) -> None:
        """An event was recorded here; called between awaits of a request."""
        if self._listeners:
            self._news.set()

    @asynccontextmanager
    async def listening(
        self, tenant: str | None, conversation: str | None, *, after: int | None = None
    ) -> AsyncIterator[Listener]:
        """A listener for as long as the block lasts.

        `after` is the order of the last event heard earlier: what came since is told first.
        """
        if len(self._listeners) >= MAX_LISTENERS:
            raise TooManyListeners(f"At most {MAX_LISTENERS} listeners at a time.")
        listener = Listener(tenant, conversation)
        newest = await self._store.last_event()
        if not self._listeners:
            self._after = newest
        self._listeners.add(listener)
        try:
            if after is not None:
                for event in await self._missed(tenant, conversation, after):
                    listener.offer(event)
            yield listener
        finally:
            self._listeners.discard(listener)

    async def _missed(
        self, tenant: str | None, conversation: str | None, after: int
    ) -> Sequence[Event]:
        """What came between `after` and where reading stands; it goes on from there by itself."""
        found = await self._store.events(tenant, conversation, limit=QUEUED_EVENTS, after=after)
        return [event for event in found if event.order <= self._after]

    async def run(self) -> None:
        """Read and hand out, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(OTHERS_SECONDS if self._shared else None):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            if not self._listeners:
                await asyncio.sleep(OTHERS_SECONDS if self._shared else 0)
                continue
            try:
                await asyncio.sleep(GATHER_SECONDS)
                await self._hand_out()
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
                self._news.set()

    async def _hand_out(self) -> None:
        await self._journal.flush()
        while True:
            events = await self._store.events(None, limit=READ_EVENTS, after=self._after)
            for event in events:
                self._after = max(self._after, event.order)
                for listener in self._listeners:
                    listener.offer(event)
            if len(events) < READ_EVENTS:
                return
