"""A chat request's walk, top to bottom: fingerprint, surface, weigh, make room, send, recover,
record. Every branch here chooses between awaits; decisions are functions in `core`."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from proxy.compactor import Compactor, fires
from proxy.conversations import Conversations
from proxy.core.aims import why_no_budget
from proxy.core.compaction import Reason
from proxy.core.messages import texts_of
from proxy.core.overflow import Refusal, classify
from proxy.core.recovery import Replays, Step, believed, next_step, shows_first_error
from proxy.core.stream_usage import UsageSieve
from proxy.holding import Evidence, Opening
from proxy.in_flight import InFlight, Run
from proxy.model_rules import ModelRules
from proxy.off_loop import off_loop
from proxy.outcome import Outcome
from proxy.own_work import OwnWork
from proxy.provider import Provider
from proxy.range_runs import Allowance
from proxy.records import Records
from proxy.relay import Caller, provider_request
from proxy.rulebook import Rulebook
from proxy.scheduled import Scheduled
from proxy.surfaces import Surfaces
from proxy.turn import Turn, facts
from proxy.wire import ChatRequest, asking_for_usage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Sent:
    """An opening, the turn that was sent for it, and the turn as it stands since."""

    asked: Turn
    opening: Opening
    turn: Turn
    replays: Replays


class Pipeline:
    """The walk. One per process; holds no state of a request."""

    def __init__(
        self,
        *,
        rulebook: Rulebook,
        surfaces: Surfaces,
        compactor: Compactor,
        provider: Provider,
        conversations: Conversations,
        records: Records,
        in_flight: InFlight,
        scheduled: Scheduled,
    ) -> None:
        """The parts are built by `app`, which alone knows the settings."""
        self._rulebook = rulebook
        self._surfaces = surfaces
        self._compactor = compactor
        self._provider = provider
        self._conversations = conversations
        self._records = records
        self._in_flight = in_flight
        self._scheduled = scheduled

    async def chat(self, request: ChatRequest, caller: Caller, own_work: OwnWork) -> Outcome:
        """Answer one chat request. Raises ProviderError when the provider cannot be reached."""
        return await self._in_flight.tracked(lambda run: self._walk(request, caller, own_work, run))

    async def _walk(
        self, request: ChatRequest, caller: Caller, own_work: OwnWork, run: Run
    ) -> Outcome:
        allowance = Allowance()
        try:
            turn = await self._prepared(request, caller, allowance, own_work, run)
        except Exception:
            log.exception("not prepared, sent as it came upstream=%s", caller.upstream.name)
            untouched = provider_request(caller, request.body, identity=own_work.answering)
            return Outcome(await self._provider.send(untouched))
        sent = await self._sent(turn, own_work)
        sent = await self._recovered(sent, allowance, own_work)
        self._records.answered(sent.turn, sent.opening.reply, asked=sent.asked)
        return Outcome(sent.opening.reply, facts(sent.turn))

    async def _prepared(
        self,
        request: ChatRequest,
        caller: Caller,
        allowance: Allowance,
        own_work: OwnWork,
        run: Run,
    ) -> Turn:
        """The turn as it is to be sent, with all the room that pressure asks for."""
        rules = await self._rulebook.rules(caller, request)
        request = asking_for_usage(request) if rules.inject_stream_usage else request
        turn = await self._surfaces.open(request, caller, rules)
        turn = await self._conversations.named(turn)
        run.of(turn.scope.tenant, turn.conversation)
        if rules.takes_no_images:
            turn = await self._compactor.without_images(turn)
        turn = await self._scheduled.done(turn, own_work)
        turn = await self._weighed(turn, rules)
        return await self._relieved(turn, rules, allowance, own_work)

    async def _weighed(self, turn: Turn, rules: ModelRules) -> Turn:
        """Count the request, unless its bytes already say that it cannot reach T."""
        budget = rules.budget
        if not budget.valid:
            turn = turn.because(why_no_budget(budget))
        bound = self._surfaces.bound(turn)
        by_messages = budget.trigger_messages
        if by_messages is not None and len(turn.surface.items) >= by_messages:
            return await self._surfaces.price(turn)
        if budget.trigger_tokens is None or bound < budget.trigger_tokens:
            as_sent = self._surfaces.bound_as_sent(turn)
            return turn.having(bound_tokens=bound, bound_as_sent_tokens=as_sent)
        return await self._surfaces.price(turn)

    async def _relieved(
        self, turn: Turn, rules: ModelRules, allowance: Allowance, own_work: OwnWork
    ) -> Turn:
        """Compact under pressure; what goes wrong in it never fails the request."""
        if not rules.compaction.enabled or turn.view is None or not fires(turn):
            return turn
        try:
            with own_work.busy():
                return await self._compactor.compact_if_needed(turn, allowance)
        except Exception:
            log.exception("compaction failed, sent as it was conversation=%s", turn.conversation)
            return turn.because(Reason.SUMMARY_FAILED)

    async def _sent(self, turn: Turn, own_work: OwnWork) -> _Sent:
        body = turn.request.body
        if turn.surface.replaced:
            body = await off_loop(turn.body_bytes, turn.body)
        self._records.asked(own_work)
        sifted = turn.request.usage_added
        request = provider_request(turn.caller, body, identity=own_work.answering or sifted)
        opening = await self._provider.open_chat(request, hold_seconds=turn.rules.hold_seconds)
        if sifted and opening.reply.is_event_stream:
            opening.reply.sift(UsageSieve())
        return _Sent(turn, opening, turn, Replays())

    async def _recovered(self, first: _Sent, allowance: Allowance, own_work: OwnWork) -> _Sent:
        """Make room and replay while a refusal asks for it; else the first error stands."""
        sent = first
        try:
            while True:
                refusal, step = await self._next(sent)
                if refusal is None or step is Step.RELAY:
                    break
                with own_work.busy():
                    turn = await self._room_made(sent.turn, step, refusal, allowance)
                replayed = _advanced(sent.asked, turn, step)
                self._records.recovered(sent.turn, step, refusal, replayed=replayed)
                sent = replace(sent, turn=turn)
                if not replayed:
                    break
                again = await self._sent(turn.did("replay"), own_work)
                if sent.opening is not first.opening:
                    await sent.opening.reply.aclose()
                sent = replace(again, replays=sent.replays.counting(step))
        except BaseException:
            # The client has gone, or a replay had no answer at all: nobody reads these any more.
            await sent.opening.reply.aclose()
            await first.opening.reply.aclose()
            raise
        if sent.opening is first.opening:
            return sent
        if shows_first_error(refusal, sent.replays):
            await sent.opening.reply.aclose()
            return replace(sent, opening=first.opening, asked=first.asked)
        await first.opening.reply.aclose()
        return sent

    async def _next(self, sent: _Sent) -> tuple[Refusal | None, Step]:
        """What the provider refused, None when it did not, and what is to be done about it."""
        policy = sent.turn.rules.compaction
        if sent.opening.evidence is None or not policy.enabled:
            return None, Step.RELAY
        try:
            # The request is searched for what the error repeats of it.
            size_bytes = len(sent.turn.request.body)
            refusal = await off_loop(size_bytes, _judged, sent.opening.evidence, sent.turn)
            images = len(self._surfaces.images(sent.turn)) if refusal is not None else 0
        except Exception:
            log.exception("an answer was not judged conversation=%s", sent.turn.conversation)
            return None, Step.RELAY
        step = next_step(
            refusal,
            sent.replays,
            max_context_replays=policy.max_overflow_replays,
            images=images,
        )
        return refusal, step

    async def _room_made(
        self, turn: Turn, step: Step, refusal: Refusal, allowance: Allowance
    ) -> Turn:
        """The turn after the recovery that the refusal asks for, or what was done of it."""
        try:
            priced = await self._surfaces.price(turn)
            if step is Step.OFFLOAD:
                return await self._compactor.offload(priced, refusal)
            if await self._rulebook.overflowed(priced, refusal, self._surfaces):
                priced = priced.because(Reason.WINDOW_STATED)
            priced = await self._surfaces.price(priced)
            return await self._compactor.recover(priced, refusal, allowance)
        except Exception:
            log.exception("recovery failed conversation=%s", turn.conversation)
        turn = turn.because(Reason.SUMMARY_FAILED)
        try:
            # A prune may have landed before the rest failed.
            return await self._surfaces.refresh(turn)
        except Exception:
            log.exception("the surface was not read again conversation=%s", turn.conversation)
            return turn


def _judged(evidence: Evidence, turn: Turn) -> Refusal | None:
    """What the evidence says; None for nothing that more room would mend."""

    def request_texts() -> Iterator[str]:
        for message in turn.request.messages:
            yield from texts_of(message)

    refusal = classify(
        evidence.status,
        evidence.body,
        in_stream=evidence.in_stream,
        request_texts=request_texts,
    )
    counted = None if turn.view is None else turn.view.total_tokens
    return believed(refusal, window_tokens=turn.budget.window_tokens, counted_tokens=counted)


def _advanced(before: Turn, after: Turn, step: Step) -> bool:
    """Whether a replay is worth it: other replacements show, and the surface is smaller.

    Offloading asks only for a change: a placeholder may be longer than the URL it stands for.
    Without a store nothing is recorded, but what holds for this request alone counts as well.
    """
    changed = after.surface.visible != before.surface.visible
    return changed and (step is Step.OFFLOAD or after.body_bytes < before.body_bytes)
