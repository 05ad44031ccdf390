"""Small histories, and the turns by which a log hears of them."""

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from proxy.core.replacements import NewReplacement, ReplacementKind, Scope
from proxy.store.store import Event, EventKind, Turn

SCOPE = Scope("tenant-a", "default", "model-1")


def chain_of(texts: Sequence[str]) -> list[bytes]:
    """A fingerprint after each text, each depending on all before it."""
    chain, before = [], b""
    for text in texts:
        encoded = text.encode(errors="surrogatepass")
        before = hashlib.blake2b(before + encoded, digest_size=16).digest()
        chain.append(before)
    return chain


async def eventually(condition: Callable[[], Awaitable[object]], *, seconds: float = 10.0) -> None:
    """Ask until it is true; after that many seconds it is a failure."""
    deadline = time.monotonic() + seconds
    while True:
        if await condition():
            return
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.01)


def body_of(text: str) -> bytes:
    return json.dumps({"role": "user", "content": text}).encode()


def turn_of(
    texts: Sequence[str],
    *,
    tenant: str = SCOPE.tenant,
    conversation: str = "conversation-1",
    time: float = 1000.0,
    start: int = 0,
    kept: bool = True,
    **rest: Any,
) -> Turn:
    """The turn that sends these texts; `start` leaves out what the log has already."""
    chain = chain_of(texts)
    return Turn(
        tenant=tenant,
        conversation=conversation,
        time=time,
        upstream=SCOPE.upstream,
        model=SCOPE.model,
        root=chain[0],
        last_fingerprint=chain[-1],
        message_count=len(chain),
        start=start,
        parent=chain[start - 1] if start else b"",
        fingerprints=chain[start:],
        bodies=[body_of(text) for text in texts[start:]] if kept else None,
        **rest,
    )


def event_of(
    number: int = 0,
    *,
    tenant: str = SCOPE.tenant,
    conversation: str = "conversation-1",
    kind: EventKind = EventKind.REQUEST,
    time: float = 1000.0,
) -> Event:
    return Event(tenant, conversation, kind, time, {"number": number})


def new_of(
    chain: Sequence[bytes],
    end: int,
    *,
    kind: ReplacementKind = ReplacementKind.SUMMARY,
    text: str = "what came before",
) -> NewReplacement:
    return NewReplacement(kind, 0, end, chain[end - 1], {"format": 1, "summary": text})
