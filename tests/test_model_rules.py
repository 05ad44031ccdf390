"""The defaults of the rules are those of the design and of the settings."""

from proxy.core.budget import Budget
from proxy.model_rules import CompactionPolicy, ModelRules
from proxy.settings import Settings
from proxy.settings_values import compaction_policy


def test_the_default_policy_is_the_one_of_empty_settings() -> None:
    assert CompactionPolicy() == compaction_policy(Settings(), "any")


def test_rules_hold_a_budget_and_the_policy() -> None:
    rules = ModelRules(budget=Budget(1, 0, 0, None))
    assert rules.compaction == CompactionPolicy()
    assert rules.hold_seconds == 10
    assert not rules.takes_no_images
