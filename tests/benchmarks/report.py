"""The figures as markdown: medians over the rounds, and the ratios that were aimed at."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.benchmarks.measure import EARLY_TURN, LATE_TURN, WORKS, Sample, Work

BARE, OURS, DIRECT = "bare httpx-aiohttp", "tidegate", "direct"


@dataclass
class Results:
    """Everything that was measured, by target and work."""

    samples: dict[tuple[str, str], list[Sample]] = field(default_factory=dict)
    memory_bytes: dict[str, int] = field(default_factory=dict)
    start_seconds: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    tokenising: list[float] = field(default_factory=list)
    parsing_seconds: Mapping[int, float] = field(default_factory=dict)

    def median(self, target: str, work: str, of: str) -> float | None:
        found = self.samples.get((target, work))
        return statistics.median(getattr(sample, of) for sample in found) if found else None

    def added(self, target: str, work: str) -> float | None:
        """The p50 over that of the provider directly, in seconds: the median of the rounds'."""
        ours = self.samples.get((target, work))
        direct = self.samples.get((DIRECT, work))
        if not ours or not direct:
            return None
        pairs = zip(ours, direct, strict=False)
        return statistics.median(a.p50_seconds - b.p50_seconds for a, b in pairs)

    @property
    def tokenising_seconds(self) -> float:
        """What tiktoken alone takes for the long request; 0 where it was not measured."""
        return statistics.median(self.tokenising) if self.tokenising else 0.0

    def targets(self) -> list[str]:
        return list(dict.fromkeys(target for target, _ in self.samples))

    def failed(self) -> dict[tuple[str, str], int]:
        counts = {key: sum(s.failed for s in found) for key, found in self.samples.items()}
        return {key: count for key, count in counts.items() if count}


