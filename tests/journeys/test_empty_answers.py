"""Answers that succeed and say nothing because the prompt filled the window, and answers that only
look so. After known good nothing is replayed."""

import pytest

from tests.fake_provider import stream_event
from tests.journeys.refusing_provider import (
    EVENTS,
    Refuse,
    Refused,
    RefusingProvider,
    finished,
    finished_stream,
)
from tests.journeys.test_overflow import LONG, TRUE, answer_of
from tests.proxied import walking

# By our count LONG stays below the trigger; the provider counts more.
BELIEVED = 5600
EXCEEDED = "model_context_window_exceeded"
FULL = {"prompt_tokens": BELIEVED, "completion_tokens": 0, "total_tokens": BELIEVED}
ALMOST = {**FULL, "prompt_tokens": BELIEVED * 99 // 100}
HALF = {**FULL, "prompt_tokens": BELIEVED // 2}
MADE = {**FULL, "completion_tokens": 7}
NO_PROMPT = {"completion_tokens": 0}

OVERFLOWS = [
    (finished(EXCEEDED, None), False),
    (finished(EXCEEDED, HALF), False),
    (finished("length", FULL), False),
    (finished("length", ALMOST), False),
    (finished_stream(EXCEEDED, None), True),
    (finished_stream(EXCEEDED, FULL), True),
    (finished_stream("length", FULL), True),
    (finished_stream("length", ALMOST), True),
]
UNKNOWN_WINDOW = [
    (finished("length", None), False),
    (finished("length", HALF), False),
    (finished_stream("length", None), True),
    (finished_stream("length", HALF), True),
    (finished_stream("length", NO_PROMPT), True),
]
ANSWERS = [
    (finished("length", MADE), False),
    (finished("length", HALF), False),
    (finished("length", None), False),
    (finished("length", FULL, "so far"), False),
    (finished(EXCEEDED, FULL, "so far"), False),
    (finished_stream("length", MADE), True),
    (finished_stream("length", HALF), True),
    (finished_stream("length", None), True),
    (finished_stream("length", FULL, "so far"), True),
    (finished_stream(EXCEEDED, FULL, "so far"), True),
]


@pytest.mark.parametrize(("refuse", "stream"), OVERFLOWS)
def test_an_empty_answer_for_a_full_window_is_recovered(refuse: Refuse, stream: bool) -> None:
    with walking(BELIEVED, provider=RefusingProvider(TRUE, refuse)) as walk:
        answer = walk.ask(LONG, stream=stream)
        assert answer_of(answer.reply) == "It is done, as you asked."
        assert (len(answer.main), len(answer.summaries)) == (2, 1)
        assert answer.main[1].tokens < TRUE


@pytest.mark.parametrize(("refuse", "stream"), UNKNOWN_WINDOW)
def test_without_a_known_window_an_empty_length_stop_is_enough(
    refuse: Refuse, stream: bool
) -> None:
    with walking(None, provider=RefusingProvider(TRUE, refuse)) as walk:
        answer = walk.ask(LONG, stream=stream, model="nobody-knows")
        assert answer_of(answer.reply) == "It is done, as you asked."
        assert (len(answer.main), len(answer.summaries)) == (2, 1)


@pytest.mark.parametrize(("refuse", "stream"), ANSWERS)
def test_what_has_output_or_room_left_is_the_answer(refuse: Refuse, stream: bool) -> None:
    provider = RefusingProvider(TRUE, refuse)
    with walking(BELIEVED, provider=provider) as walk:
        answer = walk.ask(LONG, stream=stream)
        assert answer.reply.content == provider.refused[0].body
        assert (len(answer.main), len(answer.summaries)) == (1, 0)


def test_an_empty_answer_in_vain_is_shown_and_teaches_nothing() -> None:
    """Its usage is about the request that it answers, not about the surface made since."""
    provider = RefusingProvider(TRUE, finished("length", FULL), always=True)
    with walking(BELIEVED, provider=provider) as walk:
        answer = walk.ask(LONG)
        assert answer.reply.content == provider.refused[0].body
        assert len(answer.main) == 2
        told = walk.client.get("/metrics").text.splitlines()
        ratios = [float(t.split()[1]) for t in told if t.startswith("tidegate_estimate_ratio{")]
        assert len(ratios) == 1
        assert 1.2 < ratios[0] < 1.5


def test_an_error_after_content_is_not_replayed() -> None:
    """R094."""

    def broken(window: int, prompt: int) -> Refused:
        error = b'data: {"error":{"message":"too long","code":"context_length_exceeded"}}\n\n'
        return Refused(200, [stream_event({"content": "a"}), error], EVENTS)

    provider = RefusingProvider(TRUE, broken)
    with walking(BELIEVED, provider=provider) as walk:
        answer = walk.ask(LONG, stream=True)
        assert answer.reply.content == provider.refused[0].body
        assert (len(answer.main), len(answer.summaries)) == (1, 0)
