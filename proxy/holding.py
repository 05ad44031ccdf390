"""A chat reply is held until its beginning is known good; until then it may still be replaced.

Held bytes are passed on byte for byte when the reply is let go. A reply is let go unjudged when it
says nothing for too long, or when too much of it is held.
"""

import asyncio
from dataclasses import dataclass, field

from proxy.core.errors import ProviderBroke, ProviderError
from proxy.core.verdicts import Verdict, is_evidence
from proxy.reply import Reply
from proxy.tap import BodyTap, EventTap

# Error bodies are a few KB; the longest seen echo the request.
MAX_ERROR_BYTES = 1 << 20
MAX_HELD_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a provider said instead of an answer: its error body, decoded, or an event's data.

    `in_stream`: more events may have come before it or come after it. A finish without any output
    is not such an event: the answer is whole, and empty.
    """

    status: int
    body: bytes = field(repr=False)
    in_stream: bool


@dataclass(frozen=True, slots=True)
class Opening:
    """A reply whose beginning was seen. Without evidence it is known good, or let go unjudged."""

    reply: Reply
    evidence: Evidence | None


async def hold(reply: Reply, *, hold_seconds: float) -> Opening:
    """Holds the reply until it is judged. 0 seconds: no limit in time.

    Raises:
        ProviderBroke: a reply of status 200 broke off while nothing of it had been passed on.
    """
    tap = reply.tap
    if reply.status >= 400 and isinstance(tap, BodyTap):
        return await _hold_error(reply, tap)
    if reply.arrived or not hold_seconds:  # a timer costs more than the judging
        return await _judged(reply)
    try:
        async with asyncio.timeout(hold_seconds):
            return await _judged(reply)
    except TimeoutError:
        return Opening(reply, None)


async def _judged(reply: Reply) -> Opening:
    tap = reply.tap
    if isinstance(tap, EventTap):
        return Opening(reply, await _first_events(reply, tap))
    if isinstance(tap, BodyTap):
        return Opening(reply, await _whole_body(reply, tap))
    return Opening(reply, None)


async def _hold_error(reply: Reply, tap: BodyTap) -> Opening:
    """The whole body of an error, also one that breaks off: its status is what counts."""
    try:
        while not tap.overflowed and reply.held_bytes <= MAX_ERROR_BYTES:
            if not await reply.hold():
                return Opening(reply, Evidence(reply.status, tap.body(), in_stream=False))
    except ProviderError:
        return Opening(reply, Evidence(reply.status, tap.body(), in_stream=False))
    return Opening(reply, None)


async def _first_events(reply: Reply, tap: EventTap) -> Evidence | None:
    while not tap.first.decided and reply.held_bytes <= MAX_HELD_BYTES:
        try:
            more = await reply.hold()
        except ProviderBroke:
            if tap.first.verdict is not Verdict.ERROR:
                raise
            break
        if not more:
            break
    if tap.first.verdict is Verdict.ERROR:
        first = tap.first
        return Evidence(reply.status, first.evidence, in_stream=not first.ended_empty)
    return None


async def _whole_body(reply: Reply, tap: BodyTap) -> Evidence | None:
    while tap.kept_bytes <= MAX_HELD_BYTES and not tap.overflowed:
        if not await reply.hold():
            if is_evidence(tap.value):
                return Evidence(reply.status, tap.body(), in_stream=False)
            return None
    return None
