"""The one store: SQLAlchemy Core over SQLite or PostgreSQL, put together from its parts."""

from proxy.store.by_hand import ByHandRows
from proxy.store.database import Database
from proxy.store.facts import FactRows
from proxy.store.leases import LeaseRows
from proxy.store.log import LogWriter
from proxy.store.migrations import migrate
from proxy.store.reading import LogReader
from proxy.store.replacements import ReplacementRows
from proxy.store.retention import Sweeper
from proxy.store.store import Batch, Counts, Retention


class SqlStore(ReplacementRows, LeaseRows, FactRows, ByHandRows, LogReader):
    """Everything that `Store` promises, for any number of workers on PostgreSQL."""

    def __init__(self, url: str, *, sole_process: bool = False) -> None:
        """Nothing is opened yet.

        `sole_process` says that no other process writes to this SQLite file, so that answers may
        be cached. Raises ValueError for a URL that is neither SQLite nor PostgreSQL.
        """
        database = Database(url, migrate, sole_process=sole_process)
        ReplacementRows.__init__(self, database)
        FactRows.__init__(self, database)
        ByHandRows.__init__(self, database)
        self._writer = LogWriter(database, self.secret, self)
        self._sweeper = Sweeper(database, self)
        self.unlogged = self._writer.unlogged

    def __repr__(self) -> str:
        return f"SqlStore({self._database!r})"

    async def open(self) -> None:
        """Connect and migrate. When it raises, each later call tries again by itself."""
        await self._database.open()
        self._roots.load()

    async def close(self) -> None:
        """Finish what runs and disconnect."""
        await self._roots.close()
        await self._database.close()

    async def write(self, batch: Batch) -> None:
        """Append; what is there already stays as it is."""
        self._roots.beginning(turn.root for turn in batch.turns)
        await self._writer.write(batch)

    async def forget(self, tenant: str, id: str) -> Counts | None:
        """Delete a conversation and all that only it uses; None when there is none."""
        gone = await self._sweeper.forget(tenant, id)
        self._forget_caches()
        return gone

    async def sweep(self, retention: Retention, *, now: float | None = None) -> Counts:
        """Delete what is too old or too much."""
        gone = await self._sweeper.sweep(retention, now=now)
        self._forget_caches()
        return gone

    def _forget_caches(self) -> None:
        self.forget_answers()
        self._writer.forget_stamps()
