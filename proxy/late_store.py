"""A start while the store is away: chats are answered without it, and as soon as it answers, the
parts that have it take over. Nothing of the time before is kept."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from proxy.app import Parts
from proxy.core.errors import StoreUnavailable
from proxy.store.store import Store, StoreRefused

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
DIGESTS = "digests"

S = TypeVar("S", bound=Store)
MakeParts = Callable[[S, bytes], AbstractAsyncContextManager[Parts]]


@asynccontextmanager
async def parts_with(
    store: S, make_away: Callable[[], S], make: MakeParts[S]
) -> AsyncIterator[Parts]:
    """The parts on the store and its secret; without it, parts that wait for better ones.

    `make_away` makes any store: it is closed for ever, so that nothing under a passing key is kept.

    Raises:
        StoreRefused: it answers and will not do, now or later.
    """
    try:
        secret = await _secret(store)
    except StoreRefused:
        raise
    except StoreUnavailable as error:
        log.warning("store away at start, chats are answered without it error=%s", error)
        async with _meanwhile(store, make_away(), make) as parts:
            yield parts
        return
    async with make(store, secret) as parts:
        yield parts


@asynccontextmanager
async def _meanwhile(store: S, away: S, make: MakeParts[S]) -> AsyncIterator[Parts]:
    await away.close()
    async with AsyncExitStack() as stack:

        async def better() -> Parts:
            while True:
                await asyncio.sleep(RETRY_SECONDS)
                try:
                    secret = await _secret(store)
                except StoreUnavailable:
                    continue
                parts = await stack.enter_async_context(make(store, secret))
                log.warning("store answers, it is used from now on")
                return parts

        parts = await stack.enter_async_context(make(away, secrets.token_bytes(32)))
        yield replace(parts, better=better)


async def _secret(store: Store) -> bytes:
    await store.open()
    return await store.secret(DIGESTS)
