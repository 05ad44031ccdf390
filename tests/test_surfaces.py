"""From a request to a priced surface, true to what the store says."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from proxy.beginnings import Beginnings
from proxy.core.anchors import Sent
from proxy.core.errors import StoreUnavailable
from proxy.core.fingerprints import meaning
from proxy.core.messages import Message
from proxy.core.replacements import NewReplacement, ReplacementKind
from proxy.core.surface import Surface, fold
from proxy.model_rules import ModelRules
from proxy.store.sql import SqlStore
from proxy.surfaces import Surfaces
from proxy.turn import Turn
from tests.fake_provider import completion
from tests.proxied import JsonObject, assistant, system, talk, text_of_tokens, user, walking
from tests.strategies import PIXEL
from tests.turns import BUDGET, Bench, bench, caller, chat, summary_until


def picture(url: str = PIXEL) -> JsonObject:
    return {"type": "image_url", "image_url": {"url": url}}


class TestOpening:
    async def test_a_head_that_changes_every_turn_changes_no_fingerprint(
        self, tmp_path: Path
    ) -> None:
        async with bench(tmp_path) as made:
            monday = await made.turn([system("Monday."), *talk(3, 50)])
            tuesday = await made.turn([system("Tuesday."), *talk(3, 50), assistant("ok")])
        assert tuesday.chain[: len(monday.chain)] == monday.chain

    async def test_another_worker_with_the_same_key_finds_the_same(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as made:
            turn = await made.turn(talk(3, 50))
            await made.stored(turn, summary_until(turn, 4))
            other = Bench(
                made.store,
                made.meter,
                made.anchors,
                Surfaces(made.store, made.meter, made.anchors, b"k" * 32),
            )
            assert (
                (await other.turn(talk(3, 50))).body()
                == (await made.turn(talk(3, 50))).body()
                != turn.body()
            )

    async def test_nothing_is_shared_across_tenants_models_or_upstreams(
        self, tmp_path: Path
    ) -> None:
        async with bench(tmp_path) as made:
            turn = await made.turn(talk(3, 50))
            await made.stored(turn, summary_until(turn, 4))
            assert (await made.turn(talk(3, 50))).surface.replaced
            assert not (await made.turn(talk(3, 50), of=caller("b"))).surface.replaced
            assert not (await made.turn(talk(3, 50), model="other")).surface.replaced

    async def test_an_edit_of_an_old_message_stops_matching(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as made:
            turn = await made.turn(talk(3, 50))
            await made.stored(turn, summary_until(turn, 4))
            edited = [user("Another start."), *talk(3, 50)[1:]]
            assert not (await made.turn(edited)).surface.replaced

    async def test_a_message_seen_before_is_not_hashed_for_meaning_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hashed: list[Message] = []

        def counting(key: bytes, message: Message) -> bytes:
            hashed.append(message)
            return meaning(key, message)

        monkeypatch.setattr("proxy.surfaces.meaning", counting)
        async with bench(tmp_path) as made:
            await made.turn(talk(5, 50))
            first = len(hashed)
            await made.turn([*talk(5, 50), assistant("new")])
        assert first == 11
        assert len(hashed) == 12

    async def test_a_folded_conversation_that_grows_is_folded_as_anew(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Continued from the turn before, until what is recorded changes or reaches the new."""
        whole: list[int] = []

        def counting(history: Sequence[Message], *rest: Any) -> Surface:
            whole.append(len(history))
            return fold(history, *rest)

        monkeypatch.setattr("proxy.surfaces.fold", counting)
        history = [system(), *talk(8, 50)]
        async with bench(tmp_path) as made:
            await made.stored(await made.turn(history), summary_until(await made.turn(history), 6))
            for step in range(5):
                history = [*history, assistant(f"did {step}"), user(f"then {step}")]
                turn = await made.surfaces.price(await made.turn(history))
                folded_whole = len(whole)
                surfaces = Surfaces(made.store, made.meter, made.anchors, b"k" * 32)
                fresh = Bench(made.store, made.meter, made.anchors, surfaces)
                anew = await surfaces.price(await fresh.turn(history))
                assert turn.surface == anew.surface
                assert turn.raw_items == anew.raw_items
                assert turn.body() == anew.body()
                assert (turn.priced, turn.counted) == (anew.priced, anew.counted)
                assert turn.body_bytes == anew.body_bytes
                if step == 2:
                    await made.stored(turn, summary_until(turn, 10))
                whole[folded_whole:] = []
        assert whole == [19, 25]

    async def test_without_a_store_what_is_remembered_applies_and_is_marked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def gone(*arguments: Any) -> Any:
            raise StoreUnavailable("gone")

        async with bench(tmp_path) as made:
            turn = await made.turn(talk(3, 50))
            await made.stored(turn, summary_until(turn, 4))
            await made.turn(talk(3, 50))
            monkeypatch.setattr(SqlStore, "replacements", gone)
            degraded = await made.turn(talk(3, 50))
            empty = await made.turn([system()])
        assert degraded.degraded == "store"
        assert degraded.surface.replaced
        assert empty.degraded is None


