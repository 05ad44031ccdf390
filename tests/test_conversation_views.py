"""The JSON that callers and the page read: gauges, generations, what each item of a surface is."""

from typing import Any

import pytest

from proxy.conversation_views import context_of, event_json, steps_json, surface_json
from proxy.core.generations import Revocation, steps
from proxy.core.messages import Message
from proxy.core.ranges import pair
from proxy.core.replacements import Replacement, ReplacementKind
from proxy.core.surface import Surface, fold
from proxy.store.store import Event, EventKind

FRAME: dict[str, Any] = {
    "first": None,
    "rules": [],
    "left_out": 0,
    "kept": [],
    "merge": False,
    "fence": "=====",
    "summary": "so far",
}
HISTORY: tuple[Message, ...] = tuple(
    {"role": "user" if n % 2 == 0 else "assistant", "content": f"message {n}" * 9} for n in range(6)
)


def replacement(kind: str, start: int, end: int, **payload: Any) -> Replacement:
    name = f"{kind}{start}"
    return Replacement(name, start, ReplacementKind(kind), start, end, b"", payload)


def surface(*applied: Replacement) -> Surface:
    return fold(HISTORY, pair(HISTORY), applied)


@pytest.mark.parametrize(
    ("gauge", "percentage"),
    [
        ({"tokens": 500, "window_tokens": 8000}, 6.2),
        ({"tokens": 8800, "window_tokens": 8000}, 110.0),
        ({"tokens": 500, "window_tokens": None}, None),
        ({}, None),
    ],
)
def test_a_gauge_has_one_decimal_or_nothing(gauge: Any, percentage: float | None) -> None:
    assert context_of(gauge)["percentage"] == percentage


def kinds(shown: Surface) -> list[tuple[str, int, int]]:
    items = surface_json(shown, range(len(shown.items)), [1] * len(shown.items))
    return [(item["kind"], item["start"], item["end"]) for item in items]


def test_every_item_says_what_it_is_and_where_it_stands() -> None:
    summary = replacement("summary", 0, 2, **{**FRAME, "kept": [1]})
    prune = replacement("prune", 3, 4, cuts=[{"part": 0, "head": 3, "tail": 3}])
    assert kinds(surface(summary, prune)) == [
        ("summary", 0, 2),
        ("kept", 0, 2),
        ("sent", 2, 3),
        ("prune", 3, 4),
        ("sent", 4, 5),
        ("sent", 5, 6),
    ]
    merged = replacement("summary", 0, 2, **{**FRAME, "merge": True})
    assert kinds(surface(merged))[0][0] == "merged"


def test_a_part_of_a_surface_keeps_its_places() -> None:
    shown = surface_json(surface(), range(2, 4), [7, 8])
    assert [(i["index"], i["position"], i["tokens"]) for i in shown] == [(2, 2, 7), (3, 3, 8)]


def test_a_revocation_is_told_with_what_it_took_back() -> None:
    made = Replacement("x", 4, ReplacementKind.DIGEST, 0, 2, b"", {}, revoked=True)
    told = steps_json(steps([made], {"x": Revocation("x", 1, 4)}))
    assert [(t["generation"], t["kind"], t["revoked_by"]) for t in told] == [
        (1, "digest", 2),
        (2, "revoke", None),
    ]


def test_what_every_event_has_is_never_hidden_by_what_it_tells() -> None:
    event = Event("t", "c", EventKind.OVERFLOW, 2.0, {"kind": "other", "n": 1}, "id", 5)
    assert event_json(event) == {
        "n": 1,
        "order": 5,
        "conversation_id": "c",
        "kind": "overflow",
        "time": 2.0,
    }
