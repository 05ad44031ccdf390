"""The settings as one value, refused when they contradict themselves.

Nothing is read here: `settings_source.load_settings` reads the file and the environment.
"""

from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from proxy.core import budget
from proxy.core.limits import Configured
from proxy.core.model_names import first_match
from proxy.settings_sections import (
    DEFAULT_UPSTREAM,
    CompactionSettings,
    LogSettings,
    ModelSettings,
    ServerSettings,
    StoreSettings,
    Summarizer,
    UpstreamSettings,
)


class Settings(BaseSettings):
    """All settings. Contradictions are refused here, each with a sentence that says what to do."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        env_prefix="TIDEGATE_",
        env_nested_delimiter="__",
    )

    server: ServerSettings = ServerSettings()
    store: StoreSettings = StoreSettings()
    log: LogSettings = LogSettings()
    upstreams: dict[str, UpstreamSettings] = Field(
        default={}, description="provider endpoints, by name"
    )
    models: tuple[ModelSettings, ...] = Field(
        default=(), description="rules for models; first match wins"
    )
    compaction: CompactionSettings = CompactionSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is passed in counts; the environment is read elsewhere, once."""
        return (init_settings,)

    @model_validator(mode="after")
    def _hold_together(self) -> Self:
        problems = [*self._unknown_upstreams(), *self._contradictions(), *self._open_doors()]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _unknown_upstreams(self) -> list[str]:
        named = [(f"models[{i}]", rule.upstream) for i, rule in enumerate(self.models)]
        groups = [("compaction", self.compaction.summarizers)]
        groups += [(f"models[{i}]", rule.summarizers) for i, rule in enumerate(self.models)]
        named += [
            (f"{where}.summarizers[{i}]", summarizer.upstream)
            for where, chain in groups
            for i, summarizer in enumerate(chain)
        ]
        if not self.upstreams:
            # Without any upstream the practice provider stands in under the default's name.
            return [
                f"{where} names upstream {name!r}, but none is configured; add [upstreams.{name}]"
                for where, name in named
                if name != DEFAULT_UPSTREAM
            ]
        known = ", ".join(sorted(self.upstreams))
        found = [
            f"{where} names upstream {name!r}, which is not configured (configured: {known})"
            for where, name in named
            if name not in self.upstreams
        ]
        if DEFAULT_UPSTREAM not in self.upstreams:
            found.append(
                f"upstreams.{DEFAULT_UPSTREAM} is missing (configured: {known}); it serves every "
                "model that no [[models]] rule sends elsewhere: rename one, or add it"
            )
        return found

    def _contradictions(self) -> list[str]:
        found = [f"compaction: {said}" for said in budget.contradictions(self.policy_for(None))]
        for index, rule in enumerate(self.models):
            policy = self.policy_for(rule)
            where = f"models[{index}] (match {rule.match!r})"
            if policy != self.policy_for(None) or rule.context_window is not None:
                said_by_all = budget.contradictions(self.policy_for(None))
                found += [
                    f"{where}: {said}"
                    for said in budget.contradictions(policy, rule.context_window)
                    if said not in said_by_all
                ]
            if rule.context_window and rule.input_limit and rule.input_limit > rule.context_window:
                found.append(
                    f"{where}: input_limit = {rule.input_limit} is over "
                    f"context_window = {rule.context_window}; no prompt exceeds the window"
                )
        return found

    def _open_doors(self) -> list[str]:
        keyed = sorted(name for name, upstream in self.upstreams.items() if upstream.api_key)
        if not keyed or self.server.client_keys or self.server.on_loopback:
            return []
        return [
            f"server.host = {self.server.host!r} is reachable from other machines and "
            f"upstreams.{keyed[0]} has an api_key, so anyone could spend it: set "
            "server.client_keys, or listen on 127.0.0.1, or remove the api_key so that clients "
            "send their own"
        ]

    def rule_for(self, model: str) -> ModelSettings | None:
        """The first `[[models]]` rule that matches the model, by any of its names."""
        index = first_match([rule.match for rule in self.models], model)
        return None if index is None else self.models[index]

    def upstream_for(self, model: str) -> str:
        """The name of the upstream that serves the model."""
        rule = self.rule_for(model)
        return DEFAULT_UPSTREAM if rule is None else rule.upstream

    def summarizers_for(self, model: str) -> tuple[Summarizer, ...]:
        """The chain of summarisers; empty: the conversation's own model."""
        rule = self.rule_for(model)
        return (rule.summarizers if rule is not None else ()) or self.compaction.summarizers

    def configured_for(self, model: str) -> Configured:
        """What the operator wrote about the model."""
        rule = self.rule_for(model)
        policy = self.policy_for(rule)
        if rule is None:
            return Configured(policy=policy)
        return Configured(
            window_tokens=rule.context_window,
            input_limit_tokens=rule.input_limit,
            max_output_tokens=rule.max_output_tokens,
            policy=policy,
        )

    def policy_for(self, rule: ModelSettings | None) -> budget.Policy:
        """The budget policy under a rule: what the rule sets, else what `[compaction]` sets.

        Retention is one choice in three spellings: a rule that makes it replaces it whole.
        """
        common = self.compaction
        kept: CompactionSettings | ModelSettings = common
        headroom, trigger, percent = common.headroom_tokens, common.trigger, common.trigger_percent
        if rule is not None:
            if (rule.retain_tokens, rule.retain_percent, rule.keep) != (None, None, None):
                kept = rule
            headroom = headroom if rule.headroom_tokens is None else rule.headroom_tokens
            trigger = rule.trigger or trigger
            percent = rule.trigger_percent or percent
        return budget.Policy(
            trigger_percent=percent,
            headroom_tokens=headroom,
            retain_percent=kept.retain_percent or budget.RETAIN_PERCENT,
            retain_tokens=kept.retain_tokens,
            keep=None if kept.keep is None else kept.keep.as_core(),
            triggers=tuple(t.as_core() for t in trigger),
        )
