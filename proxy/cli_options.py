"""What the commands share: the --config option, and settings or a clean exit."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from proxy.settings_source import LoadedSettings

# The shell's convention for wrong usage; click uses it for wrong options too.
UNUSABLE = 2

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The settings file. [default: $TIDEGATE_CONFIG, else ./tidegate.toml if it is there]",
        show_default=False,
    ),
]


def settings_or_exit(
    config: Path | None, overrides: Mapping[str, Any] | None = None
) -> "LoadedSettings":
    """The settings; or every mistake in a line of its own on standard error, and exit code 2."""
    from proxy.settings_source import SettingsError, load_settings

    try:
        return load_settings(config, overrides=overrides)
    except SettingsError as error:
        typer.echo("tidegate: the settings cannot be used:", err=True)
        for problem in error.problems:
            typer.echo(f"  {problem}", err=True)
        raise typer.Exit(UNUSABLE) from None
