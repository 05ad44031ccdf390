"""Where a history may be cut. Results pair with calls by position, because real histories reuse
ids, answer out of order and interleave; what belongs together is one unit, and cuts fall only
between units."""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

from proxy.core.messages import (
    RESULT_ROLES,
    Message,
    ToolCall,
    is_result,
    role_of,
    tool_calls_of,
)


class Answer(NamedTuple):
    """Which call a result answers: the call's message, its index there, and how many
    call-bearing messages lie between (0 = the nearest one)."""

    call_position: int
    call_index: int
    distance: int


class Unit(NamedTuple):
    """`history[start:end]`, which may not be cut; `open` while a call in it still waits."""

    start: int
    end: int
    open: bool = False


class Pairing(NamedTuple):
    """The calls and results of one history, paired, and the units that follow from it."""

    answers: dict[int, Answer]
    unanswered: tuple[tuple[int, int], ...]
    units: tuple[Unit, ...]

    def cuts(self) -> tuple[int, ...]:
        """The positions at which this history may be cut, 0 and its end included."""
        return (0, *(unit.end for unit in self.units))

    def strands(self, start: int, end: int) -> bool:
        """Whether an edge of `[start, end)` falls inside a unit: a result that came late may have
        joined what was cut apart before, and taking the range away would part it from its call."""
        return not {start, end} <= set(self.cuts())


NOTHING_PAIRED = Pairing({}, (), ())


class _Waiting(NamedTuple):
    position: int
    call_index: int
    block: int


class _Pairer:
    """Calls that still wait for a result, found in constant time by the name a result gives.

    `_waiting` is the truth; the queues may still hold calls that were taken through another one.
    """

    def __init__(self) -> None:
        self.unanswered: list[tuple[int, int]] = []
        self._waiting: dict[tuple[int, int], _Waiting] = {}
        self._by_name: dict[tuple[bool, str | None], deque[_Waiting]] = {}
        # By kind (legacy or not), one queue a block, the newest last.
        self._blocks: dict[bool, list[deque[_Waiting]]] = {False: [], True: []}

    def ask(self, position: int, calls: Sequence[ToolCall], block: int) -> None:
        if block == position:
            for queues in self._blocks.values():
                queues.append(deque())
        names = [(call.legacy, call.name if call.legacy else call.id) for call in calls]
        for name in set(names):
            queue = self._by_name.get(name)
            # One id in every turn is common: a newer call of that id takes it over,
            # unless the two messages stand side by side.
            while queue and queue[0].block < block:
                if self._take(entry := queue.popleft()):
                    self.unanswered.append((entry.position, entry.call_index))
        for index, name in enumerate(names):
            entry = _Waiting(position, index, block)
            self._waiting[position, index] = entry
            self._by_name.setdefault(name, deque()).append(entry)
            self._blocks[name[0]][-1].append(entry)

    def answer(self, result: Message) -> _Waiting | None:
        legacy = role_of(result) == "function"
        named = result.get("name" if legacy else "tool_call_id")
        if isinstance(named, str):
            return self._take_first(self._by_name.get((legacy, named)))
        queues = self._blocks[legacy]
        while queues:
            if (entry := self._take_first(queues[-1])) is not None:
                return entry
            queues.pop()
        return None

    def give_up(self) -> None:
        self.unanswered.extend(self._waiting)
        self._waiting.clear()
        self._by_name.clear()
        for queues in self._blocks.values():
            queues.clear()

    def _take_first(self, queue: deque[_Waiting] | None) -> _Waiting | None:
        while queue:
            if self._take(entry := queue.popleft()):
                return entry
        return None

    def _take(self, entry: _Waiting) -> bool:
        return self._waiting.pop((entry.position, entry.call_index), None) is not None


def settled(history: Sequence[Message], end: int) -> int:
    """The last place up to `end` over which no pair and no unit can reach, whatever follows: behind
    an assistant message without calls, which gives up every call before it."""
    for place in range(end, 0, -1):
        if place < len(history) and is_result(history[place]):
            continue
        before = history[place - 1]
        if role_of(before) == "assistant" and not tool_calls_of(before):
            return place
    return 0


