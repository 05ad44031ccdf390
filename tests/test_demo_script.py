"""The scripted session: valid as OpenAI wants it, long enough to matter, the same every time."""

from typing import Any

from proxy.core.pruning import PRUNE_OVER
from proxy.demo_script import STEPS, SYSTEM, TOOLS, messages_of, tool_calls
from proxy.meter import Meter
from proxy.practice import MODEL, WINDOW_TOKENS
from proxy.practice_checks import check_request


def session() -> list[dict[str, Any]]:
    """The whole of it, with a short answer in the place of each of the model's."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    for number, step in enumerate(STEPS, 1):
        if step.calls:
            messages[-1]["tool_calls"] = tool_calls(step, number)
        messages += messages_of(step, number)
        messages.append({"role": "assistant", "content": "I see."})
    return messages


def test_openai_would_take_it() -> None:
    check_request({"model": MODEL, "messages": session(), "tools": list(TOOLS)})


def test_it_is_several_windows_long() -> None:
    tokens = Meter().count_request({"messages": session()}, MODEL)
    assert tokens > 4 * WINDOW_TOKENS


def test_every_step_is_the_users_or_the_tools() -> None:
    assert STEPS[0].says
    assert all(bool(step.says) != bool(step.calls) for step in STEPS)
    called = {call.name for step in STEPS for call in step.calls}
    assert called == {tool["function"]["name"] for tool in TOOLS}


def test_some_results_are_long_enough_to_be_pruned_and_most_are_not() -> None:
    sizes = [len(call.result) for step in STEPS for call in step.calls]
    long = sum(size > PRUNE_OVER for size in sizes)
    assert 0 < long < len(sizes) // 2


def test_the_rules_are_the_users_own() -> None:
    said = [step.says for step in STEPS if step.says]
    assert "Never touch" in said[0]
    assert any("[[pin]]" in words for words in said)
