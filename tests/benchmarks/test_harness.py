"""The harness itself, with counts too small to mean anything: nothing here depends on time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import install, work
from tests.benchmarks.measure import Sample
from tests.benchmarks.report import DIRECT, OURS, Results, tables

ROOT = Path(__file__).parent.parent.parent

needs_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux") or len(os.sched_getaffinity(0)) < 2,
    reason="reads /proc and pins to two cores",
)


@needs_linux
def test_it_measures_and_prints_tables() -> None:
    command = (sys.executable, "-m", "tests.benchmarks", "--rounds", "1", "--share", "0.01")
    chosen = ("--only", DIRECT, OURS, "--work", "small, 16", "turn 10", "streams, 64", "gap")
    done = subprocess.run(
        (*command, *chosen), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = {line.split(" | ")[0]: line for line in done.stdout.splitlines()}
    assert f"| {OURS}" in rows, done.stdout
    assert "no 200" not in done.stdout
    assert "not measured" not in done.stdout


def test_ratios_are_of_medians_and_a_missed_aim_is_named() -> None:
    results = Results(start_seconds={OURS: 9.0})
    name = "small, 16 connections"
    for rate in (100.0, 300.0, 200.0):
        results.samples.setdefault((OURS, name), []).append(Sample(rate, 0.1, 0.01, 0))
        results.samples.setdefault(("bare httpx", name), []).append(Sample(40.0, 0.1, 0.01, 1))
    shown = tables(results)
    assert "rate by that of bare httpx | >= 4 | 5.00 |  |" in shown
    assert "start to first answer, s | <= 1.2 | 9.00 | not reached |" in shown
    assert f"bare httpx, {name}: 3 answers were no 200" in shown


def test_the_requests_have_the_sizes_that_they_are_named_by() -> None:
    small, long = next(work.small(1)), next(work.never_seen(1))
    *_, late = work.conversation(1, from_turn=199, to_turn=200, turns=200)
    assert len(json.loads(small)["messages"]) == 4
    assert 1_300 < len(small) < 1_700
    assert len(json.loads(long)["messages"]) == 201
    assert 400_000 < len(long) < 460_000
    assert 400_000 < len(late) < 600_000


def test_no_request_is_sent_twice_where_none_should_be() -> None:
    bodies = work.small(1)
    assert next(bodies) != next(bodies)
    first, second = work.never_seen(1), work.never_seen(2)
    one, other = (json.loads(next(bodies))["messages"][1:] for bodies in (first, second))
    assert all(a != b for a, b in zip(one, other, strict=True))


def test_compromised_versions_are_never_installed() -> None:
    pinned = {package.rpartition("==")[2] for package in install.PACKAGES.values()}
    assert {"1.82.7", "1.82.8", "1.107.0"} == install.COMPROMISED
    assert not pinned & install.COMPROMISED
