"""The decisions between two summary calls."""

from dataclasses import replace

import pytest

from proxy.core.compaction import Reason
from proxy.core.overflow import Refusal, RefusalKind
from proxy.core.summaries import RefusalReason, Refused
from proxy.core.summary_requests import Cap
from proxy.core.summary_tasks import (
    CallRecord,
    Candidate,
    Change,
    SummaryMode,
    SummaryOutcome,
    SummaryReply,
    SummaryTask,
    cap_within,
    change_after,
    modes_for,
    room_within,
    window_after,
)

OWN = Candidate("u", "m", 1000, len, own=True, same_upstream=True)
OTHER = Candidate("u", "n", 1000, len, same_upstream=True)
TASK = SummaryTask(
    tenant="t",
    candidates=[OWN],
    fields={},
    raw_messages=[],
    messages=[{"role": "user", "content": "x"}],
    replay_tokens=0,
    range_tokens=0,
    cap_tokens=0,
)
BOTH = (SummaryMode.REPLAY, SummaryMode.TRANSCRIPT)


@pytest.mark.parametrize(
    ("mode", "candidate", "alternation", "expected"),
    [
        (SummaryMode.AUTO, OWN, False, BOTH),
        (SummaryMode.AUTO, OTHER, False, BOTH[1:]),
        (SummaryMode.AUTO, OWN, True, BOTH[1:]),
        (SummaryMode.REPLAY, OWN, False, BOTH[:1]),
        (SummaryMode.REPLAY, OTHER, False, BOTH[1:]),
        (SummaryMode.TRANSCRIPT, OWN, False, BOTH[1:]),
    ],
)
def test_a_replay_comes_first_where_it_can_be(
    mode: SummaryMode, candidate: Candidate, alternation: bool, expected: tuple[SummaryMode, ...]
) -> None:
    assert modes_for(replace(TASK, mode=mode, role_alternation=alternation), candidate) == expected


def test_a_summariser_gives_at_most_a_quarter_of_its_window() -> None:
    assert cap_within(8192, 4000) == 1000
    assert cap_within(100, 4000) == 100
    assert cap_within(8192, None) == 8192
    assert cap_within(8192, 2) == 1


def test_a_margin_of_the_window_is_left_free() -> None:
    assert room_within(10_000) == 10_000 - 100 - 16
    assert room_within(None) is None


@pytest.mark.parametrize(
    ("stated", "reported", "window", "believed"),
    [
        (None, None, None, 500),
        (None, None, 1200, 500),
        (None, None, 800, 400),
        (700, None, None, 700),
        (700, None, 1000, 700),
        (1000, None, 1000, 500),
        (700, 1800, 1000, 350),
        (700, 100, 1000, 700),
    ],
)
def test_a_window_that_overflowed_is_believed_smaller(
    stated: int | None, reported: int | None, window: int | None, believed: int
) -> None:
    refusal = Refusal(RefusalKind.CONTEXT_OVERFLOW, window_tokens=stated, prompt_tokens=reported)
    assert window_after(refusal, window=window, prompt_tokens=900, cap=100) == believed


NO = Refused(RefusalReason.NO_CHOICES)
ATE = Refused(RefusalReason.CUT_SHORT, reasoning_ate_it=True)
CAP = Cap(100, "max_tokens")


def change(
    verdict: Refused, status: int, body: bytes = b"", kind: RefusalKind = RefusalKind.OTHER
) -> Change | None:
    return change_after(verdict, SummaryReply(status, body), Refusal(kind), CAP, most_tokens=300)


def test_only_a_changed_call_is_made_again() -> None:
    assert change(ATE, 200) == Change("larger-cap", Cap(300, "max_tokens"))
    assert change(Refused(RefusalReason.CUT_SHORT), 200) is None
    assert change(NO, 400, b"bad max_tokens") == Change(
        "cap-name", Cap(100, "max_completion_tokens")
    )
    assert change(NO, 400, b"bad tool_choice") is None
    assert change(NO, 500, b"max_tokens") is None
    assert change(NO, 400, b"max_tokens", RefusalKind.OUTPUT_LIMIT) == Change(
        "smaller-cap", Cap(50, "max_tokens")
    )


def test_no_room_for_a_larger_cap_is_no_change() -> None:
    assert change_after(ATE, SummaryReply(200, b""), None, CAP, most_tokens=100) is None


def record(status: int | None, failure: str | None) -> CallRecord:
    return CallRecord("u", "m", SummaryMode.REPLAY, 1, 0.1, status, failure)


def test_an_outcome_counts_its_failed_calls_and_names_the_last() -> None:
    blank = SummaryOutcome(
        None,
        Reason.SUMMARY_FAILED,
        (record(200, None), record(500, "status-500"), record(200, "blank")),
    )
    assert (blank.failed_calls, blank.error, blank.worth_remembering) == (2, "blank", True)
    dead = SummaryOutcome(None, Reason.SUMMARY_FAILED, (record(None, "upstream_unreachable"),))
    assert (dead.error, dead.worth_remembering) == ("upstream_unreachable", False)
    unasked = SummaryOutcome(None, Reason.BREAKER_OPEN)
    assert (unasked.failed_calls, unasked.error) == (0, "breaker-open")
    assert not unasked.worth_remembering
    assert unasked.completion_tokens == 0
    good = SummaryOutcome("text", None, (record(500, "status-500"), record(200, None)))
    assert (good.failed_calls, good.error, good.worth_remembering) == (1, None, False)
    paid = replace(good.calls[1], completion_tokens=7)
    assert replace(good, calls=(good.calls[0], paid, paid)).completion_tokens == 14
