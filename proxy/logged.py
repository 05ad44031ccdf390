"""Conversations as the log knows them: their last history, the replacements recorded for it, and
the surface at every generation. A read sees every write that was made before it."""

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

from cachetools import LRUCache

from proxy.core.errors import InvalidRequest, TidegateError
from proxy.core.generations import Step, applied_at, steps
from proxy.core.ranges import pair
from proxy.core.surface import Surface, fold, matching
from proxy.core.titles import title_of
from proxy.journal import Journal
from proxy.off_loop import off_loop
from proxy.store.store import Conversation, Store
from proxy.wire import ChatRequest, decode, encode, join_messages, read_chat

TITLES_REMEMBERED = 4096


class ConversationNotFound(InvalidRequest):
    """No such conversation, or another tenant's: which of the two is not said."""

    status = 404
    code = "conversation_not_found"


class HistoryUnavailable(TidegateError):
    """The originals are not in the log, or not any more."""

    status = 409
    type = "invalid_request_error"
    code = "history_unavailable"


@dataclass(frozen=True, slots=True)
class History:
    """A conversation's last request as logged, and the fingerprints it had."""

    request: ChatRequest
    chain: tuple[bytes, ...]

    def surface(self, made: tuple[Step, ...], generation: int) -> Surface:
        """What the model saw of it at that generation."""
        history = self.request.history
        applied = matching(self.chain, applied_at(made, generation))
        return fold(history, pair(history), applied)


class Logged:
    """Reads conversations back, for one tenant or (None) for the operator."""

    def __init__(self, store: Store, journal: Journal) -> None:
        """The journal is written out before anything is read."""
        self._store = store
        self._journal = journal
        self._titles: MutableMapping[tuple[str, bytes], str] = LRUCache(TITLES_REMEMBERED)

    async def written(self) -> None:
        """Everything recorded before this call can be read after it."""
        await self._journal.flush()

    async def conversation(self, tenant: str | None, id: str) -> Conversation:
        """One conversation.

        Raises:
            ConversationNotFound: the tenant has none of that id.
        """
        await self.written()
        found = await self._store.conversation(tenant, id)
        if found is None:
            raise ConversationNotFound(f"There is no conversation {id[:200]!r}.")
        return found

    async def titles(self, conversations: Sequence[Conversation]) -> list[str | None]:
        """The beginning of each one's first message; None where it is not kept or has no words."""
        places = [(each.tenant, each.root) for each in conversations]
        unknown = {place for place in places if place not in self._titles}
        for place, body in (await self._store.openings(unknown)).items():
            self._titles[place] = title_of(await off_loop(len(body), decode, body))
        return [self._titles.get(place) or None for place in places]

    async def steps(self, conversation: Conversation) -> tuple[Step, ...]:
        """What made each generation of its last history."""
        chain = await self._store.chain(conversation.tenant, conversation.last_fingerprint)
        if chain is None:
            return ()
        rows = await self._store.replacements(conversation.scope, conversation.root, chain)
        applied = matching(chain, rows)
        revoked = [row.id for row in applied if row.revoked]
        return steps(applied, await self._store.revocations(conversation.tenant, revoked))

    async def history(self, conversation: Conversation) -> History:
        """Its last request.

        Raises:
            HistoryUnavailable: the messages were not kept, or are gone.
        """
        tenant, last = conversation.tenant, conversation.last_fingerprint
        chain = await self._store.chain(tenant, last)
        raw = await self._store.history(tenant, last)
        if chain is None or raw is None or len(chain) != len(raw):
            raise HistoryUnavailable(
                "The messages of this conversation are not in the log (log.messages is off, or "
                "they are older than log.retention_days)."
            )
        fields = {"model": encode(conversation.model)}
        head = await self._content(tenant, conversation.head)
        tools = await self._content(tenant, conversation.tools)
        messages = [head[1:-1]] if head is not None and head != b"[]" else []
        fields["messages"] = join_messages([*messages, *raw])
        if tools is not None:
            fields["tools"] = tools
        body = b"{" + b",".join(encode(k) + b":" + v for k, v in fields.items()) + b"}"
        request = read_chat(body)
        if request is None or len(request.history) != len(chain):
            raise HistoryUnavailable("The logged messages cannot be read as a chat.")
        return History(request, chain)

    async def _content(self, tenant: str, key: bytes | None) -> bytes | None:
        return None if key is None else await self._store.content(tenant, key)
