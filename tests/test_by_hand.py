"""The walk of a compaction by hand, with the summary itself stood in for: what is planned, and what
each outcome is called."""

import tempfile
from pathlib import Path
from typing import Any

import pytest

from proxy.by_hand import ByHand, Compacted, ConversationBusy, SummaryFailed
from proxy.core.compaction import Aim, Cause, RangePlan, Reason
from proxy.core.errors import HistoryChanged, InvalidRequest
from proxy.core.manual import Untouched, read_options
from proxy.range_runs import Allowance, RunChanged, RunFailed, RunLanded, RunResult
from proxy.turn import Turn
from tests.proxied import talk
from tests.turns import bench


class Runs:
    """Stands in for the compactor's run of a range; keeps what it was asked for."""

    def __init__(self, result: RunResult) -> None:
        self.result = result
        self.asked: list[tuple[Aim, RangePlan]] = []

    async def __call__(
        self, turn: Turn, aim: Aim, plan: RangePlan, allowance: Allowance, replan: Any
    ) -> tuple[Turn, RangePlan, RunResult]:
        assert await replan(turn) == plan
        self.asked.append((aim, plan))
        return turn, plan, self.result


LANDED = RunLanded(100, 0, "checkpoint")


async def compacted(result: RunResult, options: Any = None, rounds: int = 6) -> Any:
    runs = Runs(result)
    with tempfile.TemporaryDirectory() as folder:
        async with bench(Path(folder)) as made:
            turn = await made.surfaces.price(await made.turn(talk(rounds, 200)))
            by_hand = ByHand(meter=made.meter, run=runs)
            choice = read_options(options)
            if choice.region is not None:
                return await by_hand.compact_region(turn, choice.region, choice), runs.asked
            return await by_hand.compact_now(turn, choice), runs.asked


async def test_all_but_the_newest_is_planned_and_what_landed_is_told() -> None:
    done, asked = await compacted(LANDED)
    ((aim, plan),) = asked
    assert (aim.cause, aim.retain_tokens) == (Cause.MANUAL, 0)
    assert (plan.start, plan.end) == (0, 12)
    assert isinstance(done, Compacted)
    assert (done.reason, done.checkpoint_id, done.removed) == (None, "checkpoint", 12)
    assert done.after.actions == ("summary",)


async def test_a_region_is_planned_as_it_was_chosen() -> None:
    done, asked = await compacted(LANDED, {"region": {"start": 2, "end": 6}})
    ((_, plan),) = asked
    assert (plan.start, plan.end) == (2, 6)
    assert plan.range_tokens == plan.new_tokens > 800
    assert plan.kept_words.first is None
    assert done.removed == 4


async def test_too_little_or_too_early_is_no_failure() -> None:
    short, asked = await compacted(LANDED, rounds=0)
    assert (short.reason, asked) == (Untouched.NOT_ENOUGH_MESSAGES, [])
    early, asked = await compacted(LANDED, {"force": False})
    assert (early.reason, asked) == (Untouched.BELOW_THRESHOLD, [])


@pytest.mark.parametrize(
    ("result", "error", "code"),
    [
        (RunChanged(busy=True), ConversationBusy, "conversation_busy"),
        (RunChanged(), HistoryChanged, "history_changed"),
        (RunFailed(Reason.SUMMARY_FAILED), SummaryFailed, "summary_failed"),
        (RunFailed(Reason.SUMMARY_TIMEOUT), SummaryFailed, "summary_failed"),
        (RunFailed(Reason.BREAKER_OPEN), SummaryFailed, "summary_failed"),
    ],
)
async def test_every_other_outcome_has_its_code(
    result: RunResult, error: type[Exception], code: str
) -> None:
    with pytest.raises(error) as raised:
        await compacted(result)
    assert raised.value.code == code  # type: ignore[attr-defined]


async def test_a_failure_does_not_blame_the_summariser_for_a_summary_that_is_too_long() -> None:
    with pytest.raises(SummaryFailed, match="would not make the conversation smaller"):
        await compacted(RunFailed(Reason.SUMMARY_FAILED))


async def test_a_busy_one_is_worth_trying_again_in_a_second() -> None:
    busy = ConversationBusy()
    assert (busy.status, busy.headers["retry-after"]) == (409, "1")


async def test_a_bad_region_is_refused_before_anything_runs() -> None:
    with pytest.raises(InvalidRequest):
        await compacted(LANDED, {"region": {"start": 0, "end": 13}})
