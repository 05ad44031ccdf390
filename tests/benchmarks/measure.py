"""One measurement: a piece of work against one target, with the CPU time that the target took."""

import hashlib
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import tiktoken
import uvloop

from proxy import vocabulary
from tests.benchmarks import load, work
from tests.benchmarks.processes import Measured

EARLY_TURN, LATE_TURN, TURNS_MEASURED = 10, 200, 10
SETTLE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One round. `cpu_seconds` is per request and 0 for `direct`, whose CPU is the provider's."""

    requests_per_second: float
    p50_seconds: float
    cpu_seconds: float
    failed: int
    gap_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Side:
    """Whom the load goes to: a port, and the process behind it unless it is the provider's own."""

    port: int
    process: Measured | None

    def asked(self, bodies: Iterator[bytes], connections: int, requests: int) -> load.Figures:
        """The figures of so many requests. Their CPU time includes what the target does of them
        after the last answer, such as writing its log; nothing of what it was asked before."""
        self.settle()
        before = self._cpu_seconds()
        figures = uvloop.run(
            load.run(self.port, bodies, connections=connections, requests=requests)
        )
        self.settle()
        figures.cpu_seconds = self._cpu_seconds() - before
        return figures

    def settle(self) -> None:
        """Returns when the target is done with what it was asked before."""
        if self.process is not None:
            self.process.settle(SETTLE_SECONDS)

    def _cpu_seconds(self) -> float:
        return self.process.cpu_seconds() if self.process is not None else 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """`run` gets a side, a number that no other round has, and how many requests to make."""

    name: str
    run: Callable[[Side, int, int], load.Figures]
    requests: int
    shows_rate: bool = False
    slow_requests: int = 0  # for the targets that are slow; 0: a fifth


def _small(connections: int) -> Callable[[Side, int, int], load.Figures]:
    return lambda side, seed, n: side.asked(work.small(seed), connections, n)


def _streams(connections: int) -> Callable[[Side, int, int], load.Figures]:
    return lambda side, seed, n: side.asked(work.small(seed, stream=True), connections, n)


def _never_seen(connections: int) -> Callable[[Side, int, int], load.Figures]:
    def run(side: Side, seed: int, requests: int) -> load.Figures:
        bodies = list(itertools.islice(work.never_seen(seed), requests))
        return side.asked(iter(bodies), connections, requests)

    return run


def _again(side: Side, seed: int, requests: int) -> load.Figures:
    """The same long request over and over; the first time is not measured."""
    bodies = itertools.repeat(next(work.never_seen(seed)))
    side.asked(bodies, 1, 1)
    return side.asked(bodies, 1, requests)


def _turns(last_turn: int) -> Callable[[Side, int, int], load.Figures]:
    """The turns up to the last one of conversations that grow; one earlier turn is not measured."""

    def run(side: Side, seed: int, requests: int) -> load.Figures:
        total = load.Figures()
        for number in range(max(1, requests // TURNS_MEASURED)):
            first = last_turn - TURNS_MEASURED
            turns = list(
                work.conversation(
                    seed * 1000 + number, from_turn=first, to_turn=last_turn, turns=LATE_TURN
                )
            )
            side.asked(iter(turns), 1, 1)
            total.take(side.asked(iter(turns[1:]), 1, len(turns) - 1))
        return total

    return run


def _gap(side: Side, seed: int, requests: int) -> load.Figures:
    """How long a paced stream stood still while a long request, never seen, was answered."""
    figures = load.Figures(seconds=1.0, latencies=[0.0])
    paced = work.small(seed, stream=True, model="paced")
    for disturbing in itertools.islice(work.never_seen(seed), requests):
        side.settle()
        gap = uvloop.run(load.gap_beside(side.port, next(paced), disturbing))
        figures.largest_gap_seconds = max(figures.largest_gap_seconds, gap)
    return figures


WORKS = (
    Work("small, 1 connection", _small(1), 300),
    Work("small, 16 connections", _small(16), 2000, shows_rate=True),
    Work("small, 64 connections", _small(64), 2000, shows_rate=True),
    Work(f"turn {EARLY_TURN}", _turns(EARLY_TURN), 30, slow_requests=10),
    Work(f"turn {LATE_TURN}", _turns(LATE_TURN), 30, slow_requests=10),
    Work("long again", _again, 30),
    Work("never seen", _never_seen(1), 8, slow_requests=4),
    Work("never seen, 8 connections", _never_seen(8), 32, shows_rate=True, slow_requests=8),
    Work("streams, 1 connection", _streams(1), 100),
    Work("streams, 64 at once", _streams(64), 640, shows_rate=True, slow_requests=128),
    Work("gap of a stream", _gap, 4, slow_requests=2),
)


def sample(piece: Work, side: Side, *, seed: int, requests: int) -> Sample:
    """Runs it once."""
    figures = piece.run(side, seed, requests)
    done = len(figures.latencies)
    return Sample(
        requests_per_second=done / figures.seconds,
        p50_seconds=statistics.median(figures.latencies),
        cpu_seconds=figures.cpu_seconds / max(done, 1),
        failed=figures.failed,
        gap_seconds=figures.largest_gap_seconds,
    )


def tokenising_seconds(seed: int) -> float:
    """What tiktoken alone takes for a long request that was never seen: the texts, one by one."""
    encoding: tiktoken.Encoding = vocabulary.encoding_for("bench")
    request = json.loads(next(work.never_seen(seed)))
    texts = [m["content"] for m in request["messages"] if m["content"]]
    for message in request["messages"]:
        texts += [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    started = time.perf_counter()
    for text in texts:
        encoding.encode_ordinary(text)
    return time.perf_counter() - started


def parsing_seconds(turn: int) -> float:
    """What reading the JSON of that turn of a conversation takes, with the reader that is used."""
    import msgspec

    *_, body = work.conversation(1, from_turn=turn, to_turn=turn, turns=LATE_TURN)
    started = time.perf_counter()
    for _ in range(10):
        msgspec.json.decode(body)
    return (time.perf_counter() - started) / 10


def first_answer_seconds(port: int, process: Measured, seconds: float) -> float:
    """From now until a chat was answered with 200.

    Raises: RuntimeError, when it ended or did not answer in time.
    """
    started = time.perf_counter()
    body = next(work.small(int(hashlib.sha256(str(port).encode()).hexdigest()[:6], 16)))
    while True:
        try:
            figures = uvloop.run(load.run(port, itertools.repeat(body), connections=1, requests=1))
            if not figures.failed:
                return time.perf_counter() - started
        except OSError:
            pass
        if not process.alive or time.perf_counter() - started > seconds:
            raise RuntimeError("it ended before it answered" if not process.alive else "no answer")
        time.sleep(0.01)
