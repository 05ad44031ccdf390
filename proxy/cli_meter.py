"""`tidegate meter FILE`: what a saved chat costs, by part. Reads the file, asks nobody."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxy.core.counting import PRIMING_TOKENS
from proxy.core.messages import head_length, role_of
from proxy.meter import Meter
from proxy.vocabulary import vocabulary_for

if TYPE_CHECKING:
    from rich.table import Table

DEFAULT_MODEL = "gpt-4o"
"""Used when neither the file nor the caller names one: the newer vocabulary, as for any name that
is not known."""

# Numbers that a narrow terminal cuts short are worse than lines that it wraps.
TABLE_CHARS = 120

# Shown only where a chat has some.
_SOMETIMES = frozenset({"calls", "reasoning", "images"})


class NotAChat(Exception):
    """The file does not hold a chat; the message says why."""


@dataclass(slots=True)
class Row:
    """What one part of a request costs."""

    name: str
    messages: int = 0
    content: int = 0
    calls: int = 0
    reasoning: int = 0
    images: int = 0
    marks: int = 0

    @property
    def total(self) -> int:
        """The whole of it."""
        return self.content + self.calls + self.reasoning + self.images + self.marks


@dataclass(frozen=True, slots=True)
class Measured:
    """A chat's parts in the order shown: head, tools and formats, then the history by role."""

    model: str
    rows: tuple[Row, ...]
    total: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(row.total for row in self.rows))


def meter(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="JSON: a chat request, a list of messages, or {'request': ...}."
        ),
    ],
    model: Annotated[
        str | None, typer.Option("--model", help="Count as for this model, not the file's own.")
    ] = None,
) -> None:
    """Show how many tokens a saved chat takes, by part."""
    try:
        request = read_chat(file)
    except NotAChat as error:
        typer.echo(f"tidegate meter: {error}", err=True)
        raise typer.Exit(2) from error
    named = request.get("model")
    chosen = model or (named if isinstance(named, str) and named else DEFAULT_MODEL)
    counts = Meter()
    try:
        measured = measure(request, chosen, counts)
    finally:
        counts.close()
    # Here and in `table`: the other commands, of which one serves, print no tables.
    from rich.console import Console

    console = Console(highlight=False)
    console.width = max(console.width, TABLE_CHARS)
    console.print(table(measured))


def read_chat(file: Path) -> Mapping[str, Any]:
    """The chat request in a file; a bare list of messages becomes one.

    Raises: NotAChat, saying what is wrong with which part of the file.
    """
    try:
        value = json.loads(file.read_bytes())
    except OSError as error:
        raise NotAChat(f"{file}: {error.strerror or error}") from error
    except RecursionError as error:
        raise NotAChat(f"{file}: nested too deeply to be read") from error
    except ValueError as error:
        raise NotAChat(f"{file}: not JSON: {error}") from error
    if isinstance(value, Mapping) and isinstance(value.get("request"), Mapping):
        value = value["request"]
    if isinstance(value, list):
        value = {"messages": value}
    if not isinstance(value, Mapping):
        raise NotAChat(f"{file}: expected a chat request or a list of messages")
    messages = value.get("messages")
    if not isinstance(messages, list):
        raise NotAChat(f"{file}: no list under 'messages'")
    for position, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise NotAChat(f"{file}: messages[{position}] is not an object")
    return value


def measure(request: Mapping[str, Any], model: str, counts: Meter) -> Measured:
    """The cost of each part of a request; together exactly what the proxy counts of it."""
    messages: Sequence[Mapping[str, Any]] = request["messages"]
    head = Row("head")
    extras = Row("tools and formats", content=counts.count_extras(request, model) - PRIMING_TOKENS)
    roles: dict[str, Row] = {}
    in_head = head_length(messages)
    for position, message in enumerate(messages):
        role = role_of(message) or "(no role)"
        row = head if position < in_head else roles.setdefault(role, Row(role))
        parts = counts.count_parts(message, model)
        row.messages += 1
        row.content += parts.content
        row.calls += parts.calls
        row.reasoning += parts.reasoning
        row.images += parts.images
        row.marks += parts.marks
    opening = Row("opening of the reply", marks=PRIMING_TOKENS)
    return Measured(model, (head, extras, *roles.values(), opening))


def table(measured: Measured) -> "Table":
    """What is printed: a row for each part, a column for each kind of content, sums below.

    What no part of the chat holds has no column: most chats then fit into 80 characters.
    """
    from rich.box import SIMPLE
    from rich.table import Table

    vocabulary = vocabulary_for(measured.model).name
    shown = Table(
        title=f"Tokens for {measured.model} ({vocabulary})",
        show_footer=True,
        title_justify="left",
        box=SIMPLE,
    )
    rows = measured.rows
    shown.add_column("part", "total", no_wrap=True)
    columns = [
        name
        for name in ("messages", "content", "calls", "reasoning", "images", "marks", "total")
        if name not in _SOMETIMES or any(getattr(row, name) for row in rows)
    ]
    for name in columns:
        footer = f"{sum(getattr(row, name) for row in rows):,}"
        shown.add_column(name, footer, justify="right", no_wrap=True)
    for row in rows:
        values = (getattr(row, name) for name in columns)
        shown.add_row(row.name, *(f"{value:,}" if value else "" for value in values))
    return shown
