"""A digest stands in for a range when no model can be asked: the user's messages word for word as
far as they fit, one line per tool call, the heads of answers. It is a list of references into the
history; its words are read from there when it is shown.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from proxy.core.messages import Message, role_of, text_of, tool_calls_of

Ref = Mapping[str, int]

# Chosen: what identifies a command or a path mostly stands at its start.
ARGUMENT_CHARS = 160
ANSWER_CHARS = 240
# Long user messages are shown by both ends once they do not fit whole.
USER_HEAD_CHARS = 600
USER_TAIL_CHARS = 300
# Users first, at most three fifths while there are others; calls half of what is left.
_USER_SHARE = (3, 5)
_CALL_SHARE = (1, 2)
_LINE_TOKENS = 4  # label and line feed

_GONE = " [... {count} characters left out ...] "


def plan_digest(
    history: Sequence[Message],
    start: int,
    end: int,
    *,
    cap_tokens: int,
    count: Callable[[str], int],
    skip: Collection[int] = (),
) -> list[dict[str, int]]:
    """References for a digest of `history[start:end]` that costs at most `cap_tokens`.

    `skip` are positions that stay word for word elsewhere. Of each kind the newest come first, of
    user messages the first one before all.
    """
    positions = [p for p in range(start, end) if p not in skip]
    users = [p for p in positions if role_of(history[p]) == "user"]
    answers = [p for p in positions if role_of(history[p]) == "assistant"]
    budget = _Budget(history, cap_tokens, count)

    ordered = users[:1] + users[:0:-1]
    numerator, denominator = _USER_SHARE if answers else (1, 1)
    budget.take((_whole(history, p) for p in ordered), cap_tokens * numerator // denominator)
    budget.take((_ends(history, p) for p in ordered), cap_tokens * numerator // denominator)
    calls = (
        {"position": p, "call": index, "head": min(ARGUMENT_CHARS, len(call.arguments))}
        for p in reversed(answers)
        for index, call in reversed(list(enumerate(tool_calls_of(history[p]))))
    )
    numerator, denominator = _CALL_SHARE
    budget.take(calls, budget.spent + budget.left * numerator // denominator)
    budget.take((_head(history, p) for p in reversed(answers)), cap_tokens)
    # What calls and answers left over goes back to the users.
    budget.take((_whole(history, p) for p in ordered), cap_tokens)
    budget.take((_ends(history, p) for p in ordered), cap_tokens)
    return budget.refs()


def render_digest(history: Sequence[Message], refs: Iterable[Ref]) -> str:
    """The digest's text over this history, one paragraph per user message, one line per other."""
    return "\n".join(_line(history, ref) for ref in refs)


class _Budget:
    """References taken while they fit; one per message text, one per call."""

    def __init__(
        self, history: Sequence[Message], cap_tokens: int, count: Callable[[str], int]
    ) -> None:
        self._history = history
        self._cap_tokens = cap_tokens
        self._count = count
        self._taken: dict[tuple[int, int], dict[str, int]] = {}
        self._too_dear: set[tuple[int, int, int]] = set()
        self.spent = 0

    @property
    def left(self) -> int:
        return self._cap_tokens - self.spent

    def take(self, refs: Iterable[dict[str, int] | None], until_tokens: int) -> None:
        """Take what fits while no more than `until_tokens` are spent in all."""
        for ref in refs:
            if until_tokens - self.spent <= _LINE_TOKENS:
                return
            if ref is None or _key(ref) in self._taken:
                continue
            tried = (*_key(ref), ref["head"])
            if tried in self._too_dear:
                continue
            # A token is rarely more than a dozen characters: no need to count a book.
            if ref["head"] + ref.get("tail", 0) > 16 * self._cap_tokens:
                continue
            cost = self._count(_line(self._history, ref)) + _LINE_TOKENS
            if self.spent + cost <= until_tokens:
                self.spent += cost
                self._taken[_key(ref)] = ref
            elif cost > self._cap_tokens:
                self._too_dear.add(tried)

    def refs(self) -> list[dict[str, int]]:
        return [self._taken[key] for key in sorted(self._taken)]


def _key(ref: Ref) -> tuple[int, int]:
    return ref["position"], ref.get("call", -1)


def _whole(history: Sequence[Message], position: int) -> dict[str, int] | None:
    size = len(text_of(history[position]))
    return {"position": position, "head": size, "tail": 0} if size else None


def _ends(history: Sequence[Message], position: int) -> dict[str, int] | None:
    size = len(text_of(history[position]))
    if size <= USER_HEAD_CHARS + USER_TAIL_CHARS:
        return None
    return {"position": position, "head": USER_HEAD_CHARS, "tail": USER_TAIL_CHARS}


def _head(history: Sequence[Message], position: int) -> dict[str, int] | None:
    size = len(text_of(history[position]))
    return {"position": position, "head": min(ANSWER_CHARS, size), "tail": 0} if size else None


def _line(history: Sequence[Message], ref: Ref) -> str:
    message = history[ref["position"]]
    if "call" in ref:
        call = tool_calls_of(message)[ref["call"]]
        return f"Tool call: {call.name}({_cut(_one_line(call.arguments), ref['head'], 0)})"
    text = text_of(message)
    if role_of(message) == "user":
        return f"User: {_cut(text, ref['head'], ref['tail'])}"
    return f"Assistant: {_one_line(_cut(text, ref['head'], ref['tail']))}"


def _cut(text: str, head: int, tail: int) -> str:
    gone = len(text) - head - tail
    if gone <= 0:
        return text
    return (text[:head] + _GONE.format(count=gone) + text[len(text) - tail :]).rstrip()


def _one_line(text: str) -> str:
    return " ".join(text.split())
