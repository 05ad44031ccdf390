"""Events hold counts, kinds and ids, and every way out of a compaction has its end."""

from dataclasses import replace
from pathlib import Path

import pytest

from proxy.core.compaction import Cause, Reason
from proxy.core.replacements import Replacement, ReplacementKind
from proxy.core.summary_tasks import CallRecord, SummaryMode, SummaryOutcome
from proxy.events import EventLog
from proxy.metrics import Metrics
from proxy.store.store import Event, EventKind
from proxy.turn import Turn
from tests.proxied import talk
from tests.turns import Bench, bench, plan_until


async def priced(made: Bench) -> Turn:
    turn = await made.surfaces.price(await made.turn(talk(3, 50, "SECRET")))
    return turn.having(conversation="c1")


def call(failure: str | None) -> CallRecord:
    return CallRecord(
        upstream="default",
        model="gpt-4o",
        mode=SummaryMode.REPLAY,
        prompt_tokens=700,
        seconds=0.12345,
        status=200,
        failure=failure,
        completion_tokens=50,
    )


def recorded(metrics: Metrics | None = None) -> tuple[EventLog, list[Event], Metrics]:
    told: list[Event] = []
    metrics = metrics or Metrics()
    return EventLog(told.append, metrics, clock=lambda: 1000.0), told, metrics


async def test_a_success_is_start_summary_replacement_end(tmp_path: Path) -> None:
    events, told, metrics = recorded()
    async with bench(tmp_path) as made:
        turn = await priced(made)
    plan = plan_until(turn, 4)
    row = Replacement("r1", 1, ReplacementKind.SUMMARY, 0, 4, turn.chain[3], {"summary": "SECRET"})
    events.started(turn, Cause.PRESSURE, plan)
    events.summarised(turn, SummaryOutcome("SECRET", None, (call(None),)))
    events.replaced(turn, turn, [row])
    events.ended(turn, Cause.PRESSURE, plan, None)
    assert [event.kind for event in told] == [
        EventKind.COMPACTION_START,
        EventKind.SUMMARY,
        EventKind.REPLACEMENT,
        EventKind.COMPACTION_END,
    ]
    assert {(e.tenant, e.conversation, e.time) for e in told} == {("tenant-a", "c1", 1000.0)}
    assert "SECRET" not in repr(told)
    assert told[1].data["accepted"] is True
    assert told[1].data["calls"][0]["seconds"] == 0.123
    assert told[2].data["checkpoint_id"] == "r1"
    assert "error" not in told[3].data
    text = metrics.exposition().decode()
    assert 'tidegate_compactions_total{cause="pressure",outcome="landed"} 1.0' in text
    assert 'tidegate_summary_calls_total{outcome="accepted"} 1.0' in text


async def test_a_failure_names_its_error(tmp_path: Path) -> None:
    events, told, _ = recorded()
    async with bench(tmp_path) as made:
        turn = await priced(made)
    events.summarised(turn, SummaryOutcome(None, Reason.SUMMARY_TIMEOUT, (call("timeout"),)))
    events.ended(turn, Cause.OVERFLOW, plan_until(turn, 4), "timeout")
    assert told[0].data["accepted"] is False
    assert told[0].data["reason"] == "summary-timeout"
    assert told[1].data["error"] == "timeout"


async def test_instructions_that_were_left_out_are_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events, told, _ = recorded()
    async with bench(tmp_path) as made:
        turn = await priced(made)
    events.started(turn, Cause.PRESSURE, replace(plan_until(turn, 4), dropped_instructions=2))
    assert [event.kind for event in told] == [EventKind.COMPACTION_START, EventKind.WARNING]
    assert told[1].data["messages"] == 2
    assert "instructions_over_cap" in caplog.text
    assert "SECRET" not in caplog.text


async def test_edits_have_kinds_of_their_own_and_backoffs_are_not_told(tmp_path: Path) -> None:
    events, told, metrics = recorded()
    async with bench(tmp_path) as made:
        turn = await priced(made)
    kinds = (ReplacementKind.PRUNE, ReplacementKind.OFFLOAD, ReplacementKind.DIGEST)
    rows = [
        Replacement(f"r{n}", n, kind, n, n + 1, turn.chain[n], {"parts": [{}, {}]})
        for n, kind in enumerate((*kinds, ReplacementKind.BACKOFF))
    ]
    unstored = replace(rows[0], id="")
    events.replaced(turn, turn, [*rows, unstored])
    assert [event.kind for event in told] == [
        EventKind.PRUNE,
        EventKind.OFFLOAD,
        EventKind.REPLACEMENT,
    ]
    assert "tidegate_offloaded_images_total 2.0" in metrics.exposition().decode()
