"""One message larger than the window: a tool result is cut to fit and answered; for anything else
the provider's own answer stands, and no summary is asked for."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.journeys.refusing_provider import Refuse, RefusingProvider, as_400, in_words
from tests.journeys.test_overflow import BELIEVED, TRUE
from tests.play import recorded, recorded_names
from tests.proxied import agent_run, calling, result, system, talk, text_of_tokens, user, walking

HISTORY = talk(3, 100)
ONE_LINE = "x1" * 2_500_000
NO_NUMBERS = in_words(400, {"error": {"code": "1261", "message": "Prompt exceeds max length"}})


def giant_result(text: str) -> list[Any]:
    return [*HISTORY, calling("c"), result("c", text)]


@pytest.mark.parametrize("window", [BELIEVED, TRUE, None])
@pytest.mark.parametrize("refuse", [as_400, NO_NUMBERS])
def test_r007_a_giant_newest_tool_result_is_cut_to_fit(window: int | None, refuse: Refuse) -> None:
    provider = RefusingProvider(TRUE, refuse)
    with walking(window, provider=provider) as walk:
        answer = walk.ask(giant_result(text_of_tokens(20_000)), model="nobody-knows")
        assert answer.reply.status_code == 200, answer.reply.text
        assert len(answer.main) <= 2
        assert len(answer.summaries) <= 1
        shown = answer.forwarded[-1]
        assert shown["tool_call_id"] == "c"
        assert len(shown["content"]) < 8192
        assert answer.main[-1].tokens <= TRUE


@pytest.mark.parametrize("window", [BELIEVED, TRUE, None])
def test_5_mb_of_one_line_are_cut_to_fit(window: int | None) -> None:
    # Nobody's tokeniser is asked to count them on the provider's side: their length refuses them.
    provider = RefusingProvider(TRUE)
    with walking(window, provider=provider) as walk:
        answer = walk.ask(giant_result(ONE_LINE), model="nobody-knows")
        assert answer.reply.status_code == 200, answer.reply.text
        assert len(answer.main) <= 2
        assert len(answer.summaries) <= 1


def test_in_a_window_of_nearly_nothing_the_last_resort_shrinks_it() -> None:
    """W is less than a pruned result takes."""
    provider = RefusingProvider(1500)
    with walking(BELIEVED, provider=provider) as walk:
        answer = walk.ask([user("list"), calling("c"), result("c", "naïve 名前 " * 4000)])
        assert answer.reply.status_code == 200, answer.reply.text
        assert "shrink" in answer.actions
        assert answer.main[-1].tokens <= 1500


GIANTS = {
    "user": [*HISTORY[:-1], user(text_of_tokens(6000))],
    "only user": [user(text_of_tokens(6000))],
    "system": [system(text_of_tokens(6000)), *HISTORY],
}


@pytest.mark.parametrize("window", [BELIEVED, TRUE, None])
@pytest.mark.parametrize("messages", GIANTS.values(), ids=GIANTS.keys())
@pytest.mark.parametrize("refuse", [as_400, NO_NUMBERS])
@pytest.mark.parametrize("stream", [False, True])
def test_other_giants_get_the_providers_answer(
    window: int | None, messages: Sequence[Any], refuse: Refuse, stream: bool
) -> None:
    provider = RefusingProvider(TRUE, refuse)
    with walking(window, provider=provider) as walk:
        answer = walk.ask(messages, stream=stream, model="nobody-knows")
        assert answer.reply.status_code == 400
        assert answer.reply.content == provider.refused[0].body
        assert (len(answer.main), len(answer.summaries)) == (1, 0)
        assert answer.facts["reason"] == "envelope-too-large"
        assert json.loads(answer.main[0].seen.body)["messages"] == list(messages)


@pytest.mark.skipif(not recorded_names(), reason="the recorded conversations are not here")
@pytest.mark.parametrize("name", ["deer-titanic", "shell-find-output"])
@pytest.mark.parametrize("window", [BELIEVED, TRUE, None])
def test_recorded_giants_are_answered(name: str, window: int | None) -> None:
    """Each is sent as it stood when its largest tool result was the newest message."""
    request = dict(recorded(name)["request"])
    messages = request.pop("messages")
    at = max(
        (i for i, m in enumerate(messages) if m["role"] == "tool"),
        key=lambda i: len(json.dumps(messages[i])),
    )
    provider = RefusingProvider(max(TRUE, 4000))
    with walking(window, provider=provider) as walk:
        request.pop("model", None)
        answer = walk.ask(messages[: at + 1], **request, model="nobody-knows")
        assert answer.reply.status_code == 200, (answer.reply.text, answer.facts)
        assert len(answer.main) <= 2


def test_many_calls_with_giant_results_each() -> None:
    provider = RefusingProvider(TRUE)
    with walking(BELIEVED, provider=provider) as walk:
        messages = [*agent_run(3, 3000), calling("a", "b")]
        messages += [result("a", text_of_tokens(9000)), result("b", text_of_tokens(9000))]
        answer = walk.ask(messages)
        assert answer.reply.status_code == 200, (answer.reply.text, answer.facts)
        assert len(answer.main) == 2
