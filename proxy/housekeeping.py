"""Deletes what is too old or too much, every few minutes, by one worker at a time."""

import asyncio
import logging
from dataclasses import asdict

from proxy.core.errors import StoreUnavailable
from proxy.core.replacements import Scope
from proxy.store.store import Retention, Store

log = logging.getLogger(__name__)

SWEEP_SECONDS = 300.0
# Nobody's conversation: the turn of sweeping is a lease like any other, kept until it expires.
_TURN = Scope("", "", "")
_SWEEP = b"sweep"


class Housekeeping:
    """Sweeps the store while the application runs."""

    def __init__(
        self,
        store: Store,
        retention: Retention,
        *,
        worker: str,
        every_seconds: float = SWEEP_SECONDS,
    ) -> None:
        """`worker` names this process to the others."""
        self._store = store
        self._retention = retention
        self._worker = worker
        self._every_seconds = every_seconds

    async def run(self) -> None:
        """Sweep now and then, until cancelled; a failure is tried again the next time."""
        while True:
            try:
                await self.sweep_in_turn()
            except StoreUnavailable:
                log.warning("not swept: store unavailable")
            await asyncio.sleep(self._every_seconds)

    async def sweep_in_turn(self) -> bool:
        """Sweep, unless a worker has done so within the interval; whether it was done here."""
        turn = await self._store.acquire(
            _TURN,
            _SWEEP,
            end=0,
            end_fingerprint=_SWEEP,
            owner=self._worker,
            lease_seconds=self._every_seconds * 0.9,
        )
        if turn is None:
            return False
        gone = {
            name: n for name, n in asdict(await self._store.sweep(self._retention)).items() if n
        }
        if gone:
            log.info("swept %s", " ".join(f"{name}={n}" for name, n in gone.items()))
        return True
