"""Asks models for a summary of one range until one gives a usable text, within one deadline and a
number of failed calls. A failed call is asked again only after its input changed. No call exceeds
its model's window by our count. Nothing is stored here: the outcome says what happened.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from proxy.breaker import Breaker, CallFault, Permit, fault_of_status
from proxy.core.compaction import Reason
from proxy.core.errors import ProviderError, ProviderTimeout
from proxy.core.messages import text_of
from proxy.core.overflow import Refusal, RefusalKind, classify
from proxy.core.summaries import Accepted, RefusalReason, Refused, accept, completion_of
from proxy.core.summary_requests import (
    Cap,
    Prompts,
    cap_field,
    replay_body,
    replay_text,
    transcript_body,
    transcript_text,
)
from proxy.core.summary_tasks import (
    MAX_PARTS,
    SMALLEST_PART_TOKENS,
    CallRecord,
    Candidate,
    SummaryCall,
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
from proxy.core.transcript import Block, blocks_of, plan_parts

logger = logging.getLogger(__name__)

Ask = Callable[[SummaryCall], Awaitable[SummaryReply]]

_NO_MORE_ON_THIS_UPSTREAM = frozenset({401, 403, 429})


class Summarizer:
    """Asks for summaries; one for the whole process, on one event loop."""

    def __init__(self, *, breaker: Breaker, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` measures the deadline and the calls, in seconds that only grow."""
        self.breaker = breaker
        self.clock = clock
        # Which name of the output cap a model takes, where it was not the first one tried.
        self.cap_fields: dict[tuple[str, str], str] = {}

    async def summarise(self, task: SummaryTask, ask: Ask) -> SummaryOutcome:
        """The first usable summary of the chain. Cancelling this cancels the call under way.

        `ask` sends a call and returns the answer of any status, or raises `ProviderError`.
        """
        return await _Run(self, task, ask).through_chain()


@lru_cache(maxsize=1)
def load_prompts() -> Prompts:
    """The prompts as they stand in the package."""
    folder = files("proxy") / "prompts"
    names = ("instruction", "replay", "transcript", "merge")
    return Prompts(**{name: (folder / f"{name}.md").read_text("utf-8") for name in names})


class _GiveUp(Exception):
    """No more calls for this task."""


class _NextCandidate(Exception):
    """This candidate cannot be asked now, in no way."""


class _NextMode(Exception):
    """This way of asking this candidate failed; another may work."""


