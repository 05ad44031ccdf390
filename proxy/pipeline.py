"""A chat request's walk, top to bottom: fingerprint, surface, weigh, make room, send, recover,
record. Every branch here chooses between awaits; decisions are functions in `core`."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from proxy.compactor import Compactor, fires
from proxy.conversations import Conversations
from proxy.core.budget import Budget
from proxy.core.compaction import Reason
from proxy.core.messages import texts_of
from proxy.core.overflow import Refusal, classify
from proxy.core.recovery import Replays, Step, next_step, shows_first_error
from proxy.holding import Opening
from proxy.model_rules import ModelRules
from proxy.outcome import Outcome
from proxy.own_work import OwnWork
from proxy.provider import Provider
from proxy.range_runs import Allowance
from proxy.records import Records
from proxy.relay import Caller, provider_request
from proxy.rulebook import Rulebook
from proxy.surfaces import Surfaces
from proxy.turn import Turn, facts
from proxy.wire import ChatRequest

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Sent:
    """The last opening and the turn it answers; the first refusal is kept until the end."""

    turn: Turn
    opening: Opening
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
    ) -> None:
        """The parts are built by `app`, which alone knows the settings."""
        self._rulebook = rulebook
        self._surfaces = surfaces
        self._compactor = compactor
        self._provider = provider
        self._conversations = conversations
        self._records = records

    async def chat(self, request: ChatRequest, caller: Caller, own_work: OwnWork) -> Outcome:
        """Answer one chat request. Raises ProviderError when the provider cannot be reached."""
        rules = await self._rulebook.rules(caller, request)
        turn = await self._surfaces.open(request, caller, rules)
        turn = await self._conversations.named(turn)
        allowance = Allowance()
        if rules.takes_no_images:
            turn = await self._compactor.without_images(await self._surfaces.price(turn))
        turn = await self._weighed(turn, rules)
        turn = await self._relieved(turn, rules, allowance, own_work)
        sent = await self._sent(turn, rules, own_work)
        sent = await self._recovered(sent, rules, allowance, own_work)
        self._records.answered(sent.turn, sent.opening.reply)
        return Outcome(sent.opening.reply, facts(sent.turn))

    async def _weighed(self, turn: Turn, rules: ModelRules) -> Turn:
        """Count the request, unless its bytes already say that it cannot reach T."""
        budget = rules.budget
        if not budget.valid:
            turn = turn.because(_why_no_budget(budget))
        bound = self._surfaces.bound(turn)
        by_messages = budget.trigger_messages
        if by_messages is not None and len(turn.surface.items) >= by_messages:
            return await self._surfaces.price(turn)
        if budget.trigger_tokens is None or bound < budget.trigger_tokens:
            return replace(turn, bound_tokens=bound)
        return await self._surfaces.price(turn)

    async def _relieved(
        self, turn: Turn, rules: ModelRules, allowance: Allowance, own_work: OwnWork
    ) -> Turn:
        """Compact under pressure; what goes wrong in it never fails the request."""
        if not rules.compaction.enabled or turn.view is None or not fires(turn):
            return turn
        try:
            with own_work.busy():
                return await self._compactor.relieve(turn, allowance)
        except Exception:
            log.exception("compaction failed, sent as it was conversation=%s", turn.conversation)
            return turn.because(Reason.SUMMARY_FAILED)

    async def _sent(self, turn: Turn, rules: ModelRules, own_work: OwnWork) -> _Sent:
        request = provider_request(turn.caller, turn.body(), identity=own_work.answering)
        opening = await self._provider.open_chat(request, hold_seconds=rules.hold_seconds)
        return _Sent(turn, opening, Replays())

    async def _recovered(
        self, sent: _Sent, rules: ModelRules, allowance: Allowance, own_work: OwnWork
    ) -> _Sent:
        """Make room and replay while a refusal asks for it; else the first error stands."""
        first = sent
        while True:
            refusal = self._judged(sent, rules)
            images = len(self._surfaces.images(sent.turn)) if refusal is not None else 0
            step = next_step(
                refusal,
                sent.replays,
                max_context_replays=rules.compaction.max_overflow_replays,
                images=images,
            )
            if refusal is None or step is Step.RELAY:
                break
            with own_work.busy():
                turn = await self._room_made(sent.turn, step, refusal, rules, allowance)
            self._records.recovered(
                sent.turn, step, refusal, replayed=_advanced(sent.turn, turn, step)
            )
            if not _advanced(sent.turn, turn, step):
                sent = replace(sent, turn=turn)
                break
            if sent is not first:
                await sent.opening.reply.aclose()
            again = await self._sent(turn.did("replay"), rules, own_work)
            sent = replace(again, replays=sent.replays.counting(step))
        if sent.opening is first.opening:
            return sent
        if shows_first_error(refusal):
            await sent.opening.reply.aclose()
            return replace(sent, opening=first.opening)
        await first.opening.reply.aclose()
        return sent

    def _judged(self, sent: _Sent, rules: ModelRules) -> Refusal | None:
        """What the provider refused, None when it did not."""
        evidence = sent.opening.evidence
        if evidence is None:
            return None

        def request_texts() -> Iterator[str]:
            for message in sent.turn.request.messages:
                yield from texts_of(message)

        refusal = classify(
            evidence.status,
            evidence.body,
            in_stream=evidence.in_stream,
            request_texts=request_texts,
        )
        return refusal if rules.compaction.enabled else None

    async def _room_made(
        self,
        turn: Turn,
        step: Step,
        refusal: Refusal,
        rules: ModelRules,
        allowance: Allowance,
    ) -> Turn:
        """The turn after the recovery that the refusal asks for; unchanged when that failed."""
        try:
            priced = await self._surfaces.price(turn)
            if step is Step.OFFLOAD:
                await self._rulebook.refused_images(priced.scope, refusal)
                return await self._compactor.offload(priced, refusal)
            if await self._rulebook.overflowed(priced, refusal, self._surfaces):
                priced = priced.because(Reason.WINDOW_STATED)
            return await self._compactor.recover(
                await self._surfaces.price(priced),
                refusal.window_tokens,
                allowance,
            )
        except Exception:
            log.exception("recovery failed conversation=%s", turn.conversation)
            return turn.because(Reason.SUMMARY_FAILED)


def _advanced(before: Turn, after: Turn, step: Step) -> bool:
    """Whether a replay is worth it: other replacements show, and the surface is smaller.

    Offloading asks only for a change: a placeholder may be longer than the URL it stands for.
    Without a store nothing is recorded, but what holds for this request alone counts as well.
    """
    changed = after.surface.visible != before.surface.visible
    return changed and (step is Step.OFFLOAD or len(after.body()) < len(before.body()))


def _why_no_budget(budget: Budget) -> Reason:
    unknown = budget.window_tokens is None and budget.trigger_tokens is None
    return Reason.UNKNOWN_WINDOW if unknown else Reason.INVALID_BUDGET
