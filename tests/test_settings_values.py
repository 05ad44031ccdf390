"""What the settings mean to the parts, as plain values."""

from pathlib import Path

import pytest

from proxy.core.summary_tasks import SummaryMode
from proxy.model_rules import SummaryModel
from proxy.settings import Settings
from proxy.settings_values import (
    compaction_policy,
    is_sole,
    retention_of,
    timeouts_of,
    upstream_chooser,
    upstreams_of,
)
from tests.proxied import settings_for

UPSTREAM = "http://127.0.0.1:9"


def test_upstreams_are_those_configured_with_their_keys(tmp_path: Path) -> None:
    upstreams = {
        "default": {"base_url": "https://a/v1"},
        "b": {"base_url": "https://b/v1", "api_key": "sk-b"},
    }
    made = upstreams_of(settings_for(tmp_path, UPSTREAM, None, upstreams=upstreams))
    assert {name: (u.base_url, u.api_key) for name, u in made.items()} == {
        "default": ("https://a/v1", None),
        "b": ("https://b/v1", "sk-b"),
    }


def test_timeouts_come_from_the_server_section() -> None:
    timeouts = timeouts_of(Settings().server)
    assert timeouts.connect_seconds == 10
    assert timeouts.first_byte_seconds == timeouts.between_bytes_seconds == 600
    assert timeouts.write_seconds == 60


def test_the_policy_of_a_model_is_what_the_operator_chose() -> None:
    chain = [{"model": "small"}]
    settings = Settings.model_validate(
        {
            "upstreams": {"default": {"base_url": "https://a/v1"}},
            "models": [{"match": "strict*", "role_alternation": True, "summarizers": chain}],
            "compaction": {
                "retries": 0,
                "max_overflow_replays": 2,
                "fallback": "none",
                "summary_mode": "transcript",
                "summary_timeout_seconds": 9,
                "keep_first_tokens": 11,
                "keep_rules_tokens": 12,
                "summary_max_tokens": 2000,
            },
        }
    )
    policy = compaction_policy(settings, "strict-1")
    assert (policy.enabled, policy.retries, policy.max_overflow_replays) == (True, 0, 2)
    assert not policy.digest_allowed
    assert policy.summary_mode is SummaryMode.TRANSCRIPT
    assert policy.summary_timeout_seconds == 9
    assert policy.summarizers == (SummaryModel("default", "small"),)
    words = policy.words
    assert (words.keep_first_tokens, words.keep_rules_tokens) == (11, 12)
    assert words.summary_max_tokens == 2000
    assert words.role_alternation
    assert not compaction_policy(settings, "other").words.role_alternation


def test_the_default_upstream_serves_what_no_rule_sends_elsewhere(tmp_path: Path) -> None:
    upstreams = {"default": {"base_url": "https://a/v1"}, "b": {"base_url": "https://b/v1"}}
    models = [{"match": "local*", "upstream": "b"}]
    settings = settings_for(tmp_path, UPSTREAM, None, upstreams=upstreams, models=models)
    choose = upstream_chooser(settings, upstreams_of(settings))
    assert [choose(model).name for model in ("local-1", "other", None)] == [
        "b",
        "default",
        "default",
    ]


def test_retention_is_in_seconds_and_bytes() -> None:
    kept = retention_of(Settings())
    assert kept.log_seconds == 30 * 86_400
    assert kept.replacement_seconds == 90 * 86_400
    assert kept.max_log_bytes == 4096 * 1024 * 1024


@pytest.mark.parametrize(
    ("workers", "url", "sole"),
    [
        (1, "sqlite:///a.db", True),
        (2, "sqlite:///a.db", False),
        (1, "postgresql://u:p@localhost/d", False),
    ],
)
def test_one_process_on_sqlite_is_alone(workers: int, url: str, sole: bool) -> None:
    sections = {"server": {"workers": workers}, "store": {"url": url}}
    assert is_sole(Settings.model_validate(sections)) is sole
