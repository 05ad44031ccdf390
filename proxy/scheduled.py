"""Compactions that were asked for when no credential was there to pay for them: done on the way of
the tenant's next chat of that conversation. What goes wrong in one never fails the chat."""

import logging

from proxy.compactor import Compactor
from proxy.core.errors import StoreUnavailable, TidegateError
from proxy.core.manual import read_options
from proxy.manual import with_summarizer
from proxy.own_work import OwnWork
from proxy.store.store import Store
from proxy.surfaces import Surfaces
from proxy.turn import Turn

log = logging.getLogger(__name__)


class Scheduled:
    """Looks whether something is due for a conversation, and does it once."""

    def __init__(self, *, store: Store, surfaces: Surfaces, compactor: Compactor) -> None:
        """All shared with the pipeline."""
        self._store = store
        self._surfaces = surfaces
        self._compactor = compactor

    async def done(self, turn: Turn, own_work: OwnWork) -> Turn:
        """The turn after what was due; unchanged when nothing was, or when it failed."""
        tenant, conversation = turn.scope.tenant, turn.conversation
        if not turn.chain or not turn.rules.compaction.enabled or not turn.budget.valid:
            return turn
        try:
            if not await self._store.is_scheduled(tenant, conversation):
                return turn
            asked = await self._store.take_scheduled(tenant, conversation)
            if asked is None:
                return turn
            with own_work.busy():
                options = read_options(asked)
                chosen = with_summarizer(await self._surfaces.price(turn), options.summarizer)
                compacted = await self._compactor.compact_now(chosen, options)
        except StoreUnavailable:
            return turn
        except TidegateError as exc:
            log.warning(
                "scheduled compaction failed conversation=%s code=%s", conversation, exc.code
            )
            return turn
        return turn if compacted.reason else compacted.after.having(rules=turn.rules)
