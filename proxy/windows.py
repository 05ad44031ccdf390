"""Which limits hold for (upstream, tenant, model), and where each of them came from.

A chat reads them from memory. `prepare` brings memory up to date: it reads what was learned (at
most every few seconds) and has listings asked for in the background, never once per chat.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cachetools import LRUCache

from proxy.catalogue import Catalogue
from proxy.core.errors import StoreUnavailable
from proxy.core.limits import (
    Configured,
    LimitKind,
    ModelLimits,
    StatedLimit,
    contradicted_setting,
    outgrown,
    resolve,
    worth_learning,
)
from proxy.core.newest import Newest
from proxy.core.replacements import Scope
from proxy.listing_book import FetchJson, ListingBook, Place

logger = logging.getLogger(__name__)

LEARNED_SECONDS = 24 * 3600.0
# How soon a limit that another worker learned is known here.
LEARNED_REFRESH_SECONDS = 5.0
MAX_SCOPES = 10_000


class LearnedFact(Protocol):
    """What the store hands back of a learned fact."""

    @property
    def value(self) -> Any:
        """The limit."""

    @property
    def expires_at(self) -> float:
        """When it stops to hold, in seconds since 1970."""


class LearnedStore(Protocol):
    """Where learned limits outlive a process."""

    async def learn(self, scope: Scope, kind: str, value: Any, *, ttl_seconds: float) -> None:
        """Remember a value under a kind."""

    async def learned(self, scope: Scope) -> Mapping[str, LearnedFact]:
        """By kind, what has not expired."""

    async def forget_learned(self, tenant: str, model: str, kind: str | None = None) -> int:
        """Drop it for the model on every upstream; how many were dropped."""


@dataclass(frozen=True, slots=True)
class UpstreamPlace:
    """What must be known of an upstream to ask for its listing."""

    base_url: str
    keyed: bool = False


@dataclass(frozen=True, slots=True)
class Lesson:
    """A limit that now holds, and the operator's number that it lowers, if any."""

    kind: LimitKind
    tokens: int
    contradicts: int | None
    # False when the same limit was known: nothing to tell anybody.
    new: bool = True


@dataclass(frozen=True, slots=True)
class _Learned:
    limits: Mapping[LimitKind, tuple[int, float]]
    read_at: float

    def now(self, time_now: float) -> dict[LimitKind, int]:
        return {kind: tokens for kind, (tokens, until) in self.limits.items() if until > time_now}


@dataclass(frozen=True, slots=True)
class _Held:
    """What a chat was told, and for how long the next one may be told the same."""

    limits: ModelLimits
    until: float
    listings_version: int