def pair(
    history: Sequence[Message], *, start: int = 0, before: Pairing = NOTHING_PAIRED
) -> Pairing:
    """Pair the calls of `history` with their results and derive its units.

    Decided from left to right, so that appending messages never changes an earlier pair. `before`
    is the pairing of a history that begins with the same `start` messages, a `settled` place.
    """
    found = dict(before.answers)
    for position in list(takewhile(lambda position: position >= start, reversed(found))):
        del found[position]
    missing = tuple(call for call in before.unanswered if call[0] < start)
    units = before.units[: bisect_right(before.units, start, key=_end_of)]
    if not any(is_result(message) or tool_calls_of(message) for message in history[start:]):
        alone = [Unit(position, position + 1) for position in range(start, len(history))]
        return Pairing(found, missing, units + tuple(alone))
    pairer = _Pairer()
    pairer.unanswered = list(missing)
    ordinal: dict[int, int] = {}
    block, previous_calls = 0, False
    for position in range(start, len(history)):
        message = history[position]
        role = role_of(message)
        calls = tool_calls_of(message) if role == "assistant" else ()
        if calls:
            block = block if previous_calls else position
            pairer.ask(position, calls, block)
            ordinal[position] = len(ordinal)
        elif role == "assistant":
            pairer.give_up()
        elif role in RESULT_ROLES and (entry := pairer.answer(message)) is not None:
            distance = len(ordinal) - 1 - ordinal[entry.position]
            found[position] = Answer(entry.position, entry.call_index, distance)
        previous_calls = bool(calls)
    pairer.give_up()
    missing = tuple(sorted(pairer.unanswered))
    return Pairing(found, missing, units + tuple(_units(history, found, missing, start)))


_end_of = attrgetter("end")


def _units(
    history: Sequence[Message],
    found: dict[int, Answer],
    missing: tuple[tuple[int, int], ...],
    start: int,
) -> list[Unit]:
    """The units from `start` on."""
    reach = {position: position + 1 for position in range(start, len(history))}
    for position in reversed(found):
        if position < start:
            break
        asked = found[position].call_position
        reach[asked] = max(reach[asked], position + 1)
    still_open = _open_positions(history, missing)
    units: list[Unit] = []
    while start < len(history):
        end = reach[start]
        index = start
        while index < end:
            end = max(end, reach[index])
            index += 1
        while end < len(history) and end not in found and is_result(history[end]):
            end += 1
        waits = bool(still_open) and not still_open.isdisjoint(range(start, end))
        units.append(Unit(start, end, waits))
        start = end
    return units


def _open_positions(
    history: Sequence[Message], missing: tuple[tuple[int, int], ...]
) -> frozenset[int]:
    """Messages whose calls may still be answered: no assistant message follows their block.

    Call-bearing messages that stand side by side are one block, since some adapters split the
    parallel calls of one turn over several messages.
    """
    last_block_start = len(history)
    for position in range(len(history) - 1, -1, -1):
        if role_of(history[position]) != "assistant":
            continue
        if not tool_calls_of(history[position]):
            return frozenset()
        last_block_start = position
        while last_block_start > 0 and tool_calls_of(history[last_block_start - 1]):
            last_block_start -= 1
        break
    return frozenset(position for position, _ in missing if position >= last_block_start)


@dataclass(frozen=True, slots=True)
class PricedUnit:
    """A stretch of the surface that may not be cut: its history range, message count and price."""

    start: int
    end: int
    tokens: int
    messages: int = 1
    open: bool = False


def retained_cut(
    units: Sequence[PricedUnit], retain_tokens: int, *, keep_messages: int | None = None
) -> int:
    """The history position at which the retained tail starts; 0 where nothing would be replaced.

    Walks from the end, adding units until they hold `retain_tokens` (or `keep_messages` messages,
    when given). At least the newest unit is kept, and the cut never lies behind an open unit.
    """
    if not units:
        return 0
    tokens = messages = 0
    cut = 0
    for unit in reversed(units):
        tokens += unit.tokens
        messages += unit.messages
        cut = unit.start
        enough = tokens >= retain_tokens if keep_messages is None else messages >= keep_messages
        if enough:
            break
    for unit in units:
        if unit.open:
            return min(cut, unit.start)
    return cut
