"""Compaction by hand: what a call may ask for, what it aims at, and what it answers. Every bad
option is refused with a sentence, before anything is called or written."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from proxy.core.aims import manual_aim
from proxy.core.budget import Budget, Measure, MeasureType, measure
from proxy.core.compaction import Aim, View
from proxy.core.errors import InvalidRequest
from proxy.core.surface import RANGE_KINDS

_OPTIONS = ("force", "keep", "summarizer", "region", "return")
MODEL_CHARS = 256


@dataclass(frozen=True, slots=True)
class Region:
    """`history[start:end]`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Options:
    """What a call may choose; `summarizer` is a model's name."""

    force: bool = True
    keep: Measure | None = None
    summarizer: str | None = None
    region: Region | None = None
    returns_messages: bool = False


class Untouched(StrEnum):
    """Why nothing was compacted, although nothing went wrong."""

    NOT_ENOUGH_MESSAGES = "not_enough_messages"
    BELOW_THRESHOLD = "below_threshold"


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to a compaction by hand; `removed` counts messages that a summary stands for."""

    conversation_id: str
    reason: Untouched | None
    removed: int
    preserved: int
    checkpoint_id: str | None
    generation: int
    tokens_before: int
    total_tokens: int

    def as_json(self) -> dict[str, Any]:
        """The fields of design section 12."""
        return {
            "conversation_id": self.conversation_id,
            "compacted": self.reason is None,
            "reason": None if self.reason is None else self.reason.value,
            "removed_message_count": self.removed,
            "preserved_message_count": self.preserved,
            "summary_updated": self.reason is None,
            "checkpoint_id": self.checkpoint_id,
            "generation": self.generation,
            "tokens_before": self.tokens_before,
            "total_tokens": self.total_tokens,
        }


def read_options(value: Any) -> Options:
    """The options as sent; absent and null ones have their defaults.

    Raises:
        InvalidRequest: 422, naming the option.
    """
    if value is None:
        return Options()
    if not isinstance(value, Mapping):
        raise refused("The options must be a JSON object.")
    unknown = sorted(str(name) for name in value if name not in _OPTIONS)
    if unknown:
        known = ", ".join(_OPTIONS)
        raise refused(f"Unknown option {unknown[0][:100]!r}; there are: {known}.", unknown[0][:100])
    given = {name: choice for name, choice in value.items() if choice is not None}
    force = given.get("force", True)
    if not isinstance(force, bool):
        raise refused("force must be true or false.", "force")
    returned = given.get("return")
    if returned not in (None, "messages"):
        raise refused('return must be "messages", or left out.', "return")
    return Options(
        force=force,
        keep=_read_keep(given.get("keep")),
        summarizer=_read_summarizer(given.get("summarizer")),
        region=_read_region(given.get("region")),
        returns_messages=returned == "messages",
    )


def options_as_json(options: Options) -> dict[str, Any]:
    """What `read_options` reads again, for a compaction that is done later."""
    found: dict[str, Any] = {"force": options.force}
    if options.keep is not None:
        value = options.keep.value
        fraction = options.keep.type is MeasureType.FRACTION
        shown = value / 1_000_000 if fraction else value
        found["keep"] = {"type": options.keep.type.value, "value": shown}
    if options.summarizer is not None:
        found["summarizer"] = options.summarizer
    if options.region is not None:
        found["region"] = {"start": options.region.start, "end": options.region.end}
    return found


def _read_keep(value: Any) -> Measure | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or set(value) != {"type", "value"}:
        raise refused('keep must be {"type": ..., "value": ...}.', "keep")
    try:
        return measure(value["type"], value["value"])
    except (ValueError, OverflowError) as error:
        raise refused(f"keep: {error}.", "keep") from None


def _read_summarizer(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or len(value) > MODEL_CHARS:
        raise refused("summarizer must be the name of a model.", "summarizer")
    return value


def _read_region(value: Any) -> Region | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or set(value) != {"start", "end"}:
        raise refused('region must be {"start": ..., "end": ...}.', "region")
    start, end = value["start"], value["end"]
    if not all(isinstance(place, int) and not isinstance(place, bool) for place in (start, end)):
        raise refused("region: start and end must be whole numbers.", "region")
    if not 0 <= start < end:
        raise refused("region: start must be at least 0 and less than end.", "region")
    return Region(start, end)


def aim_for(budget: Budget, view: View, options: Options) -> Aim:
    """Nothing but the newest unit stays, or what `keep` asks for.

    Raises:
        InvalidRequest: 422, a share of a window that nobody knows.
    """
    aim, keep = manual_aim(budget, view), options.keep
    if keep is None:
        return aim
    if keep.type is MeasureType.MESSAGES:
        return replace(aim, keep_messages=keep.value)
    if keep.type is MeasureType.TOKENS:
        return replace(aim, retain_tokens=keep.value)
    if budget.window_tokens is None:
        raise refused("keep: a fraction needs a context window, which is unknown here.", "keep")
    return replace(aim, retain_tokens=keep.of_window(budget.window_tokens))


def check_region(view: View, region: Region) -> None:
    """Whether a summary may stand for this region.

    Raises:
        InvalidRequest: 422, it cuts something that belongs together, or replaces the newest unit.
    """
    start, end, length = region.start, region.end, len(view.history)
    if end > length:
        raise refused(f"region: the history has {length} messages, end is {end}.", "region")
    cuts = view.pairing.cuts()
    for name, place in (("start", start), ("end", end)):
        if place not in cuts:
            raise refused(
                f"region: {name} = {place} separates a tool call from its results.", "region"
            )
    newest = view.pairing.units[-1]
    if end > newest.start:
        raise refused(
            f"region: the newest messages, from position {newest.start} on, always stay.", "region"
        )
    if any(unit.open and start <= unit.start < end for unit in view.pairing.units):
        raise refused("region: a tool call in it still waits for its result.", "region")
    for shown in view.surface.visible:
        if shown.kind not in RANGE_KINDS:
            continue
        crosses_start = shown.start < start < shown.end < end
        crosses_end = start < shown.start < end < shown.end
        if crosses_start or crosses_end:
            raise refused(
                f"region: it would cut through the summary of {shown.start}..{shown.end}.", "region"
            )


def refused(message: str, param: str | None = None) -> InvalidRequest:
    """The error for an option that cannot be honoured."""
    return InvalidRequest(message, status=422, code="invalid_request", param=param)
