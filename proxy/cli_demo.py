"""`tidegate demo`: a long session played through the proxy, turn by turn, and what it saved.

Offline and without a key: the provider is the practice provider. Exits 0 when every turn was
answered.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from proxy.demo import PlayedTurn, Saved

NOT_ANSWERED = 1

# Heading, width, to the right. Together with the gaps it fits into 80 columns.
_COLUMNS = (
    ("turn", 4, True),
    ("what the client adds", 24, False),
    ("sent", 7, True),
    ("forwarded", 9, True),
    ("gen", 3, True),
    ("action", 15, False),
    ("ms", 5, True),
)


def demo(
    overflow: Annotated[
        bool,
        typer.Option(
            "--overflow",
            help="Tell nobody the window: it is learned when the provider refuses a request.",
        ),
    ] = False,
) -> None:
    """Play a long scripted session through the proxy, offline, and show what it saves."""
    import logging

    import httpx
    from rich.console import Console

    from proxy.demo import play, saved
    from proxy.loopback import NotServing

    # The table is the output; warnings that it shows anyway would tear it.
    logging.basicConfig(level=logging.ERROR)
    console = Console(highlight=False)
    _print_opening(console, overflow)
    turns: list[PlayedTurn] = []
    console.print(_row([heading for heading, _, _ in _COLUMNS], style="bold"))
    try:
        for turn in play(window_known=not overflow):
            turns.append(turn)
            console.print(_row(_cells(turn)))
    except (NotServing, httpx.HTTPError) as error:
        console.print(f"the play broke off: {type(error).__name__}: {error}", markup=False)
        raise typer.Exit(NOT_ANSWERED) from None
    _print_saved(console, saved(turns))
    if not all(turn.answered for turn in turns):
        console.print(f"turn {turns[-1].number} was not answered: status {turns[-1].status}")
        raise typer.Exit(NOT_ANSWERED)


def _print_opening(console: "Console", overflow: bool) -> None:
    from proxy.practice import WINDOW_TOKENS

    known = "nobody told Tidegate so, it has to find out" if overflow else "Tidegate is told so"
    console.print(
        f"A client, Tidegate and the practice provider, on this machine. The model holds "
        f"{WINDOW_TOKENS:,} tokens; {known}.\n"
    )


def _cells(turn: "PlayedTurn") -> list[str]:
    return [
        str(turn.number),
        turn.title,
        f"{turn.client_tokens:,}",
        f"{turn.forwarded_tokens:,}",
        turn.generation,
        "" if turn.action == "none" else turn.action.replace(",", ", "),
        f"{turn.milliseconds:.0f}",
    ]


def _row(cells: Sequence[str], style: str = "") -> "Table":
    """One line of the table; each is printed when it is there, on any kind of output."""
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for _, width, right in _COLUMNS:
        table.add_column(width=width, justify="right" if right else "left", style=style)
    table.add_row(*cells)
    return table


def _print_saved(console: "Console", result: "Saved") -> None:
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in _rows_of(result):
        table.add_row(name, text)
    console.print()
    console.print(table)
    if result.last_answer:
        console.print("\nThe last answer, to a question about the first message:", style="bold")
        console.print(result.last_answer, markup=False)


def _rows_of(result: "Saved") -> Iterator[tuple[str, str]]:
    """What the summary says: a name and a sentence each."""
    from proxy.practice import WINDOW_TOKENS

    sent = max(1, result.client_tokens)
    summaries = result.summary_prompt_tokens + result.summary_completion_tokens
    yield "turns answered", f"{result.answered} of {result.turns}"
    yield (
        "tokens sent",
        f"{result.client_tokens:,} by the client, at most {result.largest_client_tokens:,} at once",
    )
    yield (
        "tokens forwarded",
        f"{result.forwarded_tokens:,}, at most {result.largest_forwarded_tokens:,} at once: "
        f"{1 - result.forwarded_tokens / sent:.0%} fewer",
    )
    yield (
        "summary calls",
        f"{result.summary_calls}: {result.summary_prompt_tokens:,} tokens in, "
        f"{result.summary_completion_tokens:,} out; with them "
        f"{1 - (result.forwarded_tokens + summaries) / sent:.0%} fewer tokens",
    )
    yield (
        "prefix kept",
        f"{result.kept_share:.0%} of what was forwarded begins like the request before it, which "
        "is what a provider's prompt cache can use",
    )
    if len(result.windows) > 1:
        yield "window, as known", ", then ".join(result.windows)
    yield (
        "refusals",
        f"{result.refused_calls} by the provider, {result.turns - result.answered} of them passed "
        "on to the client",
    )
    yield (
        "without Tidegate",
        f"{result.over_window} of {result.turns} turns do not fit into the window of "
        f"{WINDOW_TOKENS:,} tokens and would have been refused",
    )
