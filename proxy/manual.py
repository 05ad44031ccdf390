"""Compaction by hand, whoever asks: calls, the chat command and the command line all come here. It
is admitted only when nothing else is at the conversation, and what goes wrong has a code."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from proxy.by_hand import Compacted, ConversationBusy
from proxy.compactor import Compactor
from proxy.conversations import Conversations
from proxy.core.errors import TidegateError
from proxy.core.manual import Options, Result, Untouched, refused
from proxy.in_flight import InFlight
from proxy.model_rules import ModelRules, SummaryModel
from proxy.relay import Caller
from proxy.rulebook import Rulebook
from proxy.surfaces import Surfaces
from proxy.tenants import credentials_of
from proxy.turn import Turn
from proxy.wire import ChatRequest

LISTING_WAIT_SECONDS = 3.0


class CompactionDisabled(TidegateError):
    """The operator switched compaction off."""

    status = 409
    type = "invalid_request_error"
    code = "compaction_disabled"


class InvalidBudget(TidegateError):
    """W, O and B give no valid budget."""

    status = 422
    type = "invalid_request_error"
    code = "invalid_budget"


@dataclass(frozen=True, slots=True)
class Done:
    """What a compaction by hand came to, and the turn after it."""

    result: Result
    turn: Turn


class Manual:
    """Opens a turn as a chat would, asks whether it may, and compacts."""

    def __init__(
        self,
        *,
        rulebook: Rulebook,
        surfaces: Surfaces,
        compactor: Compactor,
        conversations: Conversations,
        in_flight: InFlight,
        listed: Callable[[], Awaitable[None]],
    ) -> None:
        """`listed` waits for the listings that upstreams are being asked for."""
        self._rulebook = rulebook
        self._surfaces = surfaces
        self._compactor = compactor
        self._conversations = conversations
        self._in_flight = in_flight
        self._listed = listed

    async def compact(
        self,
        request: ChatRequest,
        caller: Caller,
        options: Options,
        *,
        chain: tuple[bytes, ...] | None = None,
    ) -> Done:
        """Compact a history as sent, or (with its chain) as logged.

        Raises:
            TidegateError: nothing was replaced; design section 12 names the codes.
        """
        rules = await self.rules(caller, request)
        turn = await self._surfaces.open(request, caller, rules, logged_chain=chain)
        turn = await self._conversations.named(turn)
        return await self.compact_turn(turn, options)

    async def rules(self, caller: Caller, request: ChatRequest) -> ModelRules:
        """The rules, after the upstream was given the time to list its window."""
        rules = await self._rulebook.rules(caller, request)
        if rules.budget.valid or rules.budget.window_tokens is not None:
            return rules
        try:
            async with asyncio.timeout(LISTING_WAIT_SECONDS):
                await self._listed()
        except TimeoutError:
            return rules
        return await self._rulebook.rules(caller, request)

    async def compact_turn(self, turn: Turn, options: Options) -> Done:
        """The same for a turn that has its name."""
        if not turn.rules.compaction.enabled:
            raise CompactionDisabled(
                "Compaction is switched off; set compaction.enabled to use it."
            )
        if not turn.budget.valid:
            raise InvalidBudget(f"No budget for model {turn.scope.model!r}: {turn.budget.problem}.")
        turn = with_summarizer(turn, options.summarizer)
        if turn.chain and (
            await self._in_flight.busy(turn.scope.tenant, turn.conversation)
            or await self._compactor.busy(turn)
        ):
            raise ConversationBusy
        turn = await self._surfaces.price(turn)
        if not turn.chain:
            return _done(Compacted(turn, turn, Untouched.NOT_ENOUGH_MESSAGES))
        compacted = await self._compactor.compact_now(turn, options)
        if compacted.reason is None:
            self._conversations.record(compacted.after)
        return _done(compacted)


def with_summarizer(turn: Turn, name: str | None) -> Turn:
    """The turn with the summariser that the call chose in place of the operator's chain.

    A model that the operator did not list is asked on the client's own upstream alone, and only
    with what the client itself sent: never with the operator's key.

    Raises:
        InvalidRequest: 422, it would be the operator's key that pays.
    """
    if name is None:
        return turn
    policy = turn.rules.compaction
    listed = next((s for s in policy.summarizers if s.model == name), None)
    chosen = listed or SummaryModel(turn.scope.upstream, name)
    caller = turn.caller
    our_key_pays = caller.upstream.api_key and not credentials_of(caller.headers, caller.query)
    if listed is None and name != turn.scope.model and our_key_pays:
        raise refused(
            f"summarizer: {name!r} is not among the configured summarizers; another model is "
            "asked only with a credential of your own for the upstream.",
            "summarizer",
        )
    policy = replace(policy, summarizers=(chosen,))
    return turn.having(rules=replace(turn.rules, compaction=policy))


def _done(compacted: Compacted) -> Done:
    before, after = compacted.before, compacted.after
    result = Result(
        conversation_id=after.conversation,
        reason=compacted.reason,
        removed=compacted.removed,
        preserved=len(after.chain) - compacted.removed,
        checkpoint_id=compacted.checkpoint_id,
        generation=after.generation,
        tokens_before=before.priced.total_tokens,
        total_tokens=after.priced.total_tokens,
    )
    return Done(result, after)
