"""A history read with the help of an earlier one is read as without it."""

import asyncio
import json
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from proxy.anchor_book import AnchorBook
from proxy.core.messages import Message
from proxy.core.ranges import Pairing
from proxy.core.surface import Surface, fold
from proxy.meter import Meter
from proxy.recent import LEAST_MESSAGES, MESSAGE_BYTES, MODELS_COUNTED, Reading, Recent
from proxy.surfaces import Surfaces
from proxy.wire import read_chat
from tests.store.samples import SCOPE
from tests.strategies import JsonObject, histories, user


def reading_of(raw: Sequence[bytes]) -> Reading:
    size_bytes = sum(map(len, raw))
    return Reading((), tuple(raw), size_bytes, Pairing({}, (), ()), (), (), Surface((), (), ()))


def raw_of(*texts: str) -> tuple[bytes, ...]:
    return tuple(json.dumps(user(text)).encode() for text in texts)


def read(surfaces: Surfaces, history: Sequence[Message]) -> Reading:
    request = read_chat(json.dumps({"model": "m", "messages": list(history)}).encode())
    assert request is not None
    shared, reading = asyncio.run(surfaces._read(SCOPE.tenant, request))
    assert shared == request
    shown = [item.message for item in reading.surface.items]
    assert all(a is b for a, b in zip(shown, shared.history, strict=True))
    assert reading.size_bytes == sum(map(len, request.raw_history))
    return replace(reading, mark=None, grew_from=None, settled=0)


def fresh() -> Surfaces:
    # Reading asks no store.
    return Surfaces(None, Meter(threads=1), AnchorBook(), b"k" * 32)  # type: ignore[arg-type]


@settings(max_examples=300)
@given(histories, st.data())
def test_growing_forking_and_shrinking_histories_read_the_same(
    history: list[JsonObject], data: st.DataObject
) -> None:
    """A few user messages first, so that none is too short to be remembered."""
    opening: list[JsonObject] = [user(f"opening {n}") for n in range(LEAST_MESSAGES)]
    history = [*opening, *history]
    cut = data.draw(st.integers(LEAST_MESSAGES, len(history)))
    other = data.draw(st.one_of(st.just(history[cut:]), histories))
    surfaces = fresh()
    for asked in (history[:cut], [*history[:cut], *other], history, history[:cut]):
        made, alone = read(surfaces, asked), read(fresh(), asked)
        assert made == alone
        assert made.surface == fold(asked, made.pairing, ())


def test_only_the_same_tenant_s_bytes_are_recognised() -> None:
    recent = Recent()
    raw = raw_of(*"abcdefghij")
    recent.keep("one", reading_of(raw))
    found = recent.find("one", (*raw, *raw_of("k")))
    assert found is not None
    assert found[1] == len(raw)
    assert recent.find("other", raw) is None
    assert recent.find("one", raw_of(*"abcd")) is None
    assert recent.find("one", raw_of(*"abcXefghij")) is None


def test_the_first_difference_ends_what_is_alike() -> None:
    recent = Recent()
    recent.keep("t", reading_of(raw_of(*"abcdefghij")))
    for texts, alike in (("abcdefgh", 8), ("abcdefghXj", 8), ("abcdefghijk", 10)):
        found = recent.find("t", raw_of(*texts))
        assert found is not None
        assert found[1] == alike


def test_it_is_bounded_in_bytes() -> None:
    recent = Recent(max_bytes=4 * 10 * (40 + MESSAGE_BYTES))
    for name in ("one", "two", "three", "four", "five", "six"):
        recent.keep(name, reading_of(raw_of(*"abcdefghij")))
    kept = [n for n in ("one", "six") if recent.find(n, raw_of(*"abcdefghij")) is not None]
    assert kept == ["six"]
    for name, texts in (("long", ["x" * 1200] * 10), ("many", ["x"] * 40)):
        recent.keep(name, reading_of(raw_of(*texts)))
        assert recent.find(name, raw_of(*texts)) is None


def test_counts_hold_for_what_is_alike_alone() -> None:
    reading = reading_of(raw_of(*"abcdefghij"))
    reading.keep_counts("m", (1, 2, 3, 4))
    assert reading.counts_of_first(3) == {"m": (1, 2, 3)}


def test_however_many_models_are_named_the_counts_of_the_last_few_are_kept() -> None:
    reading = reading_of(raw_of(*"abcdefghij"))
    names = [f"model {n}" for n in range(3 * MODELS_COUNTED)]
    for name in names:
        reading.keep_counts("usual", (1,))
        reading.keep_counts(name, (1,))
        reading.keep_counts(name, (1, 2))
    assert reading.counts == {"usual": (1,)} | dict.fromkeys(names[1 - MODELS_COUNTED :], (1, 2))
