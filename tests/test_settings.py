"""The settings as a whole: contradictions, routing, and the policy of a model."""

from typing import Any

import pytest
from pydantic import ValidationError

from proxy.core.budget import Measure, MeasureType, Policy
from proxy.core.limits import Configured
from proxy.settings import Settings

ONE = {"default": {"base_url": "https://api.example.org/v1"}}
KEYED = {"default": {"base_url": "https://api.example.org/v1", "api_key": "sk-x"}}
TWO = {**ONE, "local": {"base_url": "http://127.0.0.1:11434"}}


def settings(**sections: Any) -> Settings:
    return Settings.model_validate(sections)


def test_nothing_at_all_is_a_valid_configuration() -> None:
    assert Settings().upstreams == {}


def test_the_environment_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_SERVER__PORT", "9")
    assert Settings().server.port == 8080


class TestRefusals:
    """Contradictions are refused with a sentence that names the keys and says what to do."""

    @pytest.mark.parametrize(
        ("sections", "complaint"),
        [
            ({"models": [{"match": "a", "upstream": "b"}]}, r"add \[upstreams.b\]"),
            (
                {"upstreams": ONE, "models": [{"match": "a", "upstream": "b"}]},
                r"models\[0\] names upstream 'b', which is not configured \(configured: default\)",
            ),
            (
                {
                    "upstreams": ONE,
                    "compaction": {"summarizers": [{"upstream": "b", "model": "m"}]},
                },
                r"compaction.summarizers\[0\] names upstream 'b'",
            ),
            ({"upstreams": {"a": ONE["default"]}}, "upstreams.default is missing"),
            (
                {"compaction": {"retain_percent": 80}},
                "compaction: retain_percent = 80 is not below",
            ),
            ({"compaction": {"trigger_percent": 16}}, "retain_percent = 16 is not below"),
            (
                {
                    "compaction": {
                        "retain_tokens": 9,
                        "trigger": [{"type": "tokens", "value": 9}],
                    }
                },
                "retain_tokens = 9 is not below the trigger of 9 tokens",
            ),
            (
                {
                    "compaction": {
                        "keep": {"type": "messages", "value": 9},
                        "trigger": [{"type": "messages", "value": 8}],
                    }
                },
                "keep = 9 messages is not below the trigger of 8 messages",
            ),
            (
                {"models": [{"match": "a", "context_window": 1000, "retain_tokens": 800}]},
                r"models\[0\] \(match 'a'\): retain_tokens = 800",
            ),
            (
                {
                    "models": [{"match": "a", "context_window": 1000}],
                    "compaction": {"retain_tokens": 800},
                },
                r"models\[0\] \(match 'a'\): retain_tokens = 800",
            ),
            (
                {"models": [{"match": "a", "context_window": 10, "input_limit": 11}]},
                "input_limit = 11 is over context_window = 10",
            ),
            ({"upstreams": KEYED, "server": {"host": "0.0.0.0"}}, "server.client_keys"),
            ({"upstreams": KEYED, "server": {"host": "example.org"}}, "server.client_keys"),
        ],
    )
    def test_with_a_sentence(self, sections: dict[str, Any], complaint: str) -> None:
        with pytest.raises(ValidationError, match=complaint):
            settings(**sections)

    @pytest.mark.parametrize(
        "sections",
        [
            {"upstreams": KEYED},
            {"upstreams": ONE, "server": {"host": "0.0.0.0"}},
            {"upstreams": KEYED, "server": {"host": "0.0.0.0", "client_keys": ["a"]}},
            {"models": [{"match": "a", "context_window": 65_536, "max_output_tokens": 8_192}]},
            {"compaction": {"retain_percent": 16, "trigger": [{"type": "tokens", "value": 100}]}},
        ],
    )
    def test_but_not_what_can_work_for_some_request(self, sections: dict[str, Any]) -> None:
        assert settings(**sections)


def test_the_first_rule_that_matches_any_name_of_the_model_routes_it() -> None:
    found = settings(
        upstreams=TWO,
        models=[
            {"match": "qwen3-*", "upstream": "local", "context_window": 32_768},
            {"match": "qwen3-32b", "context_window": 1},
        ],
    )
    assert found.upstream_for("Qwen/qwen3-32b:latest") == "local"
    assert found.upstream_for("gpt-5") == "default"
    rule = found.rule_for("qwen3-32b")
    assert rule is not None
    assert rule.context_window == 32_768
    assert found.rule_for("gpt-5") is None


def test_summarizers_of_a_model_come_before_those_of_all() -> None:
    found = settings(
        models=[{"match": "a", "summarizers": [{"model": "small"}]}, {"match": "b"}],
        compaction={"summarizers": [{"model": "common"}]},
    )
    assert [s.model for s in found.summarizers_for("a")] == ["small"]
    assert [s.model for s in found.summarizers_for("b")] == ["common"]
    assert [s.model for s in found.summarizers_for("c")] == ["common"]
    assert Settings().summarizers_for("c") == ()


def test_what_is_written_about_a_model() -> None:
    found = settings(
        models=[
            {
                "match": "a",
                "context_window": 100,
                "input_limit": 80,
                "max_output_tokens": 20,
                "headroom_tokens": 5,
            }
        ]
    )
    assert found.configured_for("a") == Configured(100, 80, 20, Policy(headroom_tokens=5))
    assert found.configured_for("b") == Configured()


class TestPolicy:
    """A rule's value counts before `[compaction]`'s."""

    def test_defaults_are_the_core_s(self) -> None:
        assert Settings().policy_for(None) == Policy()

    def test_a_rule_overrides_what_it_names(self) -> None:
        found = settings(
            models=[
                {
                    "match": "a",
                    "headroom_tokens": 0,
                    "trigger_percent": 70,
                    "trigger": [{"type": "tokens", "value": 5_000}],
                },
                {"match": "b"},
            ],
            compaction={"headroom_tokens": "auto", "trigger": [{"type": "messages", "value": 9}]},
        )
        own, common = (found.policy_for(rule) for rule in found.models)
        assert own == Policy(
            trigger_percent=70,
            headroom_tokens=0,
            triggers=(Measure(MeasureType.TOKENS, 5_000),),
        )
        assert common == found.policy_for(None)
        assert common.headroom_tokens == "auto"

    def test_retention_is_replaced_whole(self) -> None:
        """One choice in three spellings: a rule's retain_tokens drops the common `keep`."""
        found = settings(
            models=[{"match": "a", "retain_tokens": 50}, {"match": "b", "retain_percent": 20}],
            compaction={"keep": {"type": "messages", "value": 9}},
        )
        assert found.policy_for(found.models[0]) == Policy(retain_tokens=50)
        assert found.policy_for(found.models[1]) == Policy(retain_percent=20)
        assert found.policy_for(None).keep == Measure(MeasureType.MESSAGES, 9)
