"""Names conversations for people, and records what became of each request. A name never decides
which replacement applies; the fingerprint chain alone does."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy.core.errors import StoreUnavailable
from proxy.core.newest import Newest
from proxy.store.store import Conversation, Store, new_id
from proxy.store.store import Turn as LoggedTurn
from proxy.turn import Turn
from proxy.wire import join_messages

log = logging.getLogger(__name__)

NAMES_REMEMBERED = 16_384  # some 390 bytes each; of older ones the store is asked
TOLD_SECONDS = 2.0  # the log writes what it is told within a fraction of that
TOLD_REMEMBERED = 4096
RECENT_MESSAGES = 32  # how far back the previous turn's last message is looked for


@dataclass(frozen=True, slots=True)
class Keeping:
    """What of a conversation is logged besides digests and counts."""

    messages: bool = True


class Conversations:
    """Finds the conversation that a request continues, and tells the log about it."""

    def __init__(
        self,
        store: Store,
        log_turn: Callable[[LoggedTurn], None],
        *,
        keeping: Keeping,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`log_turn` must not block: it is called between awaits of a request."""
        self._store = store
        self._log_turn = log_turn
        self._keeping = keeping
        self._clock = clock
        self._names: Newest[tuple[str, bytes], str] = Newest(NAMES_REMEMBERED)
        self._last: Newest[tuple[str, str], bytes] = Newest(NAMES_REMEMBERED)
        self._told: Newest[tuple[str, bytes], float] = Newest(TOLD_REMEMBERED)  # until when

    async def named(self, turn: Turn) -> Turn:
        """The turn with its conversation: as asked, as found by its chain, or a new one."""
        if turn.caller.conversation:
            return turn.having(conversation=turn.caller.conversation)
        tenant = turn.scope.tenant
        for fingerprint in reversed(turn.chain):
            known = self._names.get((tenant, fingerprint))
            if known is not None:
                return turn.having(conversation=known)
        found = None
        if turn.chain and not turn.unrecorded:
            try:
                found = await self._store.find_conversation(tenant, turn.root, turn.chain)
                found = None if found is not None and self._has_gone_on(found) else found
            except StoreUnavailable:
                turn = turn.having(degraded="store")
        return turn.having(conversation=found.id if found else new_id())

    def _has_gone_on(self, found: Conversation) -> bool:
        """Whether the log was just told of a later request of it, and has not written that yet."""
        last = self._last.get((found.tenant, found.id))
        told = 0.0 if last is None else self._told.get((found.tenant, last), 0.0)
        return last != found.last_fingerprint and told > time.monotonic()

    def record(self, turn: Turn) -> None:
        """Remember the request as its conversation's last, and tell the log what is new in it."""
        if not turn.chain:
            return
        tenant = turn.scope.tenant
        self._remember(tenant, turn.conversation, turn.chain[-1])
        request = turn.request
        kept = self._keeping.messages
        start = self._start_of_news(tenant, turn.chain)
        head = request.raw_messages[: request.head_length]
        self._log_turn(
            LoggedTurn(
                tenant=tenant,
                conversation=turn.conversation,
                time=self._clock(),
                upstream=turn.scope.upstream,
                model=turn.scope.model,
                root=turn.root,
                last_fingerprint=turn.chain[-1],
                message_count=len(turn.chain),
                start=start,
                parent=turn.chain[start - 1] if start else b"",
                fingerprints=turn.chain[start:],
                bodies=request.raw_messages[request.head_length + start :] if kept else None,
                head=join_messages(head) if kept and head else None,
                tools=request.fields.get("tools") if kept else None,
                labels=turn.caller.labels,
                gauge=_gauge(turn),
            )
        )

    def forget(self, tenant: str, name: str) -> None:
        """The conversation was deleted: what continues its history is a new one."""
        last = self._last.pop((tenant, name), None)
        if last is not None and self._names.get((tenant, last)) == name:
            del self._names[tenant, last]

    def _remember(self, tenant: str, name: str, last: bytes) -> None:
        """Only its last request names a conversation, as in the store: a fork is a new one."""
        before = self._last.get((tenant, name))
        if before is not None and self._names.get((tenant, before)) == name:
            del self._names[tenant, before]
        self._last.put((tenant, name), last)
        self._names.put((tenant, last), name)

    def _start_of_news(self, tenant: str, chain: Sequence[bytes]) -> int:
        """What the log has, or was told a moment ago: it may not have written that yet.

        Should the log have lost it, it asks for all of the history again.
        """
        now = time.monotonic()
        recent = range(len(chain), max(0, len(chain) - RECENT_MESSAGES), -1)
        told = next((p for p in recent if self._told.get((tenant, chain[p - 1]), now) > now), 0)
        self._told.put((tenant, chain[-1]), now + TOLD_SECONDS)
        # Behind what was told there are few messages to be looked for, of however long a chain.
        return told + self._store.unlogged(tenant, chain[told:])


def _gauge(turn: Turn) -> dict[str, int | str | None]:
    budget = turn.budget
    tokens = turn.view.total_tokens if turn.view is not None else turn.bound_tokens
    return {
        "tokens": tokens,
        "tokens_exact": turn.view is not None,
        "window_tokens": budget.window_tokens,
        "trigger_tokens": budget.trigger_tokens,
        "generation": turn.generation,
    }
