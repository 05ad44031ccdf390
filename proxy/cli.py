"""The command line: `tidegate serve`, `tidegate check`, ...; each command in a module of its own.

A command's module imports what it needs when it runs, so that `--help` is there at once.
"""

from typing import Annotated

import typer

from proxy.cli_check import check
from proxy.cli_compact import compact
from proxy.cli_demo import demo
from proxy.cli_meter import meter
from proxy.cli_serve import serve

app = typer.Typer(
    name="tidegate",
    help="An OpenAI-compatible proxy that keeps long conversations inside the context window.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        from proxy import __version__

        typer.echo(f"tidegate {__version__}")
        raise typer.Exit


@app.callback()
def _tidegate(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version."),
    ] = False,
) -> None:
    pass


app.command()(serve)
app.command()(demo)
app.command()(check)
app.command()(meter)
app.command()(compact)


def main() -> None:
    """The `tidegate` command."""
    app()


if __name__ == "__main__":
    main()
