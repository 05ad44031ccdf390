"""One chat request on its walk: what was read, how it folds, what it weighs, what was done to it.
Frozen; every step returns a new one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from proxy.core.budget import Budget
from proxy.core.compaction import Reason, View
from proxy.core.ranges import Pairing
from proxy.core.replacements import Replacement, Scope, generation_of
from proxy.core.surface import Surface
from proxy.model_rules import ModelRules
from proxy.recent import Reading
from proxy.relay import Caller
from proxy.wire import ChatRequest, encode_message, with_messages


@dataclass(frozen=True, slots=True)
class Counted:
    """Our own counts, unscaled: what the client sent, and what would be forwarded."""

    client_tokens: int
    surface_tokens: int


class Turn(msgspec.Struct, frozen=True):
    """A request, its place in a conversation, and its surface as it would be forwarded now.

    A struct: every chat makes some, in a twentieth of the time that a frozen dataclass takes.
    """

    request: ChatRequest
    caller: Caller
    scope: Scope
    pairing: Pairing
    chain: tuple[bytes, ...]
    meanings: tuple[bytes, ...]
    applied: tuple[Replacement, ...]
    surface: Surface
    raw_items: tuple[bytes, ...]
    rules: ModelRules
    reading: Reading
    view: View | None = None
    counted: Counted | None = None
    bound_tokens: int | None = None
    bound_as_sent_tokens: int | None = None  # where replacements make it another one
    conversation: str = ""
    actions: tuple[str, ...] = ()
    reason: Reason | None = None
    degraded: str | None = None
    summary_tokens: int = 0
    unrecorded: bool = False  # when it came in, surely no conversation in the store began like it
    from_log: bool = False  # read from the log: images may be stood for by their hashes

    @property
    def budget(self) -> Budget:
        """W, O, B, T and R of this request."""
        return self.rules.budget

    @property
    def root(self) -> bytes:
        """The fingerprint of the first message of the history; b"" for an empty history."""
        return self.chain[0] if self.chain else b""

    @property
    def generation(self) -> int:
        """How many replacements and revocations are recorded for this history."""
        return generation_of(self.applied)

    @property
    def action(self) -> str:
        """Everything that was done, as the headers and the metrics say it."""
        return ",".join(self.actions) or "none"

    @property
    def priced(self) -> View:
        """The view, which pricing made; asking before is a mistake of ours."""
        assert self.view is not None, "the turn was not priced"
        return self.view

    @property
    def tokens_before(self) -> int | None:
        """The prompt as the client sent it, in the provider's tokens like the view's total; None
        when it was not counted."""
        if self.view is None or not self.surface.replaced:
            return None if self.view is None else self.view.total_tokens
        return self.view.fixed_tokens + sum(self.view.history_tokens)

    def __repr__(self) -> str:
        """Which one it is; no message text."""
        return f"Turn(scope={self.scope}, conversation={self.conversation!r})"

    def having(self, **changes: Any) -> "Turn":
        """The same turn with some fields changed."""
        return msgspec.structs.replace(self, **changes)

    def did(self, action: str) -> "Turn":
        """The same turn with one more action, named once."""
        return self if action in self.actions else self.having(actions=(*self.actions, action))

    def because(self, reason: Reason | None) -> "Turn":
        """The same turn with a reason; the last one given is shown."""
        return self if reason is None else self.having(reason=reason)

    @property
    def body_bytes(self) -> int:
        """How large `body()` is, the client's white space between messages included.

        Written again, its pieces are none of the client's bytes, and may well be longer.
        """
        if not self.surface.replaced:
            return len(self.request.body)
        if self.request.rewritten:
            return len(self.body())
        kept = len(self.request.body) - self.reading.size_bytes
        return kept + sum(map(len, self.raw_items))

    def body(self) -> bytes:
        """What is forwarded: the client's own bytes when nothing is replaced."""
        if not self.surface.replaced:
            return self.request.body
        head = self.request.raw_messages[: self.request.head_length]
        return with_messages(self.request, (*head, *self.raw_items))


def raw_items(request: ChatRequest, surface: Surface) -> tuple[bytes, ...]:
    """The bytes of each item: the client's where it stands as sent, else ours."""
    history = request.raw_history
    return tuple(
        history[item.position]
        if item.as_sent and item.position is not None
        else encode_message(item.message)
        for item in surface.items
    )


def facts(turn: Turn) -> Mapping[str, str]:
    """The response headers of design section 14."""
    budget = turn.budget
    tokens = before = ""
    if turn.view is not None:
        tokens, before = str(turn.view.total_tokens), str(turn.tokens_before)
    elif turn.bound_tokens is not None:
        tokens = f"<={turn.bound_tokens}"
        before = f"<={turn.bound_as_sent_tokens or turn.bound_tokens}"
    window, trigger = budget.window_tokens, budget.trigger_tokens
    named = {
        "x-tidegate-conversation": turn.conversation,
        "x-tidegate-generation": str(turn.generation),
        "x-tidegate-tokens": tokens,
        "x-tidegate-tokens-before": before,
        "x-tidegate-window": "unknown" if window is None else str(window),
        "x-tidegate-trigger": "" if trigger is None else str(trigger),
        "x-tidegate-action": turn.action,
        "x-tidegate-summary-tokens": str(turn.summary_tokens or ""),
        "x-tidegate-reason": "" if turn.reason is None else turn.reason.value,
        "x-tidegate-degraded": turn.degraded or "",
    }
    return {name: value for name, value in named.items() if value}
