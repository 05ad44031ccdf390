"""Images through the whole application, over real sockets: priced; offloaded when a provider says
no and when they are what is over; decisions that stay; and what is none of our business."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from tests.journeys.picky_provider import (
    PickyProvider,
    Refusal,
    Shown,
    at_most,
    image_urls,
    no_images,
    png,
    said,
    showing,
)
from tests.play import recorded, recorded_names, turn_ends
from tests.proxied import (
    Answer,
    JsonObject,
    Walk,
    assistant,
    calling,
    raw_messages,
    result,
    talk,
    text_of_tokens,
    user,
    walking,
)
from tests.strict_provider import Call, StrictProvider, is_replay

PLACEHOLDER = "has been removed to save room"
MAX_IMAGE_REPLAYS = 4


def messages_of(call: Call) -> list[bytes]:
    """The raw JSON of every message of a call."""
    fields = msgspec.json.decode(call.seen.body, type=dict[str, msgspec.Raw])
    return [bytes(raw) for raw in msgspec.json.decode(fields["messages"], type=list[msgspec.Raw])]


def placeholders(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The texts that stand where images were."""
    return [
        part["text"]
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if part.get("type") == "text" and PLACEHOLDER in part["text"]
    ]


def same_beginning(before: Call, after: Call) -> float:
    """Which share of the messages forwarded before the later call begins with, by bytes."""
    earlier, later = raw_messages(before), raw_messages(after)
    pairs = zip(earlier, later, strict=False)
    common = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(earlier), len(later)))
    return common / len(earlier)


def test_r019_a_3_mb_image_in_a_small_chat_costs_its_price_and_passes_untouched() -> None:
    """R019. Point 2 of issue 4."""
    image = png(1920, 1080, size_bytes=3_000_000)
    body = json.dumps({"messages": [showing("what is this", image)], "model": "gpt-4o", "x": 1.0})
    with walking(128_000) as walk:
        answer = walk.send(body.encode())
        sent = walk.provider.calls[-1].seen.body
    assert answer.reply.status_code == 200
    assert not answer.actions
    assert len(body) > 4_000_000
    assert int(answer.facts["tokens"].lstrip("<=")) < 2000
    assert sent == body.encode()


class TestScreenshots:
    """Ten screenshots over forty turns, a provider that takes five."""

    LIMIT = 5
    TURNS = 40

    def history(self, turns: int) -> list[JsonObject]:
        """A screenshot in every fourth turn, from the first on."""
        messages: list[JsonObject] = []
        for n in range(turns):
            if n % 4 == 0:
                image = png(1280, 800, size_bytes=20_000, seed=n)
                messages.append(showing(f"Screenshot {n}: what now?", image))
            else:
                messages.append(user(f"And step {n}?"))
            messages.append(assistant(f"Do this, number {n}."))
        return messages[:-1]

    def test_every_turn_is_answered_and_no_decision_changes(self, tmp_path: Path) -> None:
        provider = PickyProvider(at_most(self.LIMIT))
        answers: list[Answer] = []
        for turns in (range(1, 26), range(26, self.TURNS + 1)):  # a restart between them
            with walking(128_000, provider=provider, folder=tmp_path) as walk:
                for turn in turns:
                    answers.append(walk.ask(self.history(turn)))
                    self.checked(turn, answers)
        assert len(answers) == self.TURNS
        assert len(provider.refused) == 10 - self.LIMIT
        kept = [same_beginning(a.main[-1], b.main[-1]) for a, b in itertools.pairwise(answers)]
        assert len([share for share in kept if share < 1]) == 10 - self.LIMIT

    def checked(self, turn: int, answers: Sequence[Answer]) -> None:
        answer, history = answers[-1], self.history(turn)
        assert answer.reply.status_code == 200
        shown = image_urls(history)
        forwarded = messages_of(answer.main[-1])
        # The newest five, and a placeholder for each of the others in its place.
        assert image_urls(answer.forwarded) == shown[-self.LIMIT :]
        assert len(placeholders(answer.forwarded)) == max(len(shown) - self.LIMIT, 0)
        assert len(forwarded) == len(history)
        newest = max(n for n, message in enumerate(history) if image_urls([message]))
        assert forwarded[newest] == json.dumps(history[newest]).encode()
        is_new = newest == len(history) - 1 and len(shown) > self.LIMIT
        assert len(answer.main) == 1 + is_new
        if not is_new and len(answers) > 1:
            assert same_beginning(answers[-2].main[-1], answer.main[-1]) == 1

    def test_another_tenant_starts_with_all_its_images(self) -> None:
        history = self.history(21)
        with walking(128_000, provider=PickyProvider(at_most(self.LIMIT))) as walk:
            for key in ("Bearer a", "Bearer b"):
                answer = walk.ask(history, headers={"authorization": key})
                assert len(answer.main) == 2
                assert len(image_urls(answer.main[0].body["messages"])) == 6


