"""Tidegate beside other proxies, in one run on one machine.

    python -m tests.benchmarks.install            # LiteLLM, context-guardian, headroom; once
    python -m tests.benchmarks [--quick] [--rounds N] [--only NAME ...] [--work TEXT ...]

The load and the provider run on the first core, whatever is measured on the second (`tidegate x2`
on both). Rounds are interleaved: each piece of work is done by one target after the other, and
those that are not being measured are stopped. Figures are medians of the rounds. Linux, two cores
or more.
"""

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.measure import (
    EARLY_TURN,
    LATE_TURN,
    SETTLE_SECONDS,
    WORKS,
    Side,
    Work,
    first_answer_seconds,
    parsing_seconds,
    sample,
    tokenising_seconds,
)
from tests.benchmarks.processes import Measured, free_port, running, wait_for_port
from tests.benchmarks.report import Results, tables
from tests.benchmarks.targets import TARGETS, Launch, NotHere, Target

START_SECONDS = 120.0
LOAD_CORE, TARGET_CORE = 0, 1
ROUNDS, QUICK_ROUNDS = 5, 2


class Bench:
    """The provider, the targets that are running, and what was measured so far."""

    def __init__(self, folder: Path, *, share: float) -> None:
        """`share` of the full number of requests is made."""
        self.results = Results()
        self._folder = folder
        self._share = share
        self._running: dict[Target, tuple[int, Measured | None]] = {}
        self._seed = int(time.time()) % 1_000_000 * 1000

    @contextlib.contextmanager
    def open(self, targets: Sequence[Target]) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            port = free_port()
            folder = self._folder / "provider"
            folder.mkdir()
            command = (sys.executable, "-m", "tests.benchmarks.provider", str(port), str(LOAD_CORE))
            provider = Measured(command, cores={LOAD_CORE}, environment={}, folder=folder)
            stack.enter_context(running(provider))
            wait_for_port(port, provider, START_SECONDS)
            for target in targets:
                if target.launch is None:
                    self._running[target] = port, None
                    continue
                try:
                    self._start(target, f"http://127.0.0.1:{port}", stack)
                except NotHere as error:
                    self.results.skipped[target.name] = str(error)
                except RuntimeError as error:
                    said = self._last_words(target)
                    self.results.skipped[target.name] = f"{error}: {said}" if said else str(error)
            yield

    def _start(self, target: Target, upstream: str, stack: contextlib.ExitStack) -> None:
        """Starts it three times where that takes no minute; the median counts."""
        assert target.launch is not None
        times: list[float] = []
        starts = 1 if target.slow or self._share < 0.1 else 3
        for attempt in range(starts):
            folder = self._folder / f"{target.name.replace(' ', '-')}-{attempt}"
            folder.mkdir()
            port = free_port()
            process = _started(target.launch(port, upstream, folder), folder)
            with contextlib.ExitStack() as started:
                started.enter_context(running(process))
                times.append(first_answer_seconds(port, process, START_SECONDS))
                if attempt + 1 == starts:
                    stack.enter_context(started.pop_all())
        process.settle(SETTLE_SECONDS)
        process.pause()
        self._running[target] = port, process
        self.results.start_seconds[target.name] = statistics.median(times)

    def _last_words(self, target: Target) -> str:
        """The last line that any of its starts wrote."""
        files = sorted(self._folder.glob(f"{target.name.replace(' ', '-')}-?/output.txt"))
        lines = [line for f in files for line in f.read_text(errors="replace").splitlines()]
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")

    def round(self, works: Sequence[Work]) -> None:
        """Each piece of work by every target in turn: a machine that is faster now and slower in a
        minute, as virtual ones are, is so for all of them."""
        for piece in works:
            for target, (port, process) in self._running.items():
                if process is not None:
                    process.resume()
                self._measure(piece, target, port, process)
                if process is not None:
                    self.results.memory_bytes[target.name] = process.memory_bytes()
                    process.pause()

    def _measure(self, piece: Work, target: Target, port: int, process: Measured | None) -> None:
        full = (piece.slow_requests or piece.requests // 5) if target.slow else piece.requests
        self._seed += 1
        try:
            found = sample(
                piece,
                Side(port, process),
                seed=self._seed,
                requests=max(1, int(full * self._share)),
            )
        except (OSError, TimeoutError) as error:
            self.results.skipped[f"{target.name}: {piece.name}"] = (
                f"{type(error).__name__}: {error}"
            )
            return
        self.results.samples.setdefault((target.name, piece.name), []).append(found)


def _started(launch: Launch, folder: Path) -> Measured:
    cores = {TARGET_CORE} if launch.cores == 1 else {LOAD_CORE, TARGET_CORE}
    return Measured(launch.command, cores=cores, environment=launch.environment, folder=folder)


def main(arguments: Sequence[str]) -> Results:
    """Measures, prints, and gives back what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("--quick", action="store_true", help="two rounds of a fifth each")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--share", type=float, default=None, help="of the requests of a full round")
    parser.add_argument("--only", nargs="+", choices=[t.name for t in TARGETS], metavar="NAME")
    parser.add_argument("--work", nargs="+", default=[""], help="beginnings of names of work")
    chosen = parser.parse_args(arguments)
    targets = [t for t in TARGETS if not chosen.only or t.name in chosen.only]
    works = [w for w in WORKS if w.name.startswith(tuple(chosen.work))]
    rounds = chosen.rounds or (QUICK_ROUNDS if chosen.quick else ROUNDS)
    share = chosen.share or (0.2 if chosen.quick else 1.0)
    os.sched_setaffinity(0, {LOAD_CORE})
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        bench = Bench(Path(name), share=share)
        with bench.open(targets):
            for number in range(rounds):
                print(f"round {number + 1} of {rounds}", file=sys.stderr)
                bench.round(works)
                bench.results.tokenising.append(tokenising_seconds(number))
        bench.results.parsing_seconds = {t: parsing_seconds(t) for t in (EARLY_TURN, LATE_TURN)}
    print(tables(bench.results))
    return bench.results


if __name__ == "__main__":
    main(sys.argv[1:])
