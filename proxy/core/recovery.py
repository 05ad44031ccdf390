"""What follows a refusal: which recovery is due, and whether another replay is still allowed. After
known good nothing is replayed; a replay needs a surface that changed."""

from dataclasses import dataclass
from enum import StrEnum

from proxy.core.overflow import EMPTY_LENGTH_STOP, Refusal, RefusalKind

MAX_IMAGE_REPLAYS = 4
# A prompt of at least this much of the window leaves no room for an answer.
FULL_PERCENT = 99


class Step(StrEnum):
    """What to do with an opening that was judged."""

    RELAY = "relay"
    COMPACT = "compact"
    OFFLOAD = "offload"


@dataclass(frozen=True, slots=True)
class Replays:
    """How many replays each cause has had for one client request."""

    context: int = 0
    image: int = 0

    def counting(self, step: Step) -> "Replays":
        """With one more replay of that kind."""
        if step is Step.OFFLOAD:
            return Replays(self.context, self.image + 1)
        return Replays(self.context + 1, self.image)

    @property
    def total(self) -> int:
        """All replays so far."""
        return self.context + self.image


def next_step(
    refusal: Refusal | None, replays: Replays, *, max_context_replays: int, images: int
) -> Step:
    """The recovery that a refusal asks for, RELAY when there is none or it is spent."""
    if refusal is None:
        return Step.RELAY
    if refusal.kind is RefusalKind.CONTEXT_OVERFLOW:
        return Step.COMPACT if replays.context < max_context_replays else Step.RELAY
    if refusal.about_images and images > 0 and replays.image < MAX_IMAGE_REPLAYS:
        return Step.OFFLOAD
    return Step.RELAY


def believed(
    refusal: Refusal, *, window_tokens: int | None, counted_tokens: int | None
) -> Refusal | None:
    """The refusal; None for an empty answer that stopped by length well below a known window.

    Without the provider's figure our own count stands in for it. An output limit, or reasoning
    that nobody sees, ends answers in the same way.
    """
    if refusal.sign != EMPTY_LENGTH_STOP or window_tokens is None:
        return refusal
    prompt = counted_tokens if refusal.prompt_tokens is None else refusal.prompt_tokens
    full = prompt is not None and prompt * 100 >= window_tokens * FULL_PERCENT
    return refusal if full else None


def shows_first_error(refusal: Refusal | None, replays: Replays) -> bool:
    """Whether the answer to a replay is one more refusal, so that the first one stands.

    Any other answer, a success, 429 or 5xx, is the answer. A context refused at any size is worded
    as an output limit once the prompt is small. A limit in bytes is one more refusal only where
    the earlier one was about images.
    """
    if refusal is None or refusal.kind is RefusalKind.OTHER:
        return False
    return refusal.kind is not RefusalKind.PAYLOAD_TOO_LARGE or replays.image > 0