class TestPricing:
    async def test_a_price_is_the_sum_of_its_parts(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as made:
            turn = await made.surfaces.price(await made.turn([system(), *talk(3, 50)]))
            whole = made.meter.count_request(json.loads(turn.request.body), "gpt-4o")
        view = turn.priced
        assert view.total_tokens == view.fixed_tokens + sum(view.item_tokens) == whole
        assert view.item_tokens == view.history_tokens

    async def test_the_scale_that_was_learned_holds_for_every_part(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as made:
            plain = await made.surfaces.price(await made.turn(talk(3, 50)))
            other = Sent(plain.scope, (), (), counted_tokens=4000)
            made.anchors.learn_from_usage(other, {"prompt_tokens": 6000})
            scaled = await made.surfaces.price(plain)
        assert scaled.priced.total_tokens == pytest.approx(plain.priced.total_tokens * 1.5, abs=1)
        assert scaled.counted == plain.counted

    async def test_a_refolded_turn_is_priced_again(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as made:
            turn = await made.surfaces.price(await made.turn(talk(3, 50)))
            await made.stored(turn, summary_until(turn, 4))
            folded = await made.surfaces.refresh(turn)
        assert folded.priced.total_tokens < turn.priced.total_tokens
        assert folded.priced.history_tokens == turn.priced.history_tokens

    async def test_the_bound_is_never_below_the_count(self, tmp_path: Path) -> None:
        shapes: Sequence[list[JsonObject]] = (
            talk(3, 50),
            [user("继续" * 50), assistant("\U0001f600" * 30)],
            [user([{"type": "text", "text": "Look."}, picture()])],
            [user([picture("https://example.com/a.png")])],
        )
        async with bench(tmp_path) as made:
            for messages in shapes:
                turn = await made.surfaces.price(await made.turn(messages))
                assert made.surfaces.bound(turn) >= turn.priced.total_tokens

    async def test_what_the_client_sent_has_a_bound_of_its_own(self, tmp_path: Path) -> None:
        messages = [user([{"type": "text", "text": "Look."}, picture()]), *talk(3, 50)]
        async with bench(tmp_path) as made:
            turn = await made.surfaces.price(await made.turn(messages))
            assert made.surfaces.bound_as_sent(turn) is None
            bound, client_tokens = made.surfaces.bound(turn), turn.priced.total_tokens
            await made.stored(turn, summary_until(turn, 5))
            folded = await made.surfaces.refresh(turn)
        assert made.surfaces.bound_as_sent(folded) == bound >= client_tokens
        assert made.surfaces.bound(folded) < bound


class TestImages:
    async def test_images_of_users_and_tools_are_found_with_size_and_price(
        self, tmp_path: Path
    ) -> None:
        messages = [
            user([{"type": "text", "text": "Look."}, picture()]),
            {"role": "assistant", "content": [picture()]},
            {"role": "tool", "tool_call_id": "c", "content": [picture()]},
        ]
        async with bench(tmp_path) as made:
            found = made.surfaces.images(await made.turn(messages))
        assert [(image.position, image.path) for image in found] == [(0, (1,)), (2, (0,))]
        assert {(i.media_type, i.width_px, i.height_px) for i in found} == {("image/png", 1, 1)}
        assert all(image.tokens > 0 and image.size_bytes > 0 for image in found)

    async def test_an_image_that_was_offloaded_or_summarised_is_gone(self, tmp_path: Path) -> None:
        messages = [user([picture()]), assistant("ok"), user([picture()])]
        async with bench(tmp_path) as made:
            turn = await made.turn(messages)
            part = {"path": [0], "media_type": "image/png", "width_px": 1, "height_px": 1}
            offload = NewReplacement(
                ReplacementKind.OFFLOAD, 2, 3, turn.chain[2], {"parts": [part]}
            )
            await made.stored(turn, offload)
            left = made.surfaces.images(await made.turn(messages))
            assert [image.position for image in left] == [0]
            await made.stored(await made.turn(messages), summary_until(turn, 2))
            assert made.surfaces.images(await made.turn(messages)) == ()


async def test_images_are_found_when_the_reader_remembers_another_copy_of_the_history(
    tmp_path: Path,
) -> None:
    """A new head makes the body be read whole; what is read on from that has its messages."""
    pictured = [user([{"type": "text", "text": "Look."}, picture()])]
    first = [*pictured, *talk(6, 300)]
    second = [*first, assistant("one"), user("two")]
    third = [*second, assistant("three"), user("four")]
    beginnings = Beginnings()

    async with bench(tmp_path) as made:

        async def opened(head: str, history: Sequence[JsonObject]) -> Turn:
            body = chat([system(head), *history]).body
            request = await beginnings.read("a", body, "")
            assert request is not None
            rules = ModelRules(budget=BUDGET)
            return await made.surfaces.open(request, caller("a"), rules)

        await opened("Monday.", first)
        await opened("Tuesday.", second)
        turn = await opened("Tuesday.", third)
        assert [image.position for image in made.surfaces.images(turn)] == [0]
        assert all(
            item.message is message
            for item, message in zip(turn.surface.items, turn.request.history, strict=True)
        )


def test_r006_the_size_is_that_of_this_request_whatever_was_reported_before() -> None:
    """A conversation of 120000 reported tokens leaves a new small one alone."""
    with walking(128_000) as walk:
        told = json.dumps(completion("ok", usage={"prompt_tokens": 120_000})).encode()
        walk.provider.next(body=told)
        walk.ask(talk(4, 300))
        small = walk.ask([user("a"), assistant("b"), user(text_of_tokens(400, "c"))])
    assert small.actions == set()
    assert small.summaries == ()
