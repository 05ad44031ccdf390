"""Which models take no images: learned from a refusal that says so, remembered for a day for
(upstream, tenant, model), so that the next conversation costs no refusal."""

import logging

from proxy.core.errors import StoreUnavailable
from proxy.core.overflow import Refusal
from proxy.core.replacements import Scope
from proxy.store.store import Store

log = logging.getLogger(__name__)

NO_IMAGES = "no_images"
REMEMBERED_SECONDS = 24 * 60 * 60


async def remember_refusal(store: Store, scope: Scope, refusal: Refusal) -> None:
    """Take down what a refusal says about the model; other refusals teach nothing here."""
    if not refusal.takes_no_images:
        return
    try:
        await store.learn(scope, NO_IMAGES, True, ttl_seconds=REMEMBERED_SECONDS)
    except StoreUnavailable:
        log.warning("not remembered that the model takes no images model=%s", scope.model)


async def takes_no_images(store: Store, scope: Scope) -> bool:
    """Whether the model said within a day that it takes no images."""
    try:
        return NO_IMAGES in await store.learned(scope)
    except StoreUnavailable:
        return False
