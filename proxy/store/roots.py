"""What the store may hold under a first message. Asked once, as a chat comes in: by one look-up
for everything, or none where memory knows. Most chats hear that there is nothing to wait for."""

from sqlalchemy import BindParameter, bindparam, exists, select

from proxy.core.newest import Newest
from proxy.store.database import Database
from proxy.store.schema import conversations, replacements
from proxy.store.store import Recorded

REMEMBERED_ROOTS = 10_000  # some 300 bytes each

_TENANT: BindParameter[str] = bindparam("tenant")
_ROOT: BindParameter[bytes] = bindparam("root")
_RECORDED = select(
    exists().where(replacements.c.tenant == _TENANT, replacements.c.root == _ROOT),
    exists().where(conversations.c.tenant == _TENANT, conversations.c.root == _ROOT),
)


class Roots:
    """The first messages under which nothing was ever replaced, as far as that can be known."""

    def __init__(self, database: Database) -> None:
        """Nothing is known yet."""
        self._database = database
        # While nobody else writes to the file, what had no replacement gets one from us alone.
        self._unreplaced: Newest[tuple[str, bytes], bool] = Newest(REMEMBERED_ROOTS)

    def recorded(self, tenant: str, root: bytes) -> Recorded:
        """False where surely nothing is; everything, where that takes a longer look."""
        if self._database.sole and (tenant, root) in self._unreplaced:
            return Recorded(replacements=False)
        row = self._database.row_at_once(_RECORDED, {"tenant": tenant, "root": root})
        if row is None:
            return Recorded()
        recorded = Recorded(replacements=bool(row[0]), conversations=bool(row[1]))
        if not recorded.replacements:
            self._unreplaced.put((tenant, root), True)
        return recorded

    def replaced(self, tenant: str, root: bytes) -> None:
        """We may have stored a replacement."""
        self._unreplaced.pop((tenant, root), None)