def tables(results: Results) -> str:
    """The figures, the CPU time, the ratios, and what was left out."""
    measured = [w for w in WORKS if any(work == w.name for _, work in results.samples)]
    parts = [
        _table(results, measured),
        "CPU time of the target per request, ms:",
        _cpu_table(results, measured),
        _ratios(results),
        *(f"- {name} was not measured: {why}" for name, why in results.skipped.items()),
        *(f"- {t}, {w}: {n} answers were no 200" for (t, w), n in results.failed().items()),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(results: Results, works: Sequence[Work]) -> str:
    heads = [f"{w.name} ({_unit(w)})" for w in works]
    rows = [
        [target, *(_cell(results, target, w) for w in works), *_process_cells(results, target)]
        for target in results.targets()
    ]
    return _markdown(["", *heads, "memory (MB)", "start (s)"], rows)


def _unit(work: Work) -> str:
    if work.name.startswith("gap"):
        return "ms"
    return "1/s" if work.shows_rate else "added p50, ms"


def _cell(results: Results, target: str, work: Work) -> str:
    if work.name.startswith("gap"):
        return _number(results.median(target, work.name, "gap_seconds"), 1e3, 0)
    if work.shows_rate:
        return _number(results.median(target, work.name, "requests_per_second"), 1, 0)
    if target == DIRECT:
        return f"({_number(results.median(target, work.name, 'p50_seconds'), 1e3, 2)})"
    return _number(results.added(target, work.name), 1e3, 2)


def _process_cells(results: Results, target: str) -> tuple[str, str]:
    return (
        _number(results.memory_bytes.get(target), 1e-6, 0),
        _number(results.start_seconds.get(target), 1, 2),
    )


def _cpu_table(results: Results, works: Sequence[Work]) -> str:
    timed = [w for w in works if not w.name.startswith("gap")]
    rows = [
        [t, *(_number(results.median(t, w.name, "cpu_seconds"), 1e3, 2) for w in timed)]
        for t in results.targets()
        if t != DIRECT
    ]
    return _markdown(["", *(w.name for w in timed)], rows)


def _ratios(results: Results) -> str:
    """Each aim beside what was reached; a row whose other side was not measured is left out."""
    rows = [
        row
        for row in (
            *(
                _rate(results, "small, 16 connections", other, aim)
                for other, aim in (
                    (BARE, 1.0),
                    ("bare httpx", 4),
                    ("context-guardian", 8),
                    ("litellm", 50),
                )
            ),
            _latency(results, "small, 1 connection", BARE, 1.2),
            _latency(results, f"turn {LATE_TURN}", BARE, 1.5),
            _latency(results, f"turn {LATE_TURN}", "context-guardian", 1 / 3),
            _late_over_early(results),
            _over_tokenising(results),
            _gap(results),
            *(
                _rate(results, "streams, 64 at once", other, aim)
                for other, aim in ((BARE, 0.9), ("context-guardian", 5), ("litellm", 30))
            ),
            *(_workers(results, f"{work} connections") for work in ("small, 64", "never seen, 8")),
            *_limits(results),
        )
        if row
    ]
    return _markdown(["tidegate", "aim", "reached", ""], rows)


def _rate(results: Results, work: str, other: str, aim: float) -> list[str] | None:
    ours = results.median(OURS, work, "requests_per_second")
    theirs = results.median(other, work, "requests_per_second")
    if ours is None or not theirs:
        return None
    return _row(
        f"{work}: rate by that of {other}", f">= {aim:g}", ours / theirs, ours / theirs >= aim
    )


def _latency(results: Results, work: str, other: str, aim: float) -> list[str] | None:
    ours, theirs = results.added(OURS, work), results.added(other, work)
    if ours is None or not theirs:
        return None
    return _row(
        f"{work}: added p50 by that of {other}",
        f"<= {aim:.2g}",
        ours / theirs,
        ours / theirs <= aim,
    )


def _late_over_early(results: Results) -> list[str] | None:
    late = results.added(OURS, f"turn {LATE_TURN}")
    early = results.added(OURS, f"turn {EARLY_TURN}")
    if late is None or early is None or not results.parsing_seconds:
        return None
    parsed = results.parsing_seconds
    ratio = (late - parsed[LATE_TURN]) / (early - parsed[EARLY_TURN])
    return _row(
        f"turn {LATE_TURN} by turn {EARLY_TURN}, added p50 less reading the JSON",
        "<= 2",
        ratio,
        ratio <= 2,
    )


def _over_tokenising(results: Results) -> list[str] | None:
    ours = results.added(OURS, "never seen")
    if ours is None or not results.tokenising_seconds:
        return None
    ratio = ours / results.tokenising_seconds
    alone = f"{results.tokenising_seconds * 1e3:.0f} ms"
    return _row(f"never seen: added p50 by tiktoken alone ({alone})", "<= 1.3", ratio, ratio <= 1.3)


def _gap(results: Results) -> list[str] | None:
    gap = results.median(OURS, "gap of a stream", "gap_seconds")
    if gap is None:
        return None
    return _row("largest gap of a stream beside it, ms", "< 50", gap * 1e3, gap < 0.05)


def _workers(results: Results, work: str) -> list[str] | None:
    """The load needs a part of the second core: the cheaper a request, the larger that part."""
    two = results.median("tidegate x2", work, "requests_per_second")
    one = results.median(OURS, work, "requests_per_second")
    if two is None or not one:
        return None
    return _row(f"{work}: two workers by one", ">= 1.7", two / one, two / one >= 1.7)


def _limits(results: Results) -> list[list[str]]:
    rows = []
    if OURS in results.memory_bytes:
        memory = results.memory_bytes[OURS] / 1e6
        rows.append(_row("memory after the load, MB", "<= 130", memory, memory <= 130))
    if OURS in results.start_seconds:
        start = results.start_seconds[OURS]
        rows.append(_row("start to first answer, s", "<= 1.2", start, start <= 1.2))
    return rows


def _row(what: str, aim: str, value: float, reached: bool) -> list[str]:
    return [what, aim, f"{value:.2f}", "" if reached else "not reached"]


def _number(value: float | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{value * factor:,.{digits}f}"


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    rule = ["---", *("---:" for _ in heads[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows))
