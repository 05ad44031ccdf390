"""Asks upstreams what they list, in the background, and remembers it for a while.

A chat never waits for a listing and never causes one of its own: what is known is read from memory,
and what is stale is asked for again, once, by whoever comes first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cachetools import LRUCache

from proxy.core.listings import Listed, Listing, models_url, read_listing, root_url

logger = logging.getLogger(__name__)

# (method, URL, JSON body or None) -> the JSON answer, or None for any failure.
FetchJson = Callable[[str, str, object | None], Awaitable[object | None]]

LISTING_SECONDS = 3600.0
# An upstream that did not answer, or does not say: not asked on every turn.
NOTHING_SECONDS = 300.0
# A trained length, from a server that has not loaded the model yet.
UNSERVED_SECONDS = 60.0
FETCH_TIMEOUT_SECONDS = 10.0
MAX_PLACES = 1024
MAX_MODELS = 4096

# Routes beside the OpenAI-compatible ones, by what owns the entries of `/models`.
_BY_OWNER = {
    "llamacpp": ("/props",),
    "library": ("/api/ps", "/api/show"),
    "organization_owner": ("/api/v0/models",),  # LM Studio
}
_BY_PROVIDER = {
    "google": ("/v1beta/models",),
    "github-models": ("/catalog/models",),
    "cloudflare-workers-ai": ("/models/search",),
}
_SELF_HOSTED = (
    "/api/v0/models",
    "/props",
    "/api/ps",
    "/api/show",
    "/info",
    "/model/info",
    "/v1/models/status",
)
# These describe the one model that is served, whatever it is called.
_SOLE = frozenset({"/props", "/info"})


@dataclass(frozen=True, slots=True)
class Place:
    """An upstream, as one credential sees it; `tenant` is "" where the key is the operator's."""

    upstream: str
    tenant: str
    base_url: str


@dataclass(frozen=True, slots=True)
class _Kept:
    listing: Listing
    until: float


@dataclass(frozen=True, slots=True)
class _KeptModel:
    listed: Listed | None
    until: float


class ListingBook:
    """What each place lists. One question at a time for each place."""

    def __init__(
        self, *, provider_of: Callable[[str], str | None], now: Callable[[], float]
    ) -> None:
        """`provider_of` names the provider behind a base URL; None: self-hosted or unknown."""
        self._provider_of = provider_of
        self._now = now
        self.version = 0
        """Another number whenever `listed` may answer otherwise than before."""
        self._listings: LRUCache[Place, _Kept] = LRUCache(MAX_PLACES)
        self._models: LRUCache[tuple[Place, str], _KeptModel] = LRUCache(MAX_MODELS)
        self._asking: dict[Place, asyncio.Task[None]] = {}
        # Many tenants may come at once; their listings may wait.
        self._slots = asyncio.Semaphore(4)

    def listed(self, place: Place, model: str) -> Listed | None:
        """What is known, stale or not; never waits."""
        kept = self._listings.get(place)
        found = None if kept is None else kept.listing.find(model)
        own = self._models.get((place, model))
        if own is not None and own.listed is not None and not _tells(found):
            return own.listed
        return found

    def refresh(self, place: Place, model: str, fetch: FetchJson) -> None:
        """Begin to ask, unless what is known is fresh or this place is being asked already."""
        if self._fresh(place, model) or place in self._asking:
            return
        task = asyncio.create_task(self._ask(place, model, fetch), name=f"listing {place.upstream}")
        self._asking[place] = task
        task.add_done_callback(lambda _: self._asking.pop(place, None))

    def asking(self, place: Place) -> bool:
        """Whether this place is being asked at the moment: what is known may be about to change."""
        return place in self._asking

    async def settled(self) -> None:
        """Wait until nobody asks any more."""
        while self._asking:
            await asyncio.wait(list(self._asking.values()))

    async def aclose(self) -> None:
        """Stop asking."""
        for task in list(self._asking.values()):
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def _fresh(self, place: Place, model: str) -> bool:
        kept = self._listings.get(place)
        if kept is None or kept.until <= self._now():
            return False
        if _tells(kept.listing.find(model)):
            return True
        own = self._models.get((place, model))
        return own is not None and own.until > self._now()

    async def _ask(self, place: Place, model: str, fetch: FetchJson) -> None:
        try:
            async with self._slots:
                await self._ask_now(place, model, fetch)
        except Exception:
            # A listing is a convenience: whatever breaks, chats go on without it.
            logger.warning("listing_failed upstream=%s", place.upstream, exc_info=True)
            self._keep_model(place, model, None, NOTHING_SECONDS)
            kept = self._listings.get(place)
            self._keep(place, Listing() if kept is None else kept.listing, NOTHING_SECONDS)

    async def _ask_now(self, place: Place, model: str, fetch: FetchJson) -> None:
        kept = self._listings.get(place)
        if kept is None or kept.until <= self._now():
            document = await _fetch(fetch, "GET", models_url(place.base_url))
            seconds = NOTHING_SECONDS if document is None else LISTING_SECONDS
            listing = read_listing(document)
            if document is None and kept is not None:
                listing = kept.listing
            kept = self._keep(place, listing, seconds)
        if _tells(kept.listing.find(model)):
            return
        listed = None
        for route in self._routes(place, kept.listing):
            listed = await self._ask_route(place, route, model, fetch)
            if listed is not None and listed.window_tokens is not None:
                break
        seconds = NOTHING_SECONDS
        if listed is not None and listed.window_tokens is not None:
            seconds = LISTING_SECONDS if listed.served else UNSERVED_SECONDS
        self._keep_model(place, model, listed, seconds)

    def _keep(self, place: Place, listing: Listing, seconds: float) -> _Kept:
        self.version += 1
        kept = self._listings[place] = _Kept(listing, self._now() + seconds)
        return kept

    def _keep_model(self, place: Place, model: str, listed: Listed | None, seconds: float) -> None:
        self.version += 1
        self._models[(place, model)] = _KeptModel(listed, self._now() + seconds)

    def _routes(self, place: Place, listing: Listing) -> tuple[str, ...]:
        provider = self._provider_of(place.base_url)
        if provider is not None:
            return _BY_PROVIDER.get(provider, ())
        for owner, routes in _BY_OWNER.items():
            if owner in listing.owners:
                return routes
        return _SELF_HOSTED

    async def _ask_route(
        self, place: Place, route: str, model: str, fetch: FetchJson
    ) -> Listed | None:
        url = root_url(place.base_url, route)
        if route == "/api/show":
            shown = read_listing(await _fetch(fetch, "POST", url, {"model": model}))
            return shown.sole
        listing = read_listing(await _fetch(fetch, "GET", url))
        return listing.sole if route in _SOLE else listing.find(model)


async def _fetch(fetch: FetchJson, method: str, url: str, body: object = None) -> object | None:
    try:
        async with asyncio.timeout(FETCH_TIMEOUT_SECONDS):
            return await fetch(method, url, body)
    except TimeoutError:
        return None


def _tells(listed: Listed | None) -> bool:
    return listed is not None and listed.window_tokens is not None and listed.served
