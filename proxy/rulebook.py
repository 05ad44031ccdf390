"""Which rules hold for a request: the operator's choices, and the limits known of its model. What a
refusal teaches is taken down here."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

import msgspec
from cachetools import LRUCache

from proxy.anchor_book import AnchorBook
from proxy.core.errors import TidegateError
from proxy.core.limits import ModelLimits, StatedLimit
from proxy.core.overflow import Refusal
from proxy.core.replacements import Scope
from proxy.image_memory import takes_no_images
from proxy.listing_book import FetchJson
from proxy.model_rules import CompactionPolicy, ModelRules
from proxy.provider import Provider
from proxy.relay import Caller, listing_request
from proxy.store.store import Store
from proxy.surfaces import Surfaces
from proxy.turn import Turn
from proxy.windows import Windows
from proxy.wire import ChatRequest, encode

log = logging.getLogger(__name__)

MODELS_WARNED = 4096
RULES_REMEMBERED = 1024
MAX_LISTING_BYTES = 16 * 1024 * 1024


class Rulebook:
    """Answers what holds for a request; one per process."""

    def __init__(
        self,
        *,
        windows: Windows,
        policy_for: Callable[[str], CompactionPolicy],
        store: Store,
        provider: Provider,
        anchors: AnchorBook,
        hold_seconds: float,
        inject_stream_usage: bool = False,
    ) -> None:
        """`policy_for` says what the operator chose for a model."""
        self._windows = windows
        self._policy_for = policy_for
        self._store = store
        self._provider = provider
        self._anchors = anchors
        self._hold_seconds = hold_seconds
        self._inject_stream_usage = inject_stream_usage
        self._warned: LRUCache[tuple[str, str], bool] = LRUCache(MODELS_WARNED)
        # Nearly every request of a model asks for the same ones.
        self._rules_of = lru_cache(RULES_REMEMBERED)(self._made)

    async def rules(self, caller: Caller, request: ChatRequest) -> ModelRules:
        """The rules for one request; never waits for the upstream."""
        scope = Scope(caller.tenant, caller.upstream.name, request.model)
        limits = self._windows.held(scope)
        if limits is None:
            limits = await self._windows.prepare(scope, self._fetcher(caller))
        rules = self._rules_of(limits, limits.output_reserve(request.params), request.model)
        # An upstream that is being asked may be about to tell what is missing.
        if not rules.budget.valid and not self._windows.asking(scope):
            self._warn(scope, rules.budget.problem)
        if request.has_media and await takes_no_images(self._store, scope):
            rules = replace(rules, takes_no_images=True)
        return rules

    def _made(self, limits: ModelLimits, output_tokens: int, model: str) -> ModelRules:
        return ModelRules(
            budget=limits.budget(output_tokens),
            compaction=self._policy_for(model),
            hold_seconds=self._hold_seconds,
            inject_stream_usage=self._inject_stream_usage,
        )

    def _warn(self, scope: Scope, problem: str) -> None:
        """Once for each upstream and model: the chat goes on, without compaction under pressure."""
        key = (scope.upstream, scope.model)
        if key not in self._warned:
            self._warned[key] = True
            log.warning("no_budget upstream=%s model=%s problem=%s", *key, problem)

    async def overflowed(self, turn: Turn, refusal: Refusal, surfaces: Surfaces) -> bool:
        """Learn from a context overflow; whether a limit was learned that nobody had stated before.

        `turn` is priced as it was refused.
        """
        assert turn.counted is not None
        self._anchors.learn_from_refusal(
            surfaces.sent(turn, turn.counted),
            refusal.prompt_tokens,
            is_lower_bound=refusal.prompt_is_lower_bound,
        )
        if refusal.window_tokens is None:
            return False
        stated = StatedLimit(
            tokens=refusal.window_tokens,
            counted_tokens=turn.priced.total_tokens,
            output_tokens=turn.budget.output_tokens,
            input_only=refusal.window_is_input_only,
        )
        lesson = await self._windows.learn(turn.scope, stated)
        return lesson is not None and lesson.new

    def _fetcher(self, caller: Caller) -> FetchJson:
        """Asks the upstream as this caller; any failure is an answer of nothing."""

        async def fetch(method: str, url: str, body: object | None) -> object | None:
            content = b"" if body is None else encode(body)
            try:
                reply = await self._provider.send(listing_request(caller, method, url, content))
                try:
                    raw = await reply.whole(max_bytes=MAX_LISTING_BYTES)
                finally:
                    await reply.aclose()
                decoded: object = msgspec.json.decode(raw)
            except (TidegateError, msgspec.DecodeError, RecursionError):
                return None
            return decoded if isinstance(decoded, Mapping | list) and reply.status == 200 else None

        return fetch
