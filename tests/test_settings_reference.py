"""The reference: every setting is a row, and `config/tidegate.toml` holds each with its default."""

import re
import tomllib
from pathlib import Path

import pytest

from proxy.settings import Settings
from proxy.settings_reference import (
    SECTIONS,
    Setting,
    all_settings,
    markdown_table,
    nearest,
    settings_of,
    toml_value,
    variable_of,
)

CONFIG = Path(__file__).parent.parent / "config"


def test_the_sections_are_those_of_the_settings() -> None:
    tops = [re.split(r"[.\[]", section)[0] for section in SECTIONS]
    assert sorted(tops) == sorted(Settings.model_fields)


def test_every_setting_says_in_a_line_what_it_does() -> None:
    for setting in all_settings():
        assert 0 < len(setting.description) <= 100, setting.path
        assert "\n" not in setting.description


def _blocks() -> dict[str, str]:
    """The text under each header of the file, commented headers included."""
    found: dict[str, str] = {}
    section = ""
    for line in (CONFIG / "tidegate.toml").read_text(encoding="utf-8").splitlines():
        header = re.fullmatch(r"(?:# )?(\[[^\]=]+\]\]?)", line)
        if header:
            section = header[1].strip("[]").replace("upstreams.default", "upstreams.<name>")
            section = "models[]" if section == "models" else section
        found[section] = found.get(section, "") + line + "\n"
    return found


@pytest.mark.parametrize("setting", all_settings(), ids=lambda s: s.path)
def test_the_shipped_file_holds_the_setting_its_default_and_one_comment(setting: Setting) -> None:
    pattern = rf"^# .+\n(# )?{re.escape(setting.name)} = (.+)$"
    found = re.search(pattern, _blocks()[setting.section], re.MULTILINE)
    assert found, f"{setting.path} is not in config/tidegate.toml under a comment line"
    if setting.default_text:
        assert found[2] == setting.default_text
    else:
        assert found[1], "a setting without a default is shown in a comment"


def test_the_shipped_file_changes_nothing() -> None:
    values = tomllib.loads((CONFIG / "tidegate.toml").read_text(encoding="utf-8"))
    assert Settings(**values) == Settings()


@pytest.mark.parametrize("example", sorted((CONFIG / "examples").glob("*.toml")), ids=str)
def test_every_example_loads(example: Path) -> None:
    assert Settings(**tomllib.loads(example.read_text(encoding="utf-8"))).upstreams


def test_the_table_has_a_row_for_every_setting() -> None:
    rows = markdown_table().splitlines()
    assert len(rows) == 2 + len(all_settings())
    assert "| `server.port` | `8080` | port to listen on; 0 takes a free one |" in rows
    assert any(row.startswith("| `models[].match` | required |") for row in rows)


def test_own_settings_come_before_shared_ones() -> None:
    assert next(settings_of("compaction")).name == "enabled"
    assert next(settings_of("models[]")).name == "match"


def test_defaults_are_written_as_toml() -> None:
    assert [toml_value(v) for v in (True, 10.0, 0.5, "a", ())] == ["true", "10", "0.5", '"a"', "[]"]


def test_every_setting_has_a_variable() -> None:
    assert variable_of("server.port") == "TIDEGATE_SERVER__PORT"
    assert variable_of("upstreams.<name>.api_key", "x") == "TIDEGATE_UPSTREAMS__X__API_KEY"
    assert variable_of("models[].match") == "TIDEGATE_MODELS"


def test_nothing_is_near_to_nonsense() -> None:
    assert nearest("zzzzzz") == ""
