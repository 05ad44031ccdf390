"""Which models are known, and what holds for each: those the operator wrote rules for, those that
were asked for in this process, and those whose limits were learned by any worker."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.core.errors import StoreUnavailable
from proxy.core.limits import describe
from proxy.core.replacements import Scope
from proxy.store.store import Learned, Store
from proxy.windows import Windows

MAX_SHOWN = 1000
_GLOB_MARKS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class ModelRule:
    """A `[[models]]` entry: a name or a glob, and the upstream of what it matches."""

    match: str
    upstream: str


@dataclass(frozen=True, slots=True)
class Shown:
    """What is known of models, as JSON values. `degraded` names what could not be asked."""

    models: Sequence[dict[str, Any]] = field(repr=False)
    degraded: str | None = None
    truncated: bool = False


class KnownModels:
    """Shows limits and forgets lessons, for one tenant or (None) for all of them."""

    def __init__(self, windows: Windows, store: Store, rules: Sequence[ModelRule] = ()) -> None:
        """`rules` are the operator's, in their order."""
        self._windows = windows
        self._store = store
        self._rules = tuple(rules)

    async def shown(self, tenant: str | None) -> Shown:
        """Every rule of the operator, then every model, by name.

        O is what a request gets that names no output limit itself.
        """
        facts, degraded = await self._facts(tenant)
        by_scope: dict[Scope, list[Learned]] = {}
        for fact in facts:
            by_scope.setdefault(fact.scope, []).append(fact)
        scopes = sorted(
            {*self._windows.scopes(tenant), *by_scope},
            key=lambda scope: (scope.model, scope.upstream, scope.tenant),
        )
        rules = [self._of_rule(rule, tenant) for rule in self._rules]
        models = [
            await self._of_scope(scope, by_scope.get(scope, ())) for scope in scopes[:MAX_SHOWN]
        ]
        return Shown([*rules, *models], degraded, truncated=len(scopes) > MAX_SHOWN)

    async def forget(self, tenant: str | None, model: str) -> int:
        """Drop all that was learned of a model, on every upstream; how many facts there were.

        Raises:
            StoreUnavailable: what other workers read is still there.
        """
        scopes = {fact.scope for fact in await self._store.all_learned(tenant)}
        scopes.update(self._windows.scopes(tenant))
        tenants = {scope.tenant for scope in scopes if scope.model == model}
        dropped = 0
        for each in sorted(tenants):
            in_memory = await self._windows.forget(each, model)
            # Other lessons than limits, such as that a model takes no images.
            dropped += in_memory + await self._store.forget_learned(each, model)
        return dropped

    async def _facts(self, tenant: str | None) -> tuple[Sequence[Learned], str | None]:
        try:
            return await self._store.all_learned(tenant), None
        except StoreUnavailable:
            return (), "store"

    def _of_rule(self, rule: ModelRule, tenant: str | None) -> dict[str, Any]:
        scope = Scope(tenant or "", rule.upstream, rule.match)
        return {
            "model": rule.match,
            "pattern": bool(_GLOB_MARKS & set(rule.match)),
            "upstream": rule.upstream,
            "tenant": None,
            **self._limits(scope),
            "learned": [],
        }

    async def _of_scope(self, scope: Scope, facts: Sequence[Learned]) -> dict[str, Any]:
        await self._windows.prepare(scope)
        return {
            "model": scope.model,
            "pattern": False,
            "upstream": scope.upstream,
            "tenant": scope.tenant,
            **self._limits(scope),
            "learned": [
                {"kind": fact.kind, "value": fact.value, "expires_at": fact.expires_at}
                for fact in facts
            ],
        }

    def _limits(self, scope: Scope) -> dict[str, Any]:
        limits = self._windows.effective(scope)
        return describe(limits, limits.output_reserve({}))
