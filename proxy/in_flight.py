"""Which conversations have a chat under way, here and on every other worker. A chat is never held
back by it; only a compaction by hand asks first, so that it does not work on a moving history."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from proxy.core.errors import StoreUnavailable
from proxy.metrics import Metrics
from proxy.outcome import Outcome
from proxy.reply import Reply, ReplyEnd
from proxy.store.store import Store

log = logging.getLogger(__name__)

PUBLISH_SECONDS = 1.0


class Run:
    """One chat on its way, counted until its reply has ended; closing twice does nothing."""

    __slots__ = ("_conversation", "_open", "_owner", "_told")

    def __init__(self, owner: "InFlight") -> None:
        """Counted at once; which conversation it is of may be found out later."""
        self._owner = owner
        self._conversation: tuple[str, str] | None = None
        self._open = True
        self._told: Callable[[ReplyEnd], None] | None = None
        owner.opened()

    def of(self, tenant: str, conversation: str) -> None:
        """The run is of this conversation."""
        self._conversation = (tenant, conversation)
        self._owner.named(self._conversation)

    def close(self) -> None:
        """The run is over, however it went."""
        if self._open:
            self._open = False
            self._owner.closed(self._conversation)

    def until_end_of(self, reply: Reply) -> None:
        """Close when the reply ends, after whoever listened for it before."""
        self._told = reply.on_end
        reply.on_end = self._ended

    def _ended(self, end: ReplyEnd) -> None:
        self.close()
        if self._told is not None:
            self._told(end)


class InFlight:
    """The runs of this process, and a question about those of all."""

    def __init__(self, store: Store, metrics: Metrics, *, worker: str, shared: bool) -> None:
        """`shared`: other processes use the store too, and are told once a second."""
        self._store = store
        self._worker = worker
        self._shared = shared
        self._count = 0
        self._runs: dict[tuple[str, str], int] = {}
        metrics.follow("tidegate_in_flight", lambda: self._count)

    async def tracked(self, work: Callable[[Run], Awaitable[Outcome]]) -> Outcome:
        """The outcome of `work`, in flight until the end of its reply, or of `work` if it fails."""
        run = Run(self)
        try:
            outcome = await work(run)
        except BaseException:
            run.close()
            raise
        run.until_end_of(outcome.reply)
        return outcome

    async def busy(self, tenant: str, conversation: str) -> bool:
        """Whether a chat of the conversation is under way on any worker.

        Raises:
            StoreUnavailable: what the others do is not known.
        """
        if (tenant, conversation) in self._runs:
            return True
        if not self._shared:
            return False
        return await self._store.in_flight(tenant, conversation, except_worker=self._worker)

    def busy_here(self, tenant: str, conversation: str) -> bool:
        """The same for this worker alone, for a listing."""
        return (tenant, conversation) in self._runs

    def opened(self) -> None:
        """A run began."""
        self._count += 1

    def named(self, conversation: tuple[str, str]) -> None:
        """A run turned out to be of this conversation."""
        self._runs[conversation] = self._runs.get(conversation, 0) + 1

    def closed(self, conversation: tuple[str, str] | None) -> None:
        """A run is over."""
        self._count -= 1
        if conversation is None:
            return
        self._runs[conversation] -= 1
        if self._runs[conversation] <= 0:
            del self._runs[conversation]

    async def publish(self) -> None:
        """Tell the other workers, until cancelled; what they were told is taken back then."""
        if not self._shared:
            return
        published = False
        try:
            while True:
                if self._runs or published:
                    published = await self._tell(tuple(self._runs))
                await asyncio.sleep(PUBLISH_SECONDS)
        finally:
            if published:
                await self._tell(())

    async def _tell(self, runs: tuple[tuple[str, str], ...]) -> bool:
        """Whether the others still believe that something runs here."""
        try:
            await self._store.publish_in_flight(self._worker, runs)
        except StoreUnavailable:
            log.info("runs not published: store unavailable")
            return True
        return bool(runs)
