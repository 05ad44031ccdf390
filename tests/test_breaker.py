"""When a summariser is left alone, for how long, and for whom."""

import pytest

from proxy.breaker import Breaker, CallFault, Permit, fault_of_status


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(clock)


def admit(breaker: Breaker, tenant: str = "t1", model: str = "m") -> Permit:
    permit = breaker.admit("u", model, tenant)
    assert permit is not None
    return permit


def fail(
    breaker: Breaker, times: int, fault: CallFault = CallFault.UPSTREAM, tenant: str = "t1"
) -> None:
    for _ in range(times):
        admit(breaker, tenant).finished(fault)


def test_three_failures_in_a_row_open_it_for_everybody(breaker: Breaker) -> None:
    fail(breaker, 2)
    assert breaker.state("u", "m") == "closed"
    fail(breaker, 1)
    assert breaker.state("u", "m") == "open"
    assert breaker.admit("u", "m", "t2") is None
    assert breaker.admit("u", "other", "t1") is not None
    assert breaker.admit("v", "m", "t1") is not None


def test_an_answer_between_failures_closes_it(breaker: Breaker) -> None:
    fail(breaker, 2)
    admit(breaker).finished(None)
    fail(breaker, 2)
    admit(breaker).finished(CallFault.TENANT)
    fail(breaker, 2)
    assert breaker.state("u", "m") == "closed"


def test_one_trial_call_closes_it(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 59.9
    assert breaker.admit("u", "m", "t1") is None
    clock.now += 0.1
    assert breaker.state("u", "m") == "half-open"
    trial = admit(breaker)
    assert breaker.admit("u", "m", "t2") is None
    trial.finished(None)
    assert breaker.state("u", "m") == "closed"
    fail(breaker, 2)
    assert breaker.state("u", "m") == "closed"


def test_failed_trials_double_the_pause_to_a_quarter_of_an_hour(
    breaker: Breaker, clock: Clock
) -> None:
    fail(breaker, 3)
    for pause in (60, 120, 240, 480, 900, 900):
        clock.now += pause - 1
        assert breaker.admit("u", "m", "t1") is None
        clock.now += 1
        fail(breaker, 1)


def test_a_cancelled_trial_leaves_room_for_another(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 60
    admit(breaker).abandoned()
    assert breaker.state("u", "m") == "half-open"
    admit(breaker).finished(None)
    assert breaker.state("u", "m") == "closed"


def test_calls_already_under_way_when_it_opens_do_not_lengthen_the_pause(
    breaker: Breaker, clock: Clock
) -> None:
    permits = [admit(breaker) for _ in range(6)]
    for permit in permits:
        permit.finished(CallFault.UPSTREAM)
        clock.now += 1
    clock.now += 56  # 60 s after the third, which opened it
    assert breaker.state("u", "m") == "half-open"


def test_a_tenant_s_own_refusals_count_for_that_tenant_alone(
    breaker: Breaker, clock: Clock
) -> None:
    fail(breaker, 3, CallFault.TENANT)
    assert breaker.admit("u", "m", "t1") is None
    assert breaker.state("u", "m") == "closed"
    admit(breaker, "t2").finished(None)
    assert breaker.admit("u", "m", "t1") is None
    clock.now += 60
    admit(breaker, "t1").finished(None)
    admit(breaker, "t1").finished(CallFault.TENANT)
    admit(breaker, "t1").finished(None)


def test_a_tenant_s_trial_that_meets_a_dead_upstream_may_be_made_again(
    breaker: Breaker, clock: Clock
) -> None:
    fail(breaker, 3, CallFault.TENANT)
    clock.now += 60
    admit(breaker, "t1").finished(CallFault.UPSTREAM)
    admit(breaker, "t1").finished(None)


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        *((status, None) for status in (200, 400, 404, 413)),
        *((status, CallFault.TENANT) for status in (401, 403, 429)),
        *((status, CallFault.UPSTREAM) for status in (500, 502, 529)),
    ],
)
def test_whose_fault_a_status_tells_of(status: int, fault: CallFault | None) -> None:
    assert fault_of_status(status) is fault


def test_the_number_of_tenants_remembered_is_bounded(breaker: Breaker) -> None:
    for number in range(10_500):
        admit(breaker, f"t{number}").finished(CallFault.TENANT)
    assert len(breaker._circuits) <= 10_000
