"""What the store may hold under a first message. Asked once, as a chat comes in: by one look-up for
everything, or none where memory knows. Most chats hear that there is nothing to wait for."""

import asyncio
from collections.abc import Iterable

from sqlalchemy import BindParameter, bindparam, exists, select

from proxy.core.errors import StoreUnavailable
from proxy.core.marks import Marks
from proxy.store.async_engine import AsyncConnection
from proxy.store.database import Database
from proxy.store.schema import conversations, replacements
from proxy.store.store import Recorded

BEGUN_BYTES = 1024 * 1024  # 800,000 roots; beyond that, more and more of them are looked up
REPLACED_BYTES = 256 * 1024  # the same of 200,000: few conversations grow so long
LOADED_ROOTS = 800_000  # of more, which takes over a second, all are looked up
ROWS_AT_ONCE = 500

_TENANT: BindParameter[str] = bindparam("tenant")
_ROOT: BindParameter[bytes] = bindparam("root")
_RECORDED = select(
    exists().where(replacements.c.tenant == _TENANT, replacements.c.root == _ROOT),
    exists().where(conversations.c.tenant == _TENANT, conversations.c.root == _ROOT),
)
_UNREPLACED = Recorded(replacements=False)
_NOTHING = Recorded(replacements=False, conversations=False)


class Roots:
    """Every first message in a SQLite file that this process alone writes to, of all tenants.

    Roots are marked before they are stored, so those that were never marked are not there. No
    answer tells a tenant of another's: what is marked is looked up among the tenant's own.
    """

    def __init__(self, database: Database) -> None:
        """Nothing is known yet."""
        self._database = database
        self._replaced = Marks(REPLACED_BYTES)
        self._begun = Marks(BEGUN_BYTES)
        self._complete = False  # whether what was stored before this process is marked
        self._loading: asyncio.Task[None] | None = None

    def remembered(self, root: bytes) -> Recorded | None:
        """From memory, where that says that nothing was replaced."""
        if not self._complete or not self._database.sole or root in self._replaced:
            return None
        return _UNREPLACED if root in self._begun else _NOTHING

    def looked_up(self, tenant: str, root: bytes) -> Recorded:
        """False where surely nothing is; everything, where that takes a longer look."""
        rows = self._database.rows_at_once(_RECORDED, {"tenant": tenant, "root": root})
        if rows is None:
            return Recorded()
        ((replaced, begun),) = rows
        return Recorded(bool(replaced), bool(begun))

    def replacing(self, root: bytes) -> None:
        """A replacement is about to be stored."""
        self._replaced.add(root)

    def beginning(self, roots: Iterable[bytes]) -> None:
        """Conversations are about to be stored."""
        if self._database.sole:
            for root in roots:
                self._begun.add(root)

    def load(self) -> None:
        """Begin to mark what is stored; until that is done, roots are looked up."""
        if self._database.sole and self._loading is None:
            self._loading = asyncio.create_task(self._load())

    async def close(self) -> None:
        """Stop loading; what others write until it is opened again is not known."""
        loading, self._loading, self._complete = self._loading, None, False
        if loading is not None:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)

    async def _load(self) -> None:
        try:
            self._complete = await self._database.read(self._marked)
        except StoreUnavailable:
            self._loading = None  # the next start of the store tries again

    async def _marked(self, connection: AsyncConnection) -> bool:
        """Whether all of them are marked now."""
        left = LOADED_ROOTS
        for marks, column in (
            (self._replaced, replacements.c.root),
            (self._begun, conversations.c.root),
        ):
            stored = await connection.stream_scalars(select(column).limit(left))
            async for roots in stored.partitions(ROWS_AT_ONCE):
                if self._loading is None:
                    return False
                left -= len(roots)
                for root in roots:
                    marks.add(root)
        return left > 0
