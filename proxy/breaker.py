"""Which summarisers are not asked for a while. Three connect errors, timeouts or 5xx in a row open
the breaker of an (upstream, model) for everybody; three 401, 403 or 429 in a row open it for the
tenant whose credential or quota it was. Then one trial call closes it, or opens it for longer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

FAILURES_TO_OPEN = 3
FIRST_PAUSE_SECONDS = 60.0
LONGEST_PAUSE_SECONDS = 15 * 60.0
# Tenants come and go: the oldest entries are dropped beyond this many.
_MAX_ENTRIES = 10_000

_Key = tuple[str, str, str | None]


class CallFault(StrEnum):
    """Whose fault a failed call was, as far as it says something about the next one."""

    UPSTREAM = "upstream"
    TENANT = "tenant"


def fault_of_status(status: int) -> CallFault | None:
    """The fault that an HTTP status tells of; None for success and for one call's own mistakes."""
    if status in (401, 403, 429):
        return CallFault.TENANT
    return CallFault.UPSTREAM if status >= 500 else None


@dataclass(slots=True)
class _Circuit:
    failures: int = 0
    pause_seconds: float = FIRST_PAUSE_SECONDS
    closed_until: float | None = None  # None: calls pass
    trial: bool = False

    def admits(self, now: float) -> bool:
        return self.closed_until is None or (now >= self.closed_until and not self.trial)

    def failed(self, now: float) -> None:
        if self.trial:
            self.trial = False
            self.pause_seconds = min(self.pause_seconds * 2, LONGEST_PAUSE_SECONDS)
            self.closed_until = now + self.pause_seconds
            return
        self.failures += 1
        if self.failures >= FAILURES_TO_OPEN and self.closed_until is None:
            self.closed_until = now + self.pause_seconds


class Permit:
    """The right to make one call; exactly one of its methods is called when the call is over."""

    def __init__(self, breaker: "Breaker", keys: tuple[_Key, _Key]) -> None:
        """Made by `Breaker.admit` alone."""
        self._breaker = breaker
        self._keys = keys

    def finished(self, fault: CallFault | None) -> None:
        """The call was answered or failed; without a fault both circuits close."""
        self._breaker._finish(self._keys, fault)

    def abandoned(self) -> None:
        """The call was cancelled by us: it says nothing, and a trial may be made again."""
        self._breaker._abandon(self._keys)


class Breaker:
    """Open and closed circuits by (upstream, model) and by tenant. Belongs to one event loop."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` gives seconds that only grow."""
        self._now = now
        self._circuits: dict[_Key, _Circuit] = {}

    def admit(self, upstream: str, model: str, tenant: str) -> Permit | None:
        """A permit for one call, or None while a circuit in its way is open."""
        keys: tuple[_Key, _Key] = ((upstream, model, None), (upstream, model, tenant))
        now = self._now()
        found = [circuit for key in keys if (circuit := self._circuits.get(key))]
        if not all(circuit.admits(now) for circuit in found):
            return None
        for circuit in found:
            circuit.trial = circuit.closed_until is not None
        return Permit(self, keys)

    def state(self, upstream: str, model: str) -> Literal["closed", "open", "half-open"]:
        """For people: "open" admits no call, "half-open" only a trial."""
        circuit = self._circuits.get((upstream, model, None))
        if circuit is None or circuit.closed_until is None:
            return "closed"
        return "half-open" if self._now() >= circuit.closed_until else "open"

    def _finish(self, keys: tuple[_Key, _Key], fault: CallFault | None) -> None:
        for key, own in zip(keys, (CallFault.UPSTREAM, CallFault.TENANT), strict=True):
            if fault is own:
                self._circuits.setdefault(key, _Circuit()).failed(self._now())
            elif fault is None or own is CallFault.UPSTREAM:
                # An answer, a refusal of the tenant too, shows that the upstream is there.
                self._circuits.pop(key, None)
        self._abandon(keys)
        while len(self._circuits) > _MAX_ENTRIES:
            self._circuits.pop(next(iter(self._circuits)))

    def _abandon(self, keys: tuple[_Key, _Key]) -> None:
        for key in keys:
            if circuit := self._circuits.get(key):
                circuit.trial = False