class _SmallerParts(Exception):
    """A part overflowed its call; what is left must be cut smaller."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """A call before its cap is named; `range_tokens` is what its answer must cost less than."""

    mode: SummaryMode
    prompt_tokens: int
    body: Callable[[Cap], bytes]
    range_tokens: int | None


class _Run:
    """One task on its way through the chain: what is left of its time and of its failures."""

    def __init__(self, owner: Summarizer, task: SummaryTask, ask: Ask) -> None:
        self.owner = owner
        self.task = task
        self.send = ask
        self.prompts = load_prompts()
        self.calls: list[CallRecord] = []
        self.deadline = owner.clock() + task.timeout_seconds
        self.reason = Reason.SUMMARY_FAILED
        self.window: int | None = None  # of the candidate being asked, as learned meanwhile
        self.images_refused: CallRecord | None = None

    async def through_chain(self) -> SummaryOutcome:
        """The outcome of the first candidate that gives a text, else of the last failure."""
        try:
            for candidate in self.task.candidates:
                outcome = await self._candidate(candidate)
                if outcome is not None:
                    return outcome
        except _GiveUp:
            pass
        return SummaryOutcome(
            None, self.reason, tuple(self.calls), images_refused=self.images_refused
        )

    async def _candidate(self, candidate: Candidate) -> SummaryOutcome | None:
        self.window = candidate.context_window
        for mode in modes_for(self.task, candidate):
            ask = self._replay if mode is SummaryMode.REPLAY else self._transcript
            try:
                accepted = await ask(candidate)
            except _NextMode:
                continue
            except _NextCandidate:
                return None
            return SummaryOutcome(
                accepted.text, None, tuple(self.calls), candidate, mode, accepted.was_cut
            )
        return None

    async def _replay(self, candidate: Candidate) -> Accepted:
        task, cap = self.task, cap_within(self.task.cap_tokens, self.window)
        text = replay_text(self.prompts, cap)
        prompt_tokens = task.replay_tokens + candidate.count(text)
        room = room_within(self.window)
        if room is not None and prompt_tokens + cap > room:
            raise _NextMode

        def body(named: Cap) -> bytes:
            return replay_body(
                task.fields, task.raw_messages, model=candidate.model, final_text=text, cap=named
            )

        draft = _Draft(SummaryMode.REPLAY, prompt_tokens, body, task.range_tokens)
        return await self._ask(candidate, draft, cap)

    async def _transcript(self, candidate: Candidate) -> Accepted:
        """The range in as few parts as fit, each merged into the summary of those before it."""
        left: Sequence[Block] = await asyncio.to_thread(blocks_of, self.task.messages)
        summary, told = self.task.earlier_summary, 0
        parts = await self._parts(candidate, left, summary, MAX_PARTS)
        while parts:
            last = len(parts) == 1
            try:
                accepted = await self._part(candidate, parts[0], summary, last=last)
            except _SmallerParts:
                left = [block for part in parts for block in part]
                parts = await self._parts(candidate, left, summary, MAX_PARTS - told)
                continue
            if last:
                return accepted
            summary, told, parts = accepted.text, told + 1, parts[1:]
        raise _NextMode

    async def _parts(
        self, candidate: Candidate, blocks: Sequence[Block], summary: str | None, most: int
    ) -> tuple[tuple[Block, ...], ...]:
        """The blocks in at most `most` parts that fit the window; () when they cannot."""
        cap, count = cap_within(self.task.cap_tokens, self.window), candidate.count
        room = room_within(self.window)
        if room is None:
            return (tuple(blocks),) if blocks else ()
        around = transcript_text(self.prompts, (), cap, earlier_summary="-")
        carried = max(cap, count(summary) if summary else 0)
        part_tokens = room - cap - carried - count(around)
        if part_tokens < SMALLEST_PART_TOKENS or most < 1:
            return ()
        # Counting a whole conversation takes tens of milliseconds: not on the event loop.
        return await asyncio.to_thread(
            plan_parts, blocks, part_tokens=part_tokens, max_parts=most, count=count
        )

    async def _part(
        self, candidate: Candidate, part: Sequence[Block], summary: str | None, *, last: bool
    ) -> Accepted:
        task, cap = self.task, cap_within(self.task.cap_tokens, self.window)
        text = transcript_text(self.prompts, part, cap, earlier_summary=summary)
        prompt_tokens = await asyncio.to_thread(candidate.count, text)

        def body(named: Cap) -> bytes:
            return transcript_body(
                task.fields,
                model=candidate.model,
                text=text,
                cap=named,
                same_upstream=candidate.same_upstream or candidate.own,
            )

        # Only the last summary replaces the range; those before it are read once more.
        price = task.range_tokens if last else None
        draft = _Draft(SummaryMode.TRANSCRIPT, prompt_tokens, body, price)
        return await self._ask(candidate, draft, cap)

    async def _ask(self, candidate: Candidate, draft: _Draft, cap_tokens: int) -> Accepted:
        """Ask, and once more for each change of the call's cap that its failure suggests."""
        key = (candidate.upstream, candidate.model)
        cap = Cap(cap_tokens, self.owner.cap_fields.get(key) or cap_field(self.task.fields))
        tried: set[str] = set()
        while True:
            reply, record = await self._call(candidate, draft, cap)
            verdict, refusal, record = await asyncio.to_thread(
                self._judge, candidate, draft, reply, cap_tokens, record
            )
            self._record(record)
            if isinstance(verdict, Accepted):
                if "cap-name" in tried:
                    self.owner.cap_fields[key] = cap.field
                return verdict
            self.reason = Reason.SUMMARY_FAILED
            self._stop_if_spent()
            if reply.status in _NO_MORE_ON_THIS_UPSTREAM:
                raise _NextCandidate
            if refusal is not None and refusal.kind is RefusalKind.CONTEXT_OVERFLOW:
                self.window = window_after(
                    refusal,
                    window=self.window,
                    prompt_tokens=draft.prompt_tokens,
                    cap=cap.tokens,
                )
                raise _NextMode if draft.mode is SummaryMode.REPLAY else _SmallerParts
            is_replay = draft.mode is SummaryMode.REPLAY
            if is_replay and self.task.has_images and refusal is not None and refusal.about_images:
                self.images_refused = record
                raise _GiveUp
            room = room_within(self.window)
            most = cap.tokens * 4 if room is None else room - draft.prompt_tokens
            change = change_after(verdict, reply, refusal, cap, most_tokens=most)
            if change is None or change.name in tried:
                raise _NextMode
            tried.add(change.name)
            cap = change.cap

    def _judge(
        self,
        candidate: Candidate,
        draft: _Draft,
        reply: SummaryReply,
        cap_tokens: int,
        record: CallRecord,
    ) -> tuple[Accepted | Refused, Refusal | None, CallRecord]:
        """The verdict on an answer, what a refusal means, and the record of both."""
        verdict: Accepted | Refused = Refused(RefusalReason.NO_CHOICES)
        completion = completion_of(reply.body) if reply.status < 300 else None
        if completion is not None:
            verdict = accept(
                completion,
                cap_tokens=cap_tokens,
                range_tokens=draft.range_tokens,
                count=candidate.count,
            )
            record = _with_usage(record, completion)
        if isinstance(verdict, Accepted):
            return verdict, None, record
        refusal = None
        if not verdict.reasoning_ate_it:
            refusal = classify(
                reply.status,
                reply.body,
                request_texts=lambda: [text_of(message) for message in self.task.messages],
            )
        failure = verdict.reason.value if reply.status < 300 else f"status-{reply.status}"
        return verdict, refusal, replace(record, failure=failure, refusal=refusal)

    async def _call(
        self, candidate: Candidate, draft: _Draft, cap: Cap
    ) -> tuple[SummaryReply, CallRecord]:
        """Send one call. Without any answer it is recorded as failed and `_NextMode` raised."""
        self._stop_if_spent()
        left_seconds = self.deadline - self.owner.clock()
        if left_seconds <= 0:
            self.reason = Reason.SUMMARY_TIMEOUT
            raise _GiveUp
        permit = self.owner.breaker.admit(candidate.upstream, candidate.model, self.task.tenant)
        if permit is None:
            if not self.calls:
                self.reason = Reason.BREAKER_OPEN
            raise _NextCandidate
        call = SummaryCall(
            upstream=candidate.upstream,
            model=candidate.model,
            mode=draft.mode,
            body=await asyncio.to_thread(draft.body, cap),
            prompt_tokens=draft.prompt_tokens,
            cap_tokens=cap.tokens,
            timeout_seconds=left_seconds,
        )
        started = self.owner.clock()
        reply, failure = await self._send(call, permit)
        record = CallRecord(
            upstream=call.upstream,
            model=call.model,
            mode=call.mode,
            prompt_tokens=call.prompt_tokens,
            seconds=self.owner.clock() - started,
            status=None if reply is None else reply.status,
            failure=failure,
            body_bytes=len(call.body),
        )
        if reply is None:
            self._record(record)
            if failure == "timeout":
                self.reason = Reason.SUMMARY_TIMEOUT
                raise _GiveUp
            self._stop_if_spent()
            raise _NextMode
        return reply, record

    async def _send(
        self, call: SummaryCall, permit: Permit
    ) -> tuple[SummaryReply | None, str | None]:
        """The answer, or a code for why there is none; settles the permit on every way out."""
        settled = False
        try:
            async with asyncio.timeout(call.timeout_seconds):
                reply = await self.send(call)
            permit.finished(fault_of_status(reply.status))
            settled = True
            return reply, None
        except ProviderError as exc:
            permit.finished(CallFault.UPSTREAM)
            settled = True
            timed_out = isinstance(exc, ProviderTimeout)
            self.reason = Reason.SUMMARY_TIMEOUT if timed_out else Reason.SUMMARY_FAILED
            return None, exc.code
        except TimeoutError:
            # A call that began when little time was left says nothing about its model.
            if call.timeout_seconds * 2 >= self.task.timeout_seconds:
                permit.finished(CallFault.UPSTREAM)
                settled = True
            return None, "timeout"
        finally:
            if not settled:
                permit.abandoned()

    def _stop_if_spent(self) -> None:
        if sum(call.failure is not None for call in self.calls) >= self.task.failures_allowed:
            raise _GiveUp

    def _record(self, record: CallRecord) -> None:
        self.calls.append(record)
        logger.log(
            logging.INFO if record.failure is None else logging.WARNING,
            "summary_call upstream=%s model=%s mode=%s prompt_tokens=%d completion_tokens=%s "
            "seconds=%.3f status=%s failure=%s",
            record.upstream,
            record.model,
            record.mode.value,
            record.prompt_tokens,
            record.completion_tokens,
            record.seconds,
            record.status,
            record.failure,
        )


def _with_usage(record: CallRecord, completion: Mapping[str, Any]) -> CallRecord:
    usage = completion.get("usage")
    if not isinstance(usage, Mapping):
        return record
    prompt, made = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return replace(
        record,
        reported_prompt_tokens=prompt if isinstance(prompt, int) else None,
        completion_tokens=made if isinstance(made, int) else None,
    )
