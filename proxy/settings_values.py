"""What the settings mean to the parts: upstreams, timeouts, policies, retention, as values."""

from collections.abc import Callable, Mapping
from functools import lru_cache

from proxy.core.compaction import Words
from proxy.core.summary_tasks import SummaryMode
from proxy.model_rules import CompactionPolicy, SummaryModel
from proxy.provider import Timeouts
from proxy.relay import Upstream
from proxy.settings import Settings
from proxy.settings_sections import DEFAULT_UPSTREAM, MIB, ServerSettings
from proxy.store.store import Retention

DAY_SECONDS = 86_400.0
MODELS_REMEMBERED = 4096


def upstream_chooser(
    settings: Settings, upstreams: Mapping[str, Upstream]
) -> Callable[[str | None], Upstream]:
    """Which upstream serves a model; the default one where no model is named."""
    default = upstreams[DEFAULT_UPSTREAM]

    @lru_cache(MODELS_REMEMBERED)
    def upstream_for(model: str | None) -> Upstream:
        return default if model is None else upstreams[settings.upstream_for(model)]

    return upstream_for


def upstreams_of(settings: Settings) -> dict[str, Upstream]:
    """The configured endpoints by name."""
    return {
        name: Upstream(
            name=name,
            base_url=upstream.base_url,
            api_key=upstream.api_key.get_secret_value() if upstream.api_key else None,
        )
        for name, upstream in settings.upstreams.items()
    }


def timeouts_of(server: ServerSettings) -> Timeouts:
    """The timeouts per gap."""
    return Timeouts(
        connect_seconds=server.connect_timeout_seconds,
        first_byte_seconds=server.first_byte_timeout_seconds,
        between_bytes_seconds=server.between_bytes_timeout_seconds,
        write_seconds=server.write_timeout_seconds,
    )


def compaction_policy(settings: Settings, model: str) -> CompactionPolicy:
    """What the operator chose for one model."""
    common = settings.compaction
    rule = settings.rule_for(model)
    return CompactionPolicy(
        enabled=common.enabled,
        retries=common.retries,
        max_overflow_replays=common.max_overflow_replays,
        digest_allowed=common.fallback == "digest",
        words=Words(
            keep_first_tokens=common.keep_first_tokens,
            keep_rules_tokens=common.keep_rules_tokens,
            summary_max_tokens=common.summary_max_tokens,
            role_alternation=rule is not None and rule.role_alternation,
        ),
        summary_mode=SummaryMode(common.summary_mode),
        summary_timeout_seconds=common.summary_timeout_seconds,
        summarizers=tuple(
            SummaryModel(s.upstream, s.model) for s in settings.summarizers_for(model)
        ),
    )


def retention_of(settings: Settings) -> Retention:
    """How long things are kept, and how much."""
    return Retention(
        log_seconds=settings.log.retention_days * DAY_SECONDS,
        replacement_seconds=settings.store.retention_days * DAY_SECONDS,
        max_log_bytes=settings.store.max_mib * MIB,
    )


def is_sole(settings: Settings) -> bool:
    """Whether no other process writes to the SQLite file, as far as the settings tell."""
    return settings.server.workers == 1 and settings.store.url.get_secret_value().startswith(
        "sqlite"
    )