class Windows:
    """Answers `effective` at once; learns from refusals and successes."""

    def __init__(
        self,
        configured_for: Callable[[str], Configured],
        upstreams: Mapping[str, UpstreamPlace],
        *,
        store: LearnedStore | None = None,
        catalogue: Catalogue | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`configured_for` says what the operator wrote of a model; `now` in seconds since 1970."""
        self._configured_for = configured_for
        self._upstreams = upstreams
        self._store = store
        self._catalogue = Catalogue() if catalogue is None else catalogue
        self._now = now
        self._learned: Newest[Scope, _Learned] = Newest(MAX_SCOPES)
        # Dropped by whoever changes what was learned: see `_note`.
        self._held: Newest[Scope, _Held] = Newest(MAX_SCOPES)
        self._warned: LRUCache[tuple[Scope, LimitKind, int], None] = LRUCache(MAX_SCOPES)
        self._book = ListingBook(provider_of=self._catalogue.provider_of, now=now)

    def effective(self, scope: Scope) -> ModelLimits:
        """What holds now, from memory."""
        place = self._place(scope)
        known = self._learned.get(scope)
        return resolve(
            self._configured_for(scope.model),
            learned={} if known is None else known.now(self._now()),
            listed=None if place is None else self._book.listed(place, scope.model),
            catalogued=self._catalogue.find(scope.model, "" if place is None else place.base_url),
        )

    def held(self, scope: Scope) -> ModelLimits | None:
        """What the last chat was told, as long as nothing that decides can have changed."""
        held = self._held.get(scope)
        if held is None or held.listings_version != self._book.version:
            return None
        return held.limits if held.until > self._now() else None

    async def prepare(self, scope: Scope, fetch: FetchJson | None = None) -> ModelLimits:
        """What holds, after reading what was learned. `fetch` may ask the upstream as this caller.

        Waits for the store when it was not asked lately, and for the catalogue the first time that
        only it can tell; never for the upstream.
        """
        await self._read_learned(scope)
        configured = self._configured_for(scope.model).window_tokens is not None
        place = self._place(scope)
        if not configured and not self._catalogue.loaded:
            await self._catalogue.load()
        if place is not None and fetch is not None and not configured:
            self._book.refresh(place, scope.model, fetch)
        limits = self.effective(scope)
        if fetch is not None and self._catalogue.loaded:
            self._hold(scope, limits)
        return limits

    def _hold(self, scope: Scope, limits: ModelLimits) -> None:
        """Until what was learned is read again, or some of it expires."""
        now, known = self._now(), self._learned.get(scope)
        ends = [now + LEARNED_REFRESH_SECONDS]
        if known is not None:
            if self._store is not None:
                ends = [known.read_at + LEARNED_REFRESH_SECONDS]
            ends += [until for _, until in known.limits.values() if until > now]
        self._held.put(scope, _Held(limits, min(ends), self._book.version))

    def _note(self, scope: Scope, learned: _Learned) -> None:
        self._learned.put(scope, learned)
        self._held.pop(scope, None)

    def asking(self, scope: Scope) -> bool:
        """Whether the upstream is being asked for its listing at the moment."""
        place = self._place(scope)
        return place is not None and self._book.asking(place)

    async def load_catalogue(self) -> None:
        """Read the catalogue ahead of the first chat that needs it."""
        await self._catalogue.load()

    async def learn(self, scope: Scope, stated: StatedLimit) -> Lesson | None:
        """Take note of a limit stated in a refusal, for a day; None when it is not worth it."""
        if not worth_learning(stated, self.effective(scope)):
            return None
        known = self._learned.get(scope, _Learned({}, self._now()))
        new = known.now(self._now()).get(stated.kind) != stated.tokens
        entry = (stated.tokens, self._now() + LEARNED_SECONDS)
        self._note(scope, _Learned({**known.limits, stated.kind: entry}, self._now()))
        contradicts = contradicted_setting(stated, self._configured_for(scope.model))
        self._tell(scope, stated, contradicts)
        if self._store is not None:
            await _quietly(
                self._store.learn(
                    scope, stated.kind.value, stated.tokens, ttl_seconds=LEARNED_SECONDS
                )
            )
        return Lesson(stated.kind, stated.tokens, contradicts, new)

    def holds_lessons(self, scope: Scope) -> bool:
        """Whether there is a learned limit that a success could refute; from memory."""
        known = self._learned.get(scope)
        return known is not None and bool(known.limits)

    async def succeeded(self, scope: Scope, prompt_tokens: int, output_tokens: int = 0) -> bool:
        """Drop learned limits that a success refutes; figures are the provider's own `usage`."""
        known = self._learned.get(scope)
        if known is None:
            return False
        refuted = outgrown(known.now(self._now()), prompt_tokens, output_tokens)
        for kind in refuted:
            logger.info(
                "limit_refuted upstream=%s model=%s kind=%s limit=%s prompt=%s output=%s",
                *(scope.upstream, scope.model, kind.value, known.limits[kind][0]),
                *(prompt_tokens, output_tokens),
            )
            await self._drop(scope, kind)
        return bool(refuted)

    async def forget(self, tenant: str, model: str) -> int:
        """Drop the limits learned for a model on every upstream; how many there were."""
        dropped = self._forget_here(tenant, model)
        if self._store is None:
            return dropped
        stored = [await self._store.forget_learned(tenant, model, kind.value) for kind in LimitKind]
        self._forget_here(tenant, model)  # what a chat read of it meanwhile
        return max(dropped, sum(stored))

    def _forget_here(self, tenant: str, model: str) -> int:
        scopes = [s for s in self._learned if (s.tenant, s.model) == (tenant, model)]
        self._held.clear()
        return sum(len(self._learned.pop(scope).now(self._now())) for scope in scopes)

    def scopes(self, tenant: str | None = None) -> tuple[Scope, ...]:
        """The models asked for lately in this process, of one tenant or of all."""
        return tuple(s for s in self._learned if tenant is None or s.tenant == tenant)

    async def settled(self) -> None:
        """Wait until no listing is being asked for."""
        await self._book.settled()

    async def aclose(self) -> None:
        """Stop what runs in the background."""
        await self._book.aclose()

    def _place(self, scope: Scope) -> Place | None:
        upstream = self._upstreams.get(scope.upstream)
        if upstream is None:
            return None
        # What a client's own credential may see is that client's; the operator's key is everyone's.
        tenant = "" if upstream.keyed else scope.tenant
        return Place(scope.upstream, tenant, upstream.base_url)

    async def _read_learned(self, scope: Scope) -> None:
        known = self._learned.get(scope)
        now = self._now()
        if self._store is None or (known and now - known.read_at < LEARNED_REFRESH_SECONDS):
            return
        if known is not None:
            # Whoever comes while the store is asked goes by what was known.
            known = _Learned(known.limits, now)
            self._learned.put(scope, known)
        facts: Mapping[str, LearnedFact] | None
        try:
            facts = await self._store.learned(scope)
        except StoreUnavailable:
            facts = None if known is not None else {}
        if facts is None or self._learned.get(scope) is not known:
            # What was learned or forgotten meanwhile is newer than the answer.
            return
        kinds = {kind.value: kind for kind in LimitKind}
        limits = {
            kinds[name]: (fact.value, fact.expires_at)
            for name, fact in facts.items()
            if name in kinds and isinstance(fact.value, int)
        }
        self._note(scope, _Learned(limits, now))

    async def _drop(self, scope: Scope, kind: LimitKind) -> None:
        known = self._learned[scope]
        left = {other: entry for other, entry in known.limits.items() if other is not kind}
        self._note(scope, _Learned(left, self._now()))
        if self._store is not None:
            # For the model on every upstream, as the store offers it: a limit that still holds
            # elsewhere is stated there again.
            await _quietly(self._store.forget_learned(scope.tenant, scope.model, kind.value))

    def _tell(self, scope: Scope, stated: StatedLimit, contradicts: int | None) -> None:
        mark = (scope, stated.kind, stated.tokens)
        if mark in self._warned:
            return
        self._warned[mark] = None
        fields = (scope.upstream, scope.model, stated.kind.value, stated.tokens)
        if contradicts is None:
            logger.info("limit_learned upstream=%s model=%s kind=%s limit=%s", *fields)
            return
        logger.warning(
            "limit_contradicts_setting upstream=%s model=%s kind=%s limit=%s configured=%s "
            "remedy=lower_context_window_of_this_model",
            *(*fields, contradicts),
        )


async def _quietly(work: Any) -> None:
    """The store being down does not fail a chat: memory holds the limit meanwhile."""
    try:
        await work
    except StoreUnavailable:
        logger.warning("learned_limit_not_stored")