def limit_of_bytes_each(limit: int, words: str) -> Any:
    def judge(shown: Shown) -> Refusal | None:
        largest = max(shown.sizes_bytes, default=0)
        return said(words.format(largest=largest, limit=limit)) if largest > limit else None

    return judge


def limit_of_bytes_together(limit: int, words: str, status: int = 413) -> Any:
    def judge(shown: Shown) -> Refusal | None:
        size = len(shown.body)
        return said(words.format(size=size, limit=limit), status=status) if size > limit else None

    return judge


def broken(url: str) -> Any:
    def judge(shown: Shown) -> Refusal | None:
        return said("Could not process image") if url in shown.urls else None

    return judge


def wider_than(limit_px: int, *wide: str) -> Any:
    def judge(shown: Shown) -> Refusal | None:
        words = (
            "messages.0.content.1.image.source.base64.data: At least one of the image dimensions"
            f" exceed max allowed size: {limit_px} pixels"
        )
        return said(words) if set(wide) & set(shown.urls) else None

    return judge


WIDE = [png(9000, 700, seed=90), png(700, 8001, seed=91)]
PICTURES = [png(1024, 768, size_bytes=30_000, seed=n) for n in range(12)]
LARGE = [png(1024, 768, size_bytes=90_000, seed=80 + n) for n in range(2)]


def gallery(urls: Sequence[str], last: JsonObject | None = None) -> list[JsonObject]:
    """A user message for each image, the assistant between them."""
    messages: list[JsonObject] = []
    for n, url in enumerate(urls):
        messages += [showing(f"picture {n}", url), assistant(f"I see picture {n}.")]
    return [*messages, last] if last is not None else messages[:-1]


