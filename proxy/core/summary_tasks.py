"""What a summary is asked of, in what ways and within what bounds: the task, its outcome, and the
decisions between two calls, as functions of values. Tokens are our counts, scaled for the model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from proxy.core.compaction import Reason
from proxy.core.messages import Message
from proxy.core.overflow import Refusal, RefusalKind
from proxy.core.summaries import Refused
from proxy.core.summary_requests import Cap, names_field, other_cap_field, roles_would_repeat

MAX_PARTS = 16  # design section 9
# The marks of the messages that a call adds, and of the reply.
ENVELOPE_TOKENS = 16
# Our count of a text is not the provider's: so much of a window is left free.
_MARGIN_PERCENT = 1
# Smaller parts would hold less of the conversation than of the instruction.
SMALLEST_PART_TOKENS = 256
# For reasoning that ate the first cap: summaries take 1 to 2 thousand tokens, thoughts 4 to 8.
_LARGER_CAP_FACTOR = 4


class SummaryMode(StrEnum):
    """How a summary is asked for; `auto` is for tasks only."""

    AUTO = "auto"
    REPLAY = "replay"
    TRANSCRIPT = "transcript"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that may write the summary.

    `own`: it is the conversation's model on the conversation's upstream. `count` prices a text for
    this model by the scale of `context_window`.
    """

    upstream: str
    model: str
    context_window: int | None
    count: Callable[[str], int] = field(repr=False)
    own: bool = False
    same_upstream: bool = False


@dataclass(frozen=True, slots=True)
class SummaryTask:
    """One range to summarise.

    For a replay: `raw_messages` are the head and the range exactly as last sent, `fields` the raw
    top-level fields of the client's request, `replay_tokens` the price of head, tools and range.
    For a transcript: `messages` are the range without an earlier frame, whose summary's text is
    `earlier_summary`. `range_tokens` is what the summary must cost less than. `has_images`: the
    range holds images that could be offloaded.
    """

    tenant: str
    candidates: Sequence[Candidate]
    fields: Mapping[str, bytes] = field(repr=False)
    raw_messages: Sequence[bytes] = field(repr=False)
    messages: Sequence[Message] = field(repr=False)
    replay_tokens: int
    range_tokens: int
    cap_tokens: int
    timeout_seconds: float = 120.0
    failures_allowed: int = 2
    earlier_summary: str | None = field(default=None, repr=False)
    mode: SummaryMode = SummaryMode.AUTO
    role_alternation: bool = False
    has_images: bool = False


@dataclass(frozen=True, slots=True)
class SummaryCall:
    """One request to send: a whole, non-streaming chat-completions body."""

    upstream: str
    model: str
    mode: SummaryMode
    body: bytes = field(repr=False)
    prompt_tokens: int
    cap_tokens: int
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class SummaryReply:
    """The provider's answer, of any status, its body decoded."""

    status: int
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call that was made, for log and metrics; `failure` is a short code, None for success.

    `prompt_tokens` is our count, `reported_prompt_tokens` the provider's.
    """

    upstream: str
    model: str
    mode: SummaryMode
    prompt_tokens: int
    seconds: float
    status: int | None = None
    failure: str | None = None
    reported_prompt_tokens: int | None = None
    completion_tokens: int | None = None
    refusal: Refusal | None = None
    body_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SummaryOutcome:
    """A text, or the reason why there is none, and the calls that it took.

    `images_refused` is the call that failed for the range's images: without them, or some of them,
    it may be made again.
    """

    text: str | None = field(repr=False)
    reason: Reason | None
    calls: tuple[CallRecord, ...] = ()
    candidate: Candidate | None = None
    mode: SummaryMode | None = None
    was_cut: bool = False
    images_refused: CallRecord | None = None

    @property
    def completion_tokens(self) -> int:
        """What the calls wrote in all, reasoning included, as far as it was reported."""
        return sum(call.completion_tokens or 0 for call in self.calls)

    @property
    def failed_calls(self) -> int:
        """How many of the calls count against the two that a client request may lose."""
        return sum(call.failure is not None for call in self.calls)

    @property
    def error(self) -> str | None:
        """Why there is no text, for the log: the last failure's code, else the reason."""
        if self.text is not None:
            return None
        last = self.calls[-1].failure if self.calls else None
        return last or (None if self.reason is None else self.reason.value)

    @property
    def worth_remembering(self) -> bool:
        """Whether the same range would likely fail again: it was answered, and not usably."""
        last = self.calls[-1] if self.calls else None
        answered = last is not None and last.status is not None and last.status < 300
        return self.text is None and answered


def modes_for(task: SummaryTask, candidate: Candidate) -> tuple[SummaryMode, ...]:
    """The ways to ask this candidate, in order: a replay where it can be, then a transcript."""
    repeats = task.role_alternation and roles_would_repeat(task.messages)
    if task.mode is SummaryMode.TRANSCRIPT or not candidate.own or repeats:
        return (SummaryMode.TRANSCRIPT,)
    if task.mode is SummaryMode.REPLAY:
        return (SummaryMode.REPLAY,)
    return (SummaryMode.REPLAY, SummaryMode.TRANSCRIPT)


def cap_within(cap_tokens: int, window: int | None) -> int:
    """The output cap for a summariser: at most a quarter of its window."""
    return cap_tokens if window is None else max(min(cap_tokens, window // 4), 1)


def room_within(window: int | None) -> int | None:
    """What prompt and output may take together; None when nobody knows."""
    if window is None:
        return None
    return window - window * _MARGIN_PERCENT // 100 - ENVELOPE_TOKENS


def window_after(refusal: Refusal, *, window: int | None, prompt_tokens: int, cap: int) -> int:
    """The window to believe in after a call overflowed: smaller than before, by our count."""
    halved = (prompt_tokens + cap) // 2
    stated = refusal.window_tokens
    if stated is None or (window is not None and stated >= window):
        return halved if window is None else min(halved, window // 2)
    if refusal.prompt_tokens and refusal.prompt_tokens > prompt_tokens:
        # The provider counts more than we do; the limit in our tokens is smaller.
        return stated * prompt_tokens // refusal.prompt_tokens
    return stated


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a call's own fields after which it may be asked again, once for each name."""

    name: str
    cap: Cap


def change_after(
    verdict: Refused, reply: SummaryReply, refusal: Refusal | None, cap: Cap, *, most_tokens: int
) -> Change | None:
    """What may be changed about the cap; `most_tokens` is the largest that the window allows."""
    if reply.status < 300 and (refusal is None or refusal.kind is RefusalKind.OTHER):
        larger = min(cap.tokens * _LARGER_CAP_FACTOR, most_tokens)
        if verdict.reasoning_ate_it and larger > cap.tokens:
            return Change("larger-cap", replace(cap, tokens=larger))
        return None
    if refusal is not None and refusal.kind is RefusalKind.OUTPUT_LIMIT:
        return Change("smaller-cap", replace(cap, tokens=max(cap.tokens // 2, 1)))
    if reply.status in (400, 422) and names_field(reply.body, cap.field):
        return Change("cap-name", replace(cap, field=other_cap_field(cap.field)))
    return None
