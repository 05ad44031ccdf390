"""A compaction for later is done once, for its conversation alone, and harms no chat. More of it
stands in test_compact_routes."""

from typing import Any

from tests.proxied import assistant, system, talk, user, walking

ONE = {"authorization": "Bearer sk-one"}
MESSAGES = [system(), *talk(6, 200)]


def ask_for_later(walk: Any, conversation: str, **options: Any) -> None:
    place = f"/tidegate/conversations/{conversation}/compact"
    assert walk.client.post(place, json=options).status_code == 202


def test_its_options_are_kept() -> None:
    with walking() as walk:
        conversation = walk.ask(MESSAGES, headers=ONE).facts["conversation"]
        ask_for_later(walk, conversation, keep={"type": "messages", "value": 5}, summarizer="small")
        chat = walk.ask(MESSAGES, headers=ONE)
        call = walk.provider.summaries[-1]
    assert chat.forwarded[2:] == MESSAGES[-5:]
    assert call.json["model"] == "small"
    assert call.header("authorization") == "Bearer sk-one"


def test_a_region_that_is_none_any_more_is_left_alone() -> None:
    with walking() as walk:
        conversation = walk.ask(MESSAGES, headers=ONE).facts["conversation"]
        ask_for_later(walk, conversation, region={"start": 2, "end": 6})
        shorter = [*MESSAGES[:4], assistant("Done."), user("go on")]
        named = {**ONE, "x-tidegate-conversation": conversation}
        chat = walk.ask(shorter, headers=named)
    assert chat.reply.status_code == 200
    assert chat.forwarded == shorter


def test_another_conversation_of_the_tenant_is_not_touched() -> None:
    with walking() as walk:
        conversation = walk.ask(MESSAGES, headers=ONE).facts["conversation"]
        ask_for_later(walk, conversation)
        other = walk.ask([system(), *talk(6, 200, "other")], headers=ONE)
        assert other.facts["action"] == "none"
        assert walk.ask(MESSAGES, headers=ONE).facts["action"] == "summary"
