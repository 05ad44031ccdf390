"""Reading the settings: the file, the environment over it, and sentences instead of tracebacks."""

import os
from pathlib import Path

import pytest

from proxy.settings import Settings
from proxy.settings_source import LoadedSettings, SettingsError, load_settings

DESIGN = """
[server]
host = "127.0.0.1"
port = 8080

[store]
url = "sqlite:///tidegate.db"

[upstreams.default]
base_url = "https://api.openai.com/v1"

[[models]]
match = "qwen3-*"
upstream = "default"
context_window = 32768
max_output_tokens = 4096
headroom_tokens = "auto"

[compaction]
enabled = true
trigger_percent = 80
headroom_tokens = 65536
retain_percent = 16
retries = 1
max_overflow_replays = 1
fallback = "digest"
summary_max_tokens = 8192
summary_timeout_seconds = 120
summarizers = [{ upstream = "default", model = "gpt-5-mini" }]
trigger = [{ type = "messages", value = 400 }]
"""


@pytest.fixture(autouse=True)
def empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory and an environment that say nothing."""
    for name in [name for name in os.environ if name.upper().startswith("TIDEGATE")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str) -> LoadedSettings:
    Path("some.toml").write_text(text, encoding="utf-8")
    return load_settings(Path("some.toml"))


def complaints(text: str = "") -> str:
    with pytest.raises(SettingsError) as raised:
        load(text)
    return "\n".join(raised.value.problems)


def test_the_file_of_the_design_loads() -> None:
    settings = load(DESIGN).settings
    assert settings.upstreams["default"].base_url == "https://api.openai.com/v1"
    assert settings.models[0].headroom_tokens == "auto"
    assert settings.compaction.trigger[0].value == 400


def test_nothing_gives_the_defaults() -> None:
    loaded = load_settings()
    assert loaded.settings == Settings()
    assert loaded.file is None


def test_the_file_in_the_working_directory_is_found() -> None:
    Path("tidegate.toml").write_text("[server]\nport = 9001\n")
    assert load_settings().settings.server.port == 9001


def test_an_upstream_in_the_environment_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_UPSTREAM", "https://api.example.org/v1")
    monkeypatch.setenv("TIDEGATE_API_KEY", "sk-x")
    default = load_settings().settings.upstreams["default"]
    assert default.base_url == "https://api.example.org/v1"
    assert default.api_key is not None
    assert default.api_key.get_secret_value() == "sk-x"


def test_each_layer_covers_the_one_below(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("named.toml").write_text('[server]\nport = 1\nworkers = 2\nlog_level = "error"\n')
    monkeypatch.setenv("TIDEGATE_CONFIG", "named.toml")
    monkeypatch.setenv("TIDEGATE_SERVER__PORT", "2")
    monkeypatch.setenv("TIDEGATE_SERVER__WORKERS", "3")
    loaded = load_settings(overrides={"server": {"port": 4}})
    assert loaded.file == Path("named.toml")
    server = loaded.settings.server
    assert (server.port, server.workers, server.log_level) == (4, 3, "error")


def test_the_environment_reaches_every_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_UPSTREAMS__DEFAULT__BASE_URL", "https://a.example/v1")
    monkeypatch.setenv("TIDEGATE_UPSTREAMS__LOCAL__BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("TIDEGATE_COMPACTION__ENABLED", "false")
    monkeypatch.setenv("TIDEGATE_COMPACTION__HEADROOM_TOKENS", "1000")
    monkeypatch.setenv("TIDEGATE_COMPACTION__TRIGGER", '[{"type": "messages", "value": 5}]')
    monkeypatch.setenv("TIDEGATE_MODELS", '[{"match": "q*", "upstream": "local"}]')
    settings = load_settings().settings
    assert settings.upstream_for("q") == "local"
    assert not settings.compaction.enabled
    assert settings.compaction.headroom_tokens == 1000
    assert settings.compaction.trigger[0].type == "messages"


@pytest.mark.parametrize("written", ["a,b", " a , b ", '["a", "b"]'])
def test_client_keys_may_be_words(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setenv("TIDEGATE_SERVER__CLIENT_KEYS", written)
    keys = load_settings().settings.server.client_keys
    assert [key.get_secret_value() for key in keys] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[server]\nprt = 1", "some.toml: server.prt: no such setting; did you mean server.port?"),
        ("port = 1", "some.toml: port: no such setting; did you mean server.port?"),
        ("[sever]", "some.toml: sever: no such setting; did you mean server?"),
        ("_env_file = 1", "some.toml: _env_file: no such setting"),
        ("server = 1", "some.toml: server: must be a table of settings"),
        (
            "[compaction]\nsummarizers = ['gpt-5-mini']",
            'summarizers[0]: must be a table of settings, such as { model = "gpt-5-mini" }',
        ),
        ("a = [", "some.toml: is not valid TOML"),
        ("[server]\nport = 'x'", "some.toml: server.port: should be a valid integer"),
        (
            "[[models]]\nmatch = 'a'\ncontext_windw = 5",
            "some.toml: models[0].context_windw: no such setting; "
            "did you mean models[].context_window?",
        ),
        (
            "[upstreams.big]\nbase_ur = 'https://x'",
            "upstreams.big.base_ur: no such setting; did you mean upstreams.<name>.base_url?",
        ),
        (
            "[upstreams.default]\napi_key = 'x'",
            "base_url: must be given (or set TIDEGATE_UPSTREAM)",
        ),
        ("[[models]]\nmatch = 'a'\nupstream = 'b'", "models[0] names upstream 'b'"),
    ],
)
def test_mistakes_in_the_file_are_sentences(text: str, sentence: str) -> None:
    assert sentence in complaints(text)


def test_every_mistake_is_named_at_once() -> None:
    said = complaints("[server]\nport = 'x'\nprt = 1\n[store]\nurls = ''")
    assert len(said.splitlines()) == 3


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("TIDEGATE_UPSTREM", "x", "did you mean TIDEGATE_UPSTREAM?"),
        ("TIDEGATE_SERVER__PRT", "1", "did you mean TIDEGATE_SERVER__PORT?"),
        ("TIDEGATE_PORT", "1", "did you mean TIDEGATE_SERVER__PORT?"),
        ("TIDEGATE_ZZZZZZ", "1", "TIDEGATE_ZZZZZZ: no such setting"),
        ("TIDEGATE_SERVER__PORT", "x", "TIDEGATE_SERVER__PORT: should be a valid integer"),
        ("TIDEGATE_MODELS__0__MATCH", "x", "JSON array"),
        ("TIDEGATE_UPSTREAMS__DEFAULT", "x", "add __BASE_URL"),
        ("TIDEGATE_UPSTREAMS__DEFAULT__URL", "x", "no such setting"),
        ("TIDEGATE_COMPACTION__TRIGGER", "messages", "TIDEGATE_COMPACTION__TRIGGER: must be JSON"),
        (
            "TIDEGATE_COMPACTION__SUMMARIZERS",
            "gpt-5-mini",
            'TIDEGATE_COMPACTION__SUMMARIZERS: must be JSON, such as [{"model": "gpt-5-mini"}]',
        ),
        ("TIDEGATE_UPSTREAM", "api.openai.com", "TIDEGATE_UPSTREAM: must be an http://"),
        (
            "TIDEGATE_UPSTREAMS__DEFAULT__BASE_URL",
            "api.openai.com",
            "TIDEGATE_UPSTREAMS__DEFAULT__BASE_URL: must be an http://",
        ),
        ("TIDEGATE_CONFIG", "absent.toml", "absent.toml: there is no such file"),
    ],
)
def test_mistakes_in_the_environment_are_sentences(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as raised:
        load_settings()
    assert sentence in str(raised.value)


def test_a_shorthand_that_contradicts_its_long_name_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIDEGATE_UPSTREAM", "https://a.example")
    monkeypatch.setenv("TIDEGATE_UPSTREAMS__DEFAULT__BASE_URL", "https://b.example")
    with pytest.raises(SettingsError, match="say different things"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("TIDEGATE_UPSTREAMS", "[]", "should be a table"),
        ("TIDEGATE_UPSTREAMS", '{"default": 5}', "must be a table"),
        ("TIDEGATE_MODELS", "5", "should be a list"),
        ("TIDEGATE_SERVER", "5", "must be a table"),
        ("TIDEGATE_SERVER", "[5", "must be JSON"),
    ],
)
def test_a_whole_section_in_a_variable_is_checked_like_any_other(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv("TIDEGATE_UPSTREAM", "https://a.example")
    monkeypatch.setenv("TIDEGATE_SERVER__PORT", "1")
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=sentence):
        load_settings()


def test_an_empty_variable_is_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIDEGATE_UPSTREAM", "TIDEGATE_SERVER__CLIENT_KEYS", "TIDEGATE_CONFIG"):
        monkeypatch.setenv(name, "")
    assert load_settings().settings == Settings()


def test_what_kubernetes_sets_beside_a_service_is_not_taken_for_a_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT_8080_TCP_ADDR"):
        monkeypatch.setenv(f"TIDEGATE_{name}", "10.0.0.1")
    monkeypatch.setenv("TIDEGATE_PORT", "tcp://10.0.0.1:8080")
    assert load_settings().settings == Settings()


def test_no_sentence_repeats_a_value() -> None:
    said = complaints(
        "[upstreams.default]\nbase_url = 'sk-secret'\napi_key = 5\n"
        "[server]\nclient_keys = 'sk-secret'\nadmin_key = ['sk-secret']\nport = 'sk-secret'\n"
        "[store]\nurl = ['sk-secret']\n[compaction]\nfallback = 'sk-secret'\n"
        "headroom_tokens = 'sk-secret'\nkeep = { type = 'sk-secret', value = 'sk-secret' }"
    )
    assert "secret" not in said


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[server\n"])
def test_a_file_that_is_no_toml_is_a_sentence(content: bytes) -> None:
    Path("bad.toml").write_bytes(content)
    with pytest.raises(SettingsError, match=r"bad\.toml: is not"):
        load_settings(Path("bad.toml"))


def test_a_directory_is_no_file() -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(Path())
