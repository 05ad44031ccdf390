"""Clients that play whole conversations against several replicas, each turn on a random one."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

from tests.faults.histories import history, play_name

RETRY_SECONDS = 60.0


@dataclass
class Played:
    """One answered turn. A stream that got heartbeats first has no facts in its headers."""

    conversation: int
    turn: int
    status: int
    generation: int
    degraded: str | None
    actions: str
    reason: str | None
    seconds: float
    retried: int


@dataclass
class Record:
    """Everything that was answered, and what was not."""

    turns: list[Played] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def add(self, turn: Played) -> None:
        async with self.news:
            self.turns.append(turn)
            self.news.notify_all()

    async def answered(self, count: int) -> None:
        """Wait until so many turns were answered."""
        async with self.news:
            await self.news.wait_for(lambda: len(self.turns) >= count)

    @property
    def told(self) -> list[Played]:
        """Turns whose headers say what was done, and that had the store."""
        return [turn for turn in self.turns if turn.actions and turn.degraded is None]

    @property
    def failed(self) -> list[Played]:
        return [turn for turn in self.turns if turn.status != 200]

    @property
    def degraded(self) -> list[Played]:
        return [turn for turn in self.turns if turn.degraded is not None]

    def shrunk_generations(self) -> list[tuple[int, int]]:
        """Turns that know of less than an earlier one did, those without the store left out."""
        seen: dict[int, int] = {}
        found = []
        for turn in self.told:
            if turn.generation < seen.get(turn.conversation, 0):
                found.append((turn.conversation, turn.turn))
            seen[turn.conversation] = max(turn.generation, seen.get(turn.conversation, 0))
        return found


async def play(
    urls: Sequence[str],
    *,
    conversations: Sequence[int],
    turns: int,
    at_once: int,
    seed: int = 1,
    record: Record | None = None,
) -> Record:
    """All turns of all conversations; a replica that is gone is asked again elsewhere."""
    record = Record() if record is None else record
    chosen = random.Random(seed)
    gate = asyncio.Semaphore(at_once)
    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

        async def whole(conversation: int) -> None:
            async with gate:
                for turn in range(turns):
                    await ask(session, record, urls, chosen, conversation, turn)

        async with asyncio.TaskGroup() as group:
            for conversation in conversations:
                group.create_task(whole(conversation))
    return record


async def ask(
    session: aiohttp.ClientSession,
    record: Record,
    urls: Sequence[str],
    chosen: random.Random,
    conversation: int,
    turn: int,
) -> None:
    """One turn, asked until a replica answers it, as a client behind a load balancer sees it."""
    stream = (conversation + turn) % 2 == 0
    body = {"model": "gpt-4o", "stream": stream, "messages": history(conversation, turn)}
    headers = {"x-play": play_name(conversation, turn)}
    started, retried = time.monotonic(), 0
    while True:
        url = f"{chosen.choice(urls)}/v1/chat/completions"
        try:
            async with session.post(url, json=body, headers=headers) as reply:
                text = await reply.text()
                facts = reply.headers
                break
        except (aiohttp.ClientError, TimeoutError) as error:
            retried += 1
            if time.monotonic() - started > RETRY_SECONDS:
                record.lost.append(f"{conversation}/{turn}: {type(error).__name__}")
                return
            await asyncio.sleep(0.05)
    if reply.status == 200 and "is" not in text:
        record.lost.append(f"{conversation}/{turn}: a 200 without an answer")
    await record.add(
        Played(
            conversation=conversation,
            turn=turn,
            status=reply.status,
            generation=int(facts.get("x-tidegate-generation", 0)),
            degraded=facts.get("x-tidegate-degraded"),
            actions=facts.get("x-tidegate-action", ""),
            reason=facts.get("x-tidegate-reason"),
            seconds=time.monotonic() - started,
            retried=retried,
        )
    )