CASES: dict[str, tuple[Any, list[str], int, int]] = {
    # The judge, the images, replays, images left.
    "a count": (at_most(3), PICTURES, 1, 3),
    "a count and a limit": (
        at_most(
            4,
            "The model returned the following errors: too many images and documents: "
            "{count} + 0 > {limit}",
        ),
        PICTURES,
        1,
        4,
    ),
    "a count of one": (at_most(1, "Too many images in request. Max is {limit}."), PICTURES, 1, 1),
    "a size of one image": (
        limit_of_bytes_each(
            52_428,
            "messages.1.content.1.image.source.base64.data: image exceeds 5 MB maximum:"
            " {largest} bytes > {limit} bytes",
        ),
        [*PICTURES[:3], LARGE[0], *PICTURES[3:6], LARGE[1]],
        1,
        6,
    ),
    "a size of all together": (
        limit_of_bytes_together(200_000, "Request payload size exceeds the limit: {limit} bytes."),
        PICTURES,
        1,
        4,
    ),
    "a size of all together, with status 400": (
        limit_of_bytes_together(
            200_000, "The request body is too large: {size} bytes > {limit} bytes.", 400
        ),
        PICTURES,
        1,
        4,
    ),
    "a body that is too large, no number": (
        limit_of_bytes_together(200_000, "Payload Too Large"),
        PICTURES,
        2,
        3,
    ),
    "a size in pixels": (wider_than(8000, *WIDE), [PICTURES[0], *WIDE, *PICTURES[1:4]], 1, 4),
    "a size in pixels, of the newest": (
        wider_than(8000, WIDE[0]),
        [*PICTURES[:4], WIDE[0]],
        1,
        4,
    ),
    "no number": (at_most(2, "Too many images in the request."), PICTURES, 3, 1),
    "no number, fifteen images": (
        at_most(0, "Too many images in the request."),
        [*PICTURES, *LARGE, WIDE[0]],
        4,
        0,
    ),
    "a broken image, the oldest": (broken(PICTURES[0]), PICTURES[:4], 1, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_is_recovered_whatever_it_states(name: str) -> None:
    """Point 3 of issue 4: within four replays."""
    judge, urls, replays, left = CASES[name]
    history = gallery(urls)
    with walking(128_000, provider=PickyProvider(judge)) as walk:
        answer = walk.ask(history)
        assert answer.reply.status_code == 200
        assert answer.actions == {"offload", "replay"}
        assert len(answer.main) == 1 + replays <= 1 + MAX_IMAGE_REPLAYS
        assert len(image_urls(answer.forwarded)) == left
        assert not answer.summaries
        # Whatever was decided holds on the next turn: no refusal, one call.
        grown = [*history, assistant("Seen."), user("And now?")]
        again = walk.ask(grown)
    assert len(again.main) == 1
    assert same_beginning(answer.main[-1], again.main[-1]) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_that_no_offload_mends_is_the_providers_first_error(stream: bool) -> None:
    def never(shown: Shown) -> Refusal | None:
        return said(f"Too many images in the request ({len(shown.urls)} of them).")

    provider = PickyProvider(never)
    with walking(128_000, provider=provider) as walk:
        answer = walk.ask(gallery(PICTURES), stream=stream)
    assert answer.reply.status_code == 400
    assert answer.reply.content == provider.calls[0].refusal
    assert len(answer.main) <= 1 + MAX_IMAGE_REPLAYS


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (413, "image exceeds 5 MB maximum"),
        (413, "Request Entity Too Large"),
        (400, "The request body is too large: 99999999 bytes > 10000 bytes."),
        (400, "At most 0 image(s) may be provided in one request."),
    ],
)
def test_r050_without_an_image_in_the_request_such_an_error_passes_verbatim(
    status: int, message: str
) -> None:
    """R050, and the last sentence of design section 11."""
    refusal = said(message, status=status)
    with walking(128_000, provider=PickyProvider(lambda shown: refusal)) as walk:
        answer = walk.ask(talk(3, 50))
    assert answer.reply.status_code == status
    assert answer.reply.content == refusal[1]
    assert (len(answer.main), len(answer.summaries)) == (1, 0)


def test_r050_with_images_the_oldest_are_offloaded_and_the_request_replayed() -> None:
    """R050."""

    def judge(shown: Shown) -> Refusal | None:
        return said("image exceeds 5 MB maximum", status=413) if PICTURES[0] in shown.urls else None

    with walking(128_000, provider=PickyProvider(judge)) as walk:
        answer = walk.ask(gallery(PICTURES[:4]))
    assert answer.reply.status_code == 200
    assert image_urls(answer.forwarded) == PICTURES[2:4]
    assert (len(answer.main), len(answer.summaries)) == (2, 0)


class TestTextOnly:
    """Point 4 of issue 4: a model that takes no images."""

    HISTORY: ClassVar = gallery(PICTURES[:3])
    OTHER: ClassVar = [user("Hi."), assistant("Hi."), showing("And this?", PICTURES[5])]

    def test_all_images_leave_the_newest_too_and_the_next_conversation_costs_no_refusal(
        self, tmp_path: Path
    ) -> None:
        provider = PickyProvider(no_images)
        with walking(128_000, provider=provider, folder=tmp_path) as walk:
            first = walk.ask(self.HISTORY)
            self.answered_without_images(first, refusals=1, images=3)
            self.answered_without_images(walk.ask(self.OTHER), refusals=0, images=1)
        with walking(128_000, provider=provider, folder=tmp_path) as walk:  # after a restart
            fresh = [showing("Something else.", PICTURES[7])]
            self.answered_without_images(walk.ask(fresh), refusals=0, images=1)

    def test_it_holds_for_this_tenant_and_this_model_alone(self) -> None:
        provider = PickyProvider(no_images)
        with walking(128_000, provider=provider) as walk:
            walk.ask(self.HISTORY, headers={"authorization": "Bearer a"})
            other_tenant = walk.ask(self.OTHER, headers={"authorization": "Bearer b"})
            other_model = walk.ask(
                self.OTHER, headers={"authorization": "Bearer a"}, model="gpt-4.1"
            )
        for answer in (other_tenant, other_model):
            self.answered_without_images(answer, refusals=1, images=1)

    @staticmethod
    def answered_without_images(answer: Answer, *, refusals: int, images: int) -> None:
        assert answer.reply.status_code == 200
        assert len(answer.main) == 1 + refusals
        assert not image_urls(answer.forwarded)
        assert len(placeholders(answer.forwarded)) == images
        assert "offload" in answer.actions


