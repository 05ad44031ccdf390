"""Settings for a command: there, or a clean exit."""

from pathlib import Path

import pytest
import typer

from proxy.cli_options import UNUSABLE, settings_or_exit


def test_settings_are_handed_over(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[server]\nport = 1\n")
    loaded = settings_or_exit(file, {"server": {"workers": 2}})
    assert (loaded.settings.server.port, loaded.settings.server.workers) == (1, 2)


def test_each_mistake_is_a_line_and_the_exit_code_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[server]\nprt = 1\nhst = 2\n")
    with pytest.raises(typer.Exit) as exit:
        settings_or_exit(file)
    assert exit.value.exit_code == UNUSABLE == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert said[1].endswith("server.prt: no such setting; did you mean server.port?")
