"""Settings for people to read: complete, as TOML, and without a secret."""

import tomllib

from proxy.core.settings_text import MASK, lines_of, masked_url
from proxy.settings import Settings

FULL = {
    "server": {"client_keys": ["ck-secret"], "admin_key": "ak-secret"},
    "store": {"url": "postgresql://user:secret@db/tidegate"},
    "upstreams": {
        "default": {"base_url": "https://a.example/v1?key=secret", "api_key": "sk-secret"},
        "local": {"base_url": "http://127.0.0.1:1/v1"},
    },
    "models": [
        {"match": "a", "keep": {"type": "fraction", "value": 0.5}, "context_window": 100_000},
        {"match": "b", "upstream": "local"},
    ],
    "compaction": {"trigger": [{"type": "messages", "value": 400}], "headroom_tokens": "auto"},
}


def text(settings: Settings) -> str:
    return "\n".join(lines_of(settings.model_dump()))


def test_no_secret_is_shown() -> None:
    shown = text(Settings.model_validate(FULL))
    assert "secret" not in shown
    assert f'client_keys = ["{MASK}"]' in shown
    assert f'api_key = "{MASK}"' in shown


def test_it_is_the_configuration_but_for_the_secrets() -> None:
    settings = Settings.model_validate(FULL)
    shown = tomllib.loads(text(settings))
    again = Settings.model_validate(shown)
    assert again.models == settings.models
    assert again.compaction.trigger == settings.compaction.trigger
    assert again.server.port == settings.server.port
    assert shown["upstreams"]["local"]["base_url"] == "http://127.0.0.1:1/v1"


def test_urls_lose_user_password_and_query() -> None:
    assert masked_url("https://u:p@h/v1?key=1") == f"https://{MASK}@h/v1?{MASK}"
    assert masked_url("sqlite:///tidegate.db") == "sqlite:///tidegate.db"
