"""Hypothesis strategies that several test files share: histories as agents really send them, with
every irregularity seen in the wild, and ways to cut bytes into chunks."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from proxy.core.fingerprints import chain, meaning
from proxy.core.messages import Message, head_length, part_text, parts_of, role_of
from proxy.core.ranges import Pairing, pair
from proxy.core.replacements import Replacement, ReplacementKind

KEY = b"a key for tests"
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"

JsonObject = dict[str, Any]


def user(content: Any = "ask", **more: Any) -> JsonObject:
    """A user message."""
    return {"role": "user", "content": content, **more}


def assistant(content: Any = "answer", **more: Any) -> JsonObject:
    """An assistant message without calls."""
    return {"role": "assistant", "content": content, **more}


def calls(*ids: str | None, name: str = "run", arguments: str = "{}") -> JsonObject:
    """An assistant message that makes one call for each id; the id None is left out."""
    listed = []
    for call_id in ids:
        call: JsonObject = {"type": "function", "function": {"name": name, "arguments": arguments}}
        listed.append(call if call_id is None else {"id": call_id, **call})
    return {"role": "assistant", "content": None, "tool_calls": listed}


def result(call_id: str | None, content: Any = "done", **more: Any) -> JsonObject:
    """A tool message; the id None is left out."""
    named = {} if call_id is None else {"tool_call_id": call_id}
    return {"role": "tool", **named, "content": content, **more}


def function_call(name: str = "run", arguments: str = "{}") -> JsonObject:
    """An assistant message with a legacy call."""
    legacy = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "function_call": legacy}


def function_result(name: str | None = "run", content: Any = "done") -> JsonObject:
    """A legacy result."""
    named = {} if name is None else {"name": name}
    return {"role": "function", **named, "content": content}


def history_chain(history: Sequence[Message], pairing: Pairing | None = None) -> tuple[bytes, ...]:
    """The fingerprints of a history under the tests' key."""
    meanings = [meaning(KEY, message) for message in history]
    return chain(KEY, meanings, pairing or pair(history))


texts = st.text(max_size=12) | st.sampled_from(
    ["", " ", "yes", "go on", "\ud83d", "\u2028", "继续"]
)
call_ids = st.sampled_from(["c1", "c1", "c2", "c3", "", None])
names = st.sampled_from(["run", "read", ""])

_images = st.sampled_from(
    [
        {"type": "image_url", "image_url": {"url": PIXEL}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png?x=1"}},
    ]
)
_text_parts = st.builds(lambda text: {"type": "text", "text": text}, texts)
contents = texts | st.lists(_text_parts | _images, max_size=3)

vendor_fields: st.SearchStrategy[JsonObject] = st.dictionaries(
    st.sampled_from(["reasoning_content", "x_vendor", "cache_control", "annotations"]),
    st.sampled_from(["", "because", None, [], {"type": "ephemeral"}]),
    max_size=2,
)


def _plain(role: str) -> st.SearchStrategy[JsonObject]:
    return st.builds(
        lambda content, more: {"role": role, "content": content, **more}, contents, vendor_fields
    )


single_messages: st.SearchStrategy[JsonObject] = st.one_of(
    _plain("user"),
    _plain("assistant"),
    _plain("system"),
    _plain("developer"),
    st.lists(call_ids, min_size=1, max_size=3).flatmap(
        lambda ids: st.builds(lambda name: calls(*ids, name=name), names)
    ),
    st.builds(result, call_ids, contents),
    st.builds(function_call, names),
    st.builds(function_result, names | st.none(), texts),
)
"""One message of any kind; a list of them keeps no rule at all."""

malformed_messages: st.SearchStrategy[JsonObject] = st.sampled_from(
    [
        {},
        {"role": None, "content": "x"},
        {"role": ["user"], "content": "x"},
        {"role": "critic", "content": "x"},
        {"role": "user", "content": 7},
        {"role": "user", "content": {"text": "x"}},
        {"role": "user", "content": [None, 1, "x", ["y"], {"type": "text"}, {"text": 1}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": None}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": 3}}]},
        {"role": "assistant", "tool_calls": "none"},
        {"role": "assistant", "tool_calls": [None, "x", {}, {"id": 5, "function": None}]},
        {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"arguments": {"a": 1}}}]},
        {"role": "assistant", "function_call": "auto"},
        {"role": "assistant", "function_call": {"name": None, "arguments": 3}},
        {"role": "assistant", "tool_calls": [{"id": "c1", "custom": {"name": "x", "input": "y"}}]},
        {"role": "tool", "tool_call_id": ["c1"], "content": None},
        {"role": "tool", "tool_call_id": None, "content": {"a": 1}},
        {"role": "function", "name": ["run"], "content": "x"},
        {"role": "function", "name": {"a": 1}, "content": "x"},
        {"role": "user", "name": {"a": 1}, "content": "x", "refusal": 4},
    ]
)
"""What no client should send; nothing may raise on it."""