@pytest.mark.parametrize("judge", [at_most(2), at_most(1), no_images], ids=["two", "one", "none"])
@pytest.mark.parametrize("name", ["browser-screenshots", "fruit-images"])
def test_recorded_conversations_are_answered_turn_by_turn(name: str, judge: Any) -> None:
    """Point 5 of issue 4."""
    if name not in recorded_names():
        pytest.skip("the recorded conversations are not beside this checkout")
    request = recorded(name)["request"]
    messages = request["messages"]
    extra = {key: value for key, value in request.items() if key != "messages"}
    provider = PickyProvider(judge)
    before = 0
    with walking(128_000, provider=provider) as walk:
        for end in turn_ends(messages):
            answer = walk.ask(messages[:end], **extra)
            assert answer.reply.status_code == 200
            shown = image_urls(messages[:end])
            forwarded = image_urls(answer.forwarded)
            assert forwarded == shown[len(shown) - len(forwarded) :]
            assert len(answer.main) - 1 <= len(shown) - before
            assert len(placeholders(answer.forwarded)) == len(shown) - len(forwarded)
            if judge is not no_images and len(shown) == before + 1:
                assert forwarded[-1:] == shown[-1:]
            before = len(shown)
        assert before == {"browser-screenshots": 7, "fruit-images": 2}[name]


class TestPlaceholders:
    def test_r142_the_newest_image_stays_and_a_text_stands_in_the_place_of_each_other(self) -> None:
        """R142."""
        old = showing("before", PICTURES[0])
        old["content"].append({"type": "text", "text": "after"})
        tool = result("c1", [{"type": "image_url", "image_url": {"url": PICTURES[1]}}])
        newest = showing("what is this?", PICTURES[2])
        history = [old, calling("c1"), tool, assistant("Well."), newest]
        with walking(128_000, provider=PickyProvider(at_most(1))) as walk:
            answer = walk.ask(history)
        raw = messages_of(answer.main[-1])
        assert raw[4] == json.dumps(newest).encode()
        first, result_of_tool = answer.forwarded[0], answer.forwarded[2]
        assert [part["type"] for part in first["content"]] == ["text", "text", "text"]
        assert [part["text"] for part in first["content"]][::2] == ["before", "after"]
        assert {k: v for k, v in result_of_tool.items() if k != "content"} == {
            k: v for k, v in tool.items() if k != "content"
        }
        for text in (first["content"][1]["text"], result_of_tool["content"][0]["text"]):
            assert "image/png, 1024 x 768 pixels" in text
            assert "received earlier" in text
            assert "no longer visible" in text

    def test_r144_a_placeholder_holds_nothing_that_a_model_could_take_for_a_name(self) -> None:
        """R144: no path, no id, no number but the pixel size; the same for equal images."""
        with walking(128_000, provider=PickyProvider(at_most(0))) as walk:
            answer = walk.ask(gallery(PICTURES[:3]))
        texts = placeholders(answer.forwarded)
        assert len(texts) == 3
        assert len(set(texts)) == 1
        plain = texts[0].replace("image/png", "").replace("1024 x 768", "")
        assert not set(plain) & set("/\\#_0123456789<>{}")

    def test_a_remote_url_leaves_like_any_image_and_stands_in_no_placeholder(self) -> None:
        remote = "https://files.example/secret-name.png?sig=1"
        with walking(128_000, provider=PickyProvider(no_images)) as walk:
            answer = walk.ask([showing("look", remote)])
        assert "secret-name" not in answer.main[-1].seen.body.decode()
        assert len(placeholders(answer.forwarded)) == 1


