"""`tidegate check`: the effective configuration, and for each model W O B T R and their sources."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxy.cli_options import ConfigOption, settings_or_exit

if TYPE_CHECKING:
    from rich.console import Console

    from proxy.core.limits import ModelLimits
    from proxy.settings import Settings

INVALID_BUDGET = 1
# Numbers that a narrow terminal cuts short are worse than lines that it wraps.
TABLE_CHARS = 120


def check(
    config: ConfigOption = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="NAME", help="Ask about a model; may be repeated."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=0, help="O of a request that asks for so many output tokens."),
    ] = None,
) -> None:
    """Show the effective settings, and per model the budget and where each number came from.

    Exit code 2: the settings cannot be used. 1: a model's budget is invalid. 0: all is well.
    """
    loaded = settings_or_exit(config)
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    console.width = max(console.width, TABLE_CHARS)
    console.print(f"settings file: {loaded.file or 'none'}", markup=False)
    _print_settings(console, loaded.settings)
    raise typer.Exit(_print_models(console, loaded.settings, model or [], max_tokens))


def _print_settings(console: "Console", settings: "Settings") -> None:
    from proxy.core.settings_text import lines_of

    for line in lines_of(settings.model_dump(mode="python")):
        console.print(line, markup=False)
    if not settings.upstreams:
        console.print(
            "\nno upstream is configured, the practice provider stands in: set TIDEGATE_UPSTREAM, "
            "or [upstreams.default]",
            markup=False,
        )


def _print_models(
    console: "Console", settings: "Settings", asked: Iterable[str], max_tokens: int | None
) -> int:
    from proxy.core.limits import describe

    rows = []
    for name, limits in _models(settings, asked):
        output = limits.output_reserve({"max_tokens": max_tokens})
        rows.append((name, settings.upstream_for(name), describe(limits, output)))
    if not rows:
        console.print("\nno model is named; ask about one with --model NAME")
        return 0
    console.print()
    console.print(_table(rows))
    for name, _, row in rows:
        if not row["valid"]:
            console.print(f"{name}: {row['problem']}", markup=False)
    console.print(
        "What upstreams list and refusals taught is known to a running proxy: GET /tidegate/models"
    )
    # An unknown window is no mistake: a running proxy asks the upstream, or learns it.
    broken = [row for _, _, row in rows if not row["valid"] and row["window"] is not None]
    return INVALID_BUDGET if broken else 0


def _models(settings: "Settings", asked: Iterable[str]) -> "Iterable[tuple[str, ModelLimits]]":
    from proxy.catalogue import Catalogue
    from proxy.core.limits import resolve

    named = [*asked] or [rule.match for rule in settings.models]
    if not asked:
        chains = [settings.compaction.summarizers, *(rule.summarizers for rule in settings.models)]
        named += [summarizer.model for chain in chains for summarizer in chain]
    catalogue = Catalogue()
    for name in dict.fromkeys(named):
        configured = settings.configured_for(name)
        if configured.window_tokens is None and not catalogue.loaded:
            catalogue.load_now()
        upstream = settings.upstreams.get(settings.upstream_for(name))
        known = catalogue.find(name, upstream.base_url if upstream else "")
        yield name, resolve(configured, learned={}, listed=None, catalogued=known)


def _table(rows: list[tuple[str, str, dict[str, Any]]]) -> Any:
    from rich.table import Table

    table = Table(box=None)
    for heading in ("model", "upstream", "W", "from", "I", "O", "B", "T", "R", ""):
        table.add_column(heading, no_wrap=True)
    for name, upstream, row in rows:
        retain = row["retain"]
        if row["keep_messages"] is not None:
            retain = f"{row['keep_messages']} messages"
        numbers = (row["input_limit"], row["output_reserve"], row["headroom"], row["trigger"])
        table.add_row(
            name,
            upstream,
            _number(row["window"]),
            row["window_source"],
            *(_number(number) for number in numbers),
            _number(retain),
            "valid" if row["valid"] else "invalid" if row["window"] is not None else "unknown",
        )
    return table


def _number(value: object) -> str:
    return "-" if value is None else str(value)
