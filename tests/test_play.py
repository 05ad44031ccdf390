"""Every recorded conversation, played turn by turn against a provider with a hard window of a third
of its size; and small ones that are made here. `python -m tests.play` prints the table."""

import pytest

from tests.play import (
    CONVERSATIONS,
    Play,
    common_length,
    floor_tokens,
    main,
    play,
    recorded,
    recorded_names,
    turn_ends,
    window_for,
)
from tests.proxied import (
    JsonObject,
    agent_run,
    assistant,
    calling,
    result,
    system,
    talk,
    text_of_tokens,
    user,
)
from tests.strict_provider import messages_tokens, request_tokens

NAMES = recorded_names()


def clean(done: Play) -> None:
    assert done.faults == []
    assert done.main_calls == done.turns


@pytest.mark.skipif(not NAMES, reason="../shared/conversations is not here")
def test_there_are_31_recorded_conversations() -> None:
    assert len(NAMES) == 31


@pytest.mark.parametrize("name", NAMES or ["absent"])
def test_a_recorded_conversation_is_answered_in_a_third_of_its_size(name: str) -> None:
    """What fits is answered, the rest gets the provider's own words; every request is valid."""
    if not CONVERSATIONS.is_dir():
        pytest.skip("../shared/conversations is not here")
    conversation = recorded(name)
    tokens = conversation["tokens"]
    done = play(name, conversation["request"], window_for(tokens))
    clean(done)
    assert done.turns == len(turn_ends(conversation["request"]["messages"]))


class TestSmall:
    def test_a_long_talk_is_summarised_a_few_times(self) -> None:
        messages = [system(), *talk(40, 150)]
        done = play("talk", {"model": "gpt-4o", "messages": messages}, 4000)
        clean(done)
        assert done.unanswered == []
        assert 2 <= done.summary_calls <= 12
        assert done.forwarded_tokens * 2 < done.client_tokens
        assert done.prefix_share > 0.7

    def test_a_long_agent_run_without_another_user_message(self) -> None:
        messages = [system(), *agent_run(40, 200)]
        done = play("agent", {"model": "gpt-4o", "messages": messages, "tools": TOOLS}, 4000)
        clean(done)
        assert done.unanswered == []
        assert done.compactions >= 2

    def test_parallel_calls_answered_in_another_order_with_one_id_in_every_turn(self) -> None:
        messages = [user("Look at both, again and again.")]
        for n in range(30):
            text = text_of_tokens(120, f"round {n}")
            messages += [calling("a", "b"), result("b", text), result("a", text)]
            if n % 5 == 4:
                messages += [assistant(f"Round {n} is done."), user(f"Again, {n}.")]
        done = play("parallel", {"model": "gpt-4o", "messages": messages, "tools": TOOLS}, 3000)
        clean(done)
        assert done.unanswered == []

    def test_late_instructions_and_two_speakers_in_a_row(self) -> None:
        messages = [system("Head.")]
        for n in range(30):
            messages += [user(text_of_tokens(150, f"first {n}")), user(f"and {n}")]
            messages += [assistant(text_of_tokens(150, f"said {n}")), assistant("")]
            if n % 10 == 5:
                messages += [{"role": "developer", "content": f"Never delete file {n}."}]
        messages += [user("end")]
        done = play("late", {"model": "gpt-4o", "messages": messages}, 3000)
        clean(done)
        assert done.unanswered == []

    def test_a_message_larger_than_the_window_gets_the_providers_answer_and_the_next_turn_fits(
        self,
    ) -> None:
        giant = user(text_of_tokens(5000, "giant"))
        messages = [*talk(3, 50), assistant("Yes."), giant, assistant("Too much?"), user("Sum up.")]
        done = play("giant", {"model": "gpt-4o", "messages": messages}, 3000)
        clean(done)
        assert [line.split(",")[0] for line in done.unanswered] == ["turn 9: 400"]

    def test_huge_tool_results_are_cut(self) -> None:
        messages = [user("Read the log."), calling("c1"), result("c1", "line of a log\n" * 8000)]
        messages += [assistant("Long."), user("And now?")]
        done = play("log", {"model": "gpt-4o", "messages": messages, "tools": TOOLS}, 3000)
        clean(done)
        assert done.unanswered == []


TOOLS: list[JsonObject] = [
    {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
]


class TestThePlayItself:
    def test_a_turn_is_every_prefix_before_an_assistant_message_and_the_whole(self) -> None:
        messages = [system(), user("a"), assistant("b"), user("c"), assistant("d"), user("e")]
        assert turn_ends(messages) == [2, 4, 6]

    def test_the_common_length_of_two_texts(self) -> None:
        assert common_length(b"abcd", b"abxd") == 2
        assert common_length(b"", b"x") == 0
        assert common_length(b"ab", b"abc") == 2

    def test_the_floor_is_what_stays_whatever_is_summarised(self) -> None:
        messages = [system(), *talk(10, 200)]
        asked = {"model": "m", "messages": messages}
        kept = messages_tokens([messages[0], messages[-1]])
        assert kept < floor_tokens(asked, 1600) < kept + 300
        assert floor_tokens({"model": "m", "messages": [user("hi")]}, 3000) == request_tokens(
            {"messages": [user("hi")]}
        )

    @pytest.mark.skipif(not NAMES, reason="../shared/conversations is not here")
    def test_the_table_has_a_row_for_each_conversation(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        main(["toolcall-zh"])
        assert "| toolcall-zh | 3,000 | 6 | 6 | 0 | 2,107 | 2,107 |" in capsys.readouterr().out