class TestPressure:
    """Images are what is over: no summary is needed, and none is asked for."""

    # 1024 x 1024 costs gpt-4o 765 tokens; T is 8000 of 10000.
    SQUARES: ClassVar = [png(1024, 1024, seed=n) for n in range(14)]

    def test_the_oldest_images_go_until_there_is_room_and_nothing_else_changes(self) -> None:
        history = gallery(self.SQUARES)
        with walking(10_000, provider=StrictProvider(10_000)) as walk:
            answer = walk.ask(history)
            again = walk.ask([*history, assistant("Seen."), user("And now?")])
        assert answer.trigger == 8000
        assert answer.actions == {"offload"}
        assert not answer.summaries
        assert int(answer.facts["tokens"]) <= 7200
        left = image_urls(answer.forwarded)
        assert left == self.SQUARES[-len(left) :]
        assert len(left) == 8
        assert messages_of(answer.main[0])[-1] == json.dumps(history[-1]).encode()
        assert not again.actions
        assert same_beginning(answer.main[0], again.main[0]) == 1

    def test_images_that_are_not_enough_stay_for_the_summary(self) -> None:
        history = [*gallery(self.SQUARES[:2], user("Now text.")), assistant("Yes?"), *talk(8, 500)]
        with walking(10_000) as walk:
            answer = walk.ask(history)
        assert answer.actions == {"summary"}
        assert [len(image_urls(call.body["messages"])) for call in answer.summaries] == [2]

    def test_images_of_an_open_run_go_before_the_envelope_is_given_up(self) -> None:
        """The newest unit alone is over the window, and its images can leave."""
        shots = [
            result(f"c{n}", [{"type": "image_url", "image_url": {"url": url}}])
            for n, url in enumerate(self.SQUARES)
        ]
        history = [user("Look around."), calling(*(f"c{n}" for n in range(14))), *shots]
        with walking(10_000, provider=StrictProvider(10_000)) as walk:
            answer = walk.ask(history)
        assert answer.reply.status_code == 200
        assert answer.actions == {"offload"}
        assert len(answer.main) == 1
        assert image_urls(answer.forwarded) == self.SQUARES[-len(image_urls(answer.forwarded)) :]

    def test_the_newest_users_images_stay_whatever_they_cost(self) -> None:
        with walking(10_000, provider=StrictProvider(20_000)) as walk:
            answer = walk.ask([showing("Compare them.", *self.SQUARES)])
        assert answer.reply.status_code == 200
        assert len(image_urls(answer.forwarded)) == 14


class TestSummaryCalls:
    """The summary call itself is refused for the images of its range."""

    def history(self, images: int, rounds: int = 7) -> list[JsonObject]:
        """Over T for its text; in low detail an image costs 85 tokens."""
        shown = gallery(PICTURES[:images], user("Now text."))
        for message in shown:
            if image_urls([message]):
                message["content"][1]["image_url"]["detail"] = "low"
        return [*shown, assistant("Yes?"), *talk(rounds, 560)]

    def test_the_range_is_asked_again_without_as_many_images_as_the_refusal_states(self) -> None:
        provider = PickyProvider(at_most(2), 20_000)
        with walking(10_000, provider=provider) as walk:
            answer = walk.ask(self.history(5))
            revoked = self.generations(walk, answer)
        assert answer.reply.status_code == 200
        assert answer.actions == {"offload", "summary"}
        refused, asked_again = answer.summaries
        assert is_replay(refused.body)
        assert is_replay(asked_again.body)
        assert image_urls(refused.body["messages"]) == PICTURES[:5]
        assert image_urls(asked_again.body["messages"]) == PICTURES[3:5]
        assert len(placeholders(asked_again.body["messages"])) == 3
        assert len(answer.main) == 1
        # Three offloads and the summary are recorded.
        assert revoked == 4

    def test_without_a_number_the_range_is_asked_again_without_its_images(self) -> None:
        judge = at_most(1, "Too many images in the request.")
        with walking(10_000, provider=PickyProvider(judge, 20_000)) as walk:
            answer = walk.ask(self.history(5))
        assert answer.actions == {"offload", "summary"}
        assert [len(image_urls(c.body["messages"])) for c in answer.summaries] == [5, 0]

    def test_a_model_without_vision_is_remembered_from_its_summary_call(self) -> None:
        newest = showing("And this?", PICTURES[7])
        with walking(10_000, provider=PickyProvider(no_images, 20_000)) as walk:
            answer = walk.ask([*self.history(3)[:-1], newest])
            other = walk.ask([showing("Another conversation.", PICTURES[8])])
        assert answer.reply.status_code == 200
        assert [len(image_urls(c.body["messages"])) for c in answer.summaries] == [3, 0]
        assert len(answer.main) == 1
        assert not image_urls(answer.forwarded)
        assert len(other.main) == 1
        assert not image_urls(other.forwarded)

    def test_a_413_without_images_in_the_range_is_answered_by_a_transcript(self) -> None:
        def judge(shown: Shown) -> Refusal | None:
            return (
                said("Request Entity Too Large", status=413) if b'"tools"' in shown.body else None
            )

        tool = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
        with walking(10_000, provider=PickyProvider(judge, 20_000)) as walk:
            answer = walk.ask(self.history(0, rounds=8), tools=[tool])
        replays = [is_replay(call.body) for call in answer.summaries]
        assert replays[:2] == [True, False]
        assert sum(replays) == 1
        assert "summary" in answer.actions
        assert "offload" not in answer.actions

    @staticmethod
    def generations(walk: Walk, answer: Answer) -> int:
        return int(answer.facts["generation"])


