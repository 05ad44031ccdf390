"""Every series stands in the table; no client can make their number grow."""

import json
import re
from pathlib import Path

import pytest

from proxy.metrics import MODELS_TOLD_APART, OTHER_MODEL, TABLE, Metrics, SummaryFigures


def value(metrics: Metrics, line: str) -> float:
    """The value of one line of the exposition; 0 where it is not there yet."""
    for text in metrics.exposition().decode().splitlines():
        if text.startswith(f"{line} "):
            return float(text.rsplit(" ", 1)[1])
    return 0.0


def test_every_name_of_the_table_is_exposed_with_its_sentence() -> None:
    text = Metrics().exposition().decode()
    for name, (_, sentence, _) in TABLE.items():
        assert f"# HELP {name} {sentence}" in text


def test_two_applications_in_one_process_do_not_share_series() -> None:
    one, other = Metrics(), Metrics()
    one.add("tidegate_degraded_total", part="store")
    assert value(one, 'tidegate_degraded_total{part="store"}') == 1
    assert value(other, 'tidegate_degraded_total{part="store"}') == 0


def test_counters_gauges_and_histograms() -> None:
    metrics = Metrics()
    metrics.add("tidegate_offloaded_images_total", 3)
    metrics.set("tidegate_estimate_ratio", 1.25, model="m")
    metrics.observe("tidegate_prefix_share", 0.8)
    assert value(metrics, "tidegate_offloaded_images_total") == 3
    assert value(metrics, 'tidegate_estimate_ratio{model="m"}') == 1.25
    assert value(metrics, 'tidegate_prefix_share_bucket{le="0.75"}') == 0
    assert value(metrics, 'tidegate_prefix_share_bucket{le="0.9"}') == 1


def test_a_series_is_found_again_by_all_of_its_labels() -> None:
    metrics = Metrics()
    for outcome in ("landed", "busy", "landed"):
        metrics.add("tidegate_compactions_total", cause="pressure", outcome=outcome)
    metrics.add("tidegate_compactions_total", outcome="landed", cause="pressure")
    for ratio in (1.5, 1.25):
        metrics.set("tidegate_estimate_ratio", ratio, model="m")
    metrics.set("tidegate_estimate_ratio", 2, model="n")
    landed = 'tidegate_compactions_total{cause="pressure",outcome="landed"}'
    assert value(metrics, landed) == 3
    assert value(metrics, 'tidegate_compactions_total{cause="pressure",outcome="busy"}') == 1
    assert value(metrics, 'tidegate_estimate_ratio{model="m"}') == 1.25
    assert value(metrics, 'tidegate_estimate_ratio{model="n"}') == 2


def test_a_gauge_can_be_read_from_where_it_is_counted() -> None:
    metrics, counted = Metrics(), [1]
    metrics.follow("tidegate_in_flight", lambda: len(counted))
    assert value(metrics, "tidegate_in_flight") == 1
    counted.append(2)
    assert value(metrics, "tidegate_in_flight") == 2


def test_a_name_outside_the_table_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        Metrics().add("tidegate_nothing_total")


def test_only_the_first_models_are_told_apart() -> None:
    metrics = Metrics()
    names = [f"m{n}" for n in range(MODELS_TOLD_APART + 5)]
    labels = [metrics.model_label(name) for name in names]
    assert labels[:MODELS_TOLD_APART] == names[:MODELS_TOLD_APART]
    assert set(labels[MODELS_TOLD_APART:]) == {OTHER_MODEL}
    assert metrics.model_label("m0") == "m0"


def test_a_very_long_name_is_not_a_label() -> None:
    assert Metrics().model_label("m" * 101) == OTHER_MODEL


def test_a_call_to_a_summariser_is_counted_by_outcome() -> None:
    metrics = Metrics()
    metrics.summary_call(SummaryFigures("accepted", 700, 50, 0.3))
    metrics.summary_call(SummaryFigures("timeout", 700, 0, 120.0))
    assert value(metrics, 'tidegate_summary_calls_total{outcome="accepted"}') == 1
    assert value(metrics, "tidegate_summary_prompt_tokens_total") == 1400
    assert value(metrics, "tidegate_summary_completion_tokens_total") == 50
    assert value(metrics, "tidegate_summary_seconds_count") == 2


def test_the_dashboard_shows_every_metric_and_no_other() -> None:
    """Names that are not there any more would be empty panels."""
    file = Path(__file__).parent.parent / "config/deploy/grafana/tidegate.json"
    queries = " ".join(
        target["expr"]
        for panel in json.loads(file.read_text(encoding="utf-8"))["panels"]
        for target in panel["targets"]
    )
    shown = {name.removesuffix("_bucket") for name in re.findall(r"tidegate_[a-z_]+", queries)}
    assert shown == set(TABLE)
