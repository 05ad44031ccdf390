"""The sections: what each refuses on its own."""

from typing import Any

import pytest
from pydantic import ValidationError

from proxy.core.budget import Measure as CoreMeasure
from proxy.core.budget import MeasureType
from proxy.settings_sections import (
    CompactionSettings,
    Measure,
    ModelSettings,
    ServerSettings,
    StoreSettings,
    UpstreamSettings,
)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.168.1.4", False),
        ("example.org", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert ServerSettings(host=host).on_loopback is loopback


@pytest.mark.parametrize(
    ("section", "values", "complaint"),
    [
        (ServerSettings, {"client_keys": ["a", " "]}, "empty key"),
        (ServerSettings, {"admin_key": ""}, "empty key"),
        (ServerSettings, {"port": 70_000}, "less than or equal to 65535"),
        (ServerSettings, {"first_byte_timeout_seconds": 0}, "greater than 0"),
        (ServerSettings, {"heartbeat_seconds": float("inf")}, "finite"),
        (UpstreamSettings, {"base_url": "api.openai.com"}, "http://"),
        (UpstreamSettings, {"base_url": "ftp://example.org"}, "http://"),
        (UpstreamSettings, {"base_url": "https://u:p@example.org"}, "api_key"),
        (UpstreamSettings, {"base_url": "https://example.org/#x"}, "#fragment"),
        (UpstreamSettings, {"base_url": "https://a.org/v1/chat/completions/"}, "must end before"),
        (StoreSettings, {"url": "mysql://u:p@h/d"}, "sqlite:///FILE"),
        (StoreSettings, {"url": "tidegate.db"}, "sqlite:///FILE"),
        (CompactionSettings, {"headroom_tokens": "most"}, 'or "auto"'),
        (CompactionSettings, {"headroom_tokens": -1}, 'or "auto"'),
        (CompactionSettings, {"headroom_tokens": True}, 'or "auto"'),
        (CompactionSettings, {"retain_percent": 101}, "100"),
        (CompactionSettings, {"keep": {"type": "fraction", "value": 80}}, "at most 1"),
        (CompactionSettings, {"trigger": [{"type": "words", "value": 1}]}, "'fraction'"),
        (CompactionSettings, {"retain_percent": 16, "retain_tokens": 5}, "are set together"),
        (ModelSettings, {"match": "", "context_window": 5}, "at least 1 character"),
        (ModelSettings, {"match": "a", "context_window": 0}, "greater than 0"),
        (
            ModelSettings,
            {"match": "a", "retain_tokens": 5, "keep": {"type": "tokens", "value": 5}},
            "retain_tokens and keep are set together",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(section: Any, values: Any, complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint.replace("[", r"\[")):
        section(**values)


def test_headroom_is_a_number_or_auto() -> None:
    for written, read in (("auto", "auto"), ("1000", 1000), (0, 0), (None, None)):
        settings = CompactionSettings.model_validate({"headroom_tokens": written})
        assert settings.headroom_tokens == read


def test_a_measure_becomes_integers() -> None:
    measure = Measure(type="fraction", value=0.7)
    assert measure.as_core() == CoreMeasure(MeasureType.FRACTION, 700_000)


def test_an_empty_key_of_an_upstream_is_no_key() -> None:
    settings = UpstreamSettings.model_validate({"base_url": "https://example.org", "api_key": ""})
    assert settings.api_key is None


def test_secrets_do_not_show() -> None:
    secrets = {"client_keys": ["ck-secret"], "admin_key": "ak-secret"}
    server = ServerSettings.model_validate(secrets)
    upstream = UpstreamSettings.model_validate(
        {"base_url": "https://example.org/v1?key=url-secret", "api_key": "sk-secret"}
    )
    assert "secret" not in f"{server!r}{server}{upstream!r}{upstream}"


def test_the_body_limit_in_bytes() -> None:
    assert ServerSettings().body_limit_bytes == 67_108_864