class TestR072:
    """R072: four images of 2 MB in what is summarised."""

    HISTORY: ClassVar = [
        *gallery([png(1024, 768, size_bytes=2_000_000, seed=n) for n in range(4)], user("Text.")),
        assistant("Yes?"),
        *talk(6, 700),
    ]

    def test_r072_a_transcript_is_small_and_holds_no_data_url(self) -> None:
        with walking(10_000, compaction={"summary_mode": "transcript"}) as walk:
            answer = walk.ask(self.HISTORY)
        (call,) = answer.summaries
        assert not is_replay(call.body)
        assert len(call.seen.body) < 1_000_000
        assert b"data:" not in call.seen.body
        assert b"base64" not in call.seen.body

    def test_r072_a_replay_holds_the_messages_as_last_sent(self) -> None:
        with walking(10_000, provider=PickyProvider(at_most(2), 20_000)) as walk:
            before = walk.ask(self.HISTORY[:7])
            answer = walk.ask(self.HISTORY)
        (call,) = answer.summaries
        assert is_replay(call.body)
        assert len(placeholders(call.body["messages"])) == 2
        assert messages_of(call)[:7] == messages_of(before.main[-1])


def test_r141_results_before_and_after_a_pruned_one_are_pruned_and_it_is_not() -> None:
    """R141: the client sends back a result that already holds a notice."""
    long = [text_of_tokens(3000, f"file {n}") for n in range(5)]
    history: list[JsonObject] = [user("Read.")]
    for n, text in enumerate(long):
        history += [calling(f"c{n}"), result(f"c{n}", text)]
    history += [assistant("Read."), user("Go on.")]
    with walking(12_000) as walk:
        first = walk.ask(history)
        notice = first.forwarded[4]
        history[4] = notice
        again = walk.ask(history)
    assert first.actions == again.actions == {"prune"}
    assert again.forwarded[4] == notice
    for position in (2, 6, 8, 10):
        content = again.forwarded[position]["content"]
        assert "characters removed from this tool result" in content
        assert len(content) < 6000


def test_every_other_field_stays_byte_for_byte_when_images_leave() -> None:
    """A chat whose images are offloaded keeps every other field byte for byte."""
    body = (
        b'{"n": 1.0, "messages": [%b], "seed": 123456789012345678901234567890, "model": "gpt-4o",'
        b' "x": {"b":1,"a":[]}}'
    ) % b", ".join(json.dumps(m).encode() for m in gallery(PICTURES[:3]))
    with walking(128_000, provider=PickyProvider(at_most(2))) as walk:
        answer = walk.send(body)
    sent = msgspec.json.decode(answer.main[-1].seen.body, type=dict[str, msgspec.Raw])
    asked = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    assert list(sent) == list(asked)
    assert all(bytes(sent[k]) == bytes(asked[k]) for k in asked if k != "messages")