any_histories: st.SearchStrategy[list[JsonObject]] = st.lists(
    st.one_of(single_messages, single_messages, single_messages, malformed_messages), max_size=14
)


@st.composite
def _tool_turn(draw: st.DrawFn, number: int) -> list[JsonObject]:
    """Calls and their results: in any order, interrupted, some missing, some twice, split over
    several assistant messages that stand side by side."""
    same_id_every_turn = draw(st.booleans())
    messages: list[JsonObject] = []
    asked: list[str] = []
    for part in range(draw(st.integers(1, 2))):
        ids = [
            f"call_{index}" if same_id_every_turn else f"call_{number}_{part}_{index}"
            for index in range(draw(st.integers(1, 3)))
        ]
        asked += ids
        messages.append(calls(*ids, arguments=f'{{"n": {number}}}'))
    answered = draw(st.permutations(asked))
    if draw(st.integers(0, 3)) == 0:
        answered = answered[draw(st.integers(1, len(answered))) :]
    if draw(st.integers(0, 5)) == 0:
        answered = [*answered, draw(st.sampled_from([*asked, "call_unknown"]))]
    answers = [result(call_id, draw(texts)) for call_id in answered]
    if draw(st.integers(0, 4)) == 0:
        answers.insert(draw(st.integers(0, len(answers))), user("stop that"))
    return messages + answers


@st.composite
def _legacy_turn(draw: st.DrawFn, number: int) -> list[JsonObject]:
    name = draw(st.sampled_from(["run", f"run_{number}"]))
    answers = [function_result(name)] if draw(st.integers(0, 3)) else []
    return [function_call(name), *answers]


@st.composite
def conversations(draw: st.DrawFn, *, max_turns: int = 7) -> list[JsonObject]:
    """A history that an agent could have made, most of it in order, with what goes wrong."""
    history: list[JsonObject] = []
    for number in range(draw(st.integers(1, max_turns))):
        kind = draw(st.sampled_from("ccctttluusox"))
        if kind == "t":
            history += draw(_tool_turn(number))
        elif kind == "l":
            history += draw(_legacy_turn(number))
        elif kind == "u":
            history.append(draw(_plain("user")))
        elif kind == "s":
            history.append(draw(_plain("system") | _plain("developer")))
        elif kind == "o":
            history.append(result(draw(st.sampled_from(["call_lost", "call_0"])), "late"))
        elif kind == "x":
            history += [user(f"twice {number}"), assistant("a"), assistant("b")]
        else:
            history += [draw(_plain("user")), draw(_plain("assistant"))]
    return history


def _without_head(messages: list[JsonObject]) -> list[JsonObject]:
    return messages[head_length(messages) :]


histories: st.SearchStrategy[list[JsonObject]] = (conversations() | any_histories).map(
    _without_head
)
"""What follows the head: no system message leads."""


def _range_payload(history: Sequence[Message], start: int, end: int, merge: bool) -> JsonObject:
    kept = [p for p in range(start, end) if role_of(history[p]) in ("system", "developer")]
    return {
        "format": 1,
        "summary": f"what happened from {start} to {end}",
        "first": None,
        "rules": [],
        "left_out": 0,
        "kept": kept,
        "merge": merge,
        "fence": "=====",
    }


@st.composite
def replacement_sets(
    draw: st.DrawFn, history: Sequence[Message], *, revoked: bool = True
) -> tuple[Replacement, ...]:
    """Replacements of any kind recorded for this history: ranges at unit cuts, edits anywhere."""
    if not history:
        return ()
    pairing = pair(history)
    prints = history_chain(history, pairing)
    cuts = pairing.cuts()
    made: list[Replacement] = []
    for order in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(list(ReplacementKind)))
        if kind in (ReplacementKind.PRUNE, ReplacementKind.OFFLOAD):
            start = draw(st.integers(0, len(history) - 1))
            end = start + 1
        else:
            start, end = sorted(draw(st.sampled_from(cuts)) for _ in range(2))
        words = [part_text(part) for part in parts_of(history[start])] if start < end else []
        if start == end or (kind is ReplacementKind.PRUNE and words[:1] in ([], [None])):
            continue
        payload: JsonObject
        if kind is ReplacementKind.PRUNE:
            payload = {"cuts": [{"part": 0, "head": 1, "tail": 1}]}
        elif kind is ReplacementKind.OFFLOAD:
            image = {"path": [draw(st.integers(0, 2))], "media_type": "image/png"}
            payload = {"parts": [image]}
        else:
            payload = _range_payload(history, start, end, draw(st.booleans()))
        made.append(
            Replacement(
                id=f"{order:032x}",
                order=order,
                kind=kind,
                start=start,
                end=end,
                end_fingerprint=prints[end - 1],
                payload=payload,
                revoked=revoked and draw(st.integers(0, 4)) == 0,
            )
        )
    return tuple(made)


@st.composite
def chunkings(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The same bytes in any chunks, empty ones included."""
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    edges = [0, *places, len(data)]
    return [data[first:last] for first, last in pairwise(edges)]


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
