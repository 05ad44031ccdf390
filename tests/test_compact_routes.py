"""Every row of the design's tables of compaction by hand, over real sockets."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.proxied import (
    CHAT,
    Walk,
    assistant,
    calling,
    result,
    settings_for,
    system,
    talk,
    text_of_tokens,
    user,
    walking,
)
from tests.serving import serve, wait_until

COMPACT = "/tidegate/compact"
MODEL = "gpt-4o"
ONE, TWO = {"authorization": "Bearer sk-one"}, {"authorization": "Bearer sk-two"}


def body(messages: list[Any], **options: Any) -> dict[str, Any]:
    chat: dict[str, Any] = {"model": MODEL, "messages": messages}
    return {**chat, "tidegate": options} if options else chat


def compact(walk: Walk, messages: list[Any], headers: Any = None, **options: Any) -> httpx.Response:
    return walk.client.post(COMPACT, json=body(messages, **options), headers=headers)


def error_of(reply: httpx.Response) -> tuple[int, str]:
    """Status and code of an error, which is always OpenAI's envelope."""
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return reply.status_code, error["code"]


def kinds_of(walk: Walk, conversation: str, headers: Any = None) -> list[str]:
    reply = walk.client.get(f"/tidegate/conversations/{conversation}/events", headers=headers)
    return [event["kind"] for event in reply.json()["events"]]


class TestASentHistory:
    def test_is_compacted_below_t_and_later_chats_use_it(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            reply = compact(walk, messages)
            later = walk.ask([*messages, assistant("Done."), user("And now?")])
        answer = reply.json()
        assert reply.status_code == 200
        assert set(answer) == {
            "conversation_id",
            "compacted",
            "reason",
            "removed_message_count",
            "preserved_message_count",
            "summary_updated",
            "checkpoint_id",
            "generation",
            "tokens_before",
            "total_tokens",
        }
        assert (answer["compacted"], answer["reason"], answer["generation"]) == (True, None, 1)
        assert (answer["removed_message_count"], answer["preserved_message_count"]) == (12, 1)
        assert answer["tokens_before"] > 5 * answer["total_tokens"]
        assert later.facts["conversation"] == answer["conversation_id"]
        assert later.summaries == ()
        assert len(later.forwarded) == 1 + 1 + 3
        assert later.forwarded[0] == messages[0]
        assert later.forwarded[2:] == [messages[-1], assistant("Done."), user("And now?")]

    def test_the_surface_comes_along_when_asked_for(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            reply = compact(walk, messages, **{"return": "messages"})
            chat = walk.ask(messages)
        assert reply.json()["messages"] == chat.forwarded

    def test_a_second_time_there_is_nothing_to_replace_and_no_call_is_made(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            compact(walk, messages)
            calls = len(walk.provider.calls)
            again = compact(walk, messages)
            assert len(walk.provider.calls) == calls
        assert (again.json()["compacted"], again.json()["reason"]) == (False, "not_enough_messages")
        assert again.json()["generation"] == 1

    def test_under_256_tokens_of_new_material_no_call_is_made(self) -> None:
        short = [system(), *talk(3, 30)]
        with walking() as walk:
            reply = compact(walk, short)
            assert walk.provider.calls == []
            known = walk.client.get("/tidegate/conversations").json()["conversations"]
        assert (reply.status_code, reply.json()["reason"]) == (200, "not_enough_messages")
        assert reply.json()["tokens_before"] == reply.json()["total_tokens"]
        assert known == []

    def test_an_empty_history_has_nothing_to_replace(self) -> None:
        with walking() as walk:
            reply = compact(walk, [system()])
        assert (reply.status_code, reply.json()["reason"]) == (200, "not_enough_messages")

    def test_without_force_nothing_happens_below_the_trigger(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            reply = compact(walk, messages, force=False)
            over = compact(walk, [system(), *talk(14, 200)], force=False)
        assert (reply.status_code, reply.json()["reason"]) == (200, "below_threshold")
        assert over.json()["compacted"] is True

    @pytest.mark.parametrize(
        ("keep", "preserved"),
        [
            ({"type": "messages", "value": 4}, 4),
            ({"type": "tokens", "value": 500}, 4),
            ({"type": "fraction", "value": 0.1}, 4),
        ],
    )
    def test_keep_decides_what_stays_for_this_call(self, keep: Any, preserved: int) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            reply = compact(walk, messages, keep=keep)
        assert reply.json()["preserved_message_count"] == preserved

    def test_an_earlier_summary_is_merged_into_the_new_one(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            compact(walk, messages)
            longer = [*messages, assistant(text_of_tokens(300)), user(text_of_tokens(300, "b"))]
            longer += [assistant("Done."), user("go on")]
            second = compact(walk, longer, **{"return": "messages"})
        assert second.json()["generation"] == 2
        frames = [m for m in second.json()["messages"] if "SUMMARY OF" in str(m["content"])]
        assert len(frames) == 1

    def test_manual_compaction_prunes_nothing(self) -> None:
        messages = [user("read it"), calling("a"), result("a", "long " * 3000), assistant("I did.")]
        messages += talk(2, 200)
        with walking(20_000) as walk:
            answer = compact(walk, messages, keep={"type": "messages", "value": 5}).json()
            shown = walk.client.get(f"/tidegate/conversations/{answer['conversation_id']}").json()
        assert [step["kind"] for step in shown["generations"]] == ["summary"]


class TestARegion:
    def test_stands_for_its_own_messages_alone(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            region = {"start": 2, "end": 6}
            answer = compact(walk, messages, region=region, **{"return": "messages"}).json()
            chat = walk.ask(messages)
            call = walk.provider.calls[0]
        assert (answer["removed_message_count"], answer["preserved_message_count"]) == (4, 9)
        shown = answer["messages"]
        assert shown == chat.forwarded
        assert shown[:3] == messages[:3]
        assert shown[4:] == messages[7:]
        told = call.seen.body.decode()
        assert "round 1 asked" in told
        assert "round 0 asked" not in told
        assert "round 3 asked" not in told

    def test_may_lie_beside_and_be_swallowed_by_later_ones(self) -> None:
        messages = [system(), *talk(8, 200)]
        with walking() as walk:
            compact(walk, messages, region={"start": 2, "end": 6})
            beside = compact(walk, messages, region={"start": 8, "end": 12})
            inside = compact(walk, messages, region={"start": 2, "end": 4})
            across = compact(walk, messages, region={"start": 4, "end": 8})
            whole = compact(walk, messages, **{"return": "messages"})
        assert beside.json()["compacted"] is True
        assert inside.json()["reason"] == "not_enough_messages"
        assert error_of(across) == (422, "invalid_request")
        assert whole.json()["compacted"] is True
        assert len(whole.json()["messages"]) == 3

    @pytest.mark.parametrize(
        "region",
        [
            {"start": 0, "end": 2},
            {"start": 2, "end": 4},
            {"start": 0, "end": 99},
            {"start": 3, "end": 3},
            {"start": 5, "end": 3},
            {"start": 4, "end": 6},
        ],
    )
    def test_that_cuts_through_a_unit_or_the_end_is_refused(self, region: Any) -> None:
        messages = [user("go"), calling("a"), result("a", "x"), calling("b"), result("b", "y")]
        messages.append(user("more"))
        with walking() as walk:
            assert error_of(compact(walk, messages, region=region)) == (422, "invalid_request")
            assert walk.provider.calls == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "param"),
        [
            ({"keep": {"type": "tokens", "value": 0}}, "keep"),
            ({"keep": {"type": "tokens", "value": -5}}, "keep"),
            ({"gentle": True}, "gentle"),
            ({"force": "yes"}, "force"),
            ({"return": "all"}, "return"),
            ({"region": {"start": 5, "end": 2}}, "region"),
        ],
    )
    def test_bad_options_are_422_and_named(self, options: Any, param: str) -> None:
        with walking() as walk:
            reply = walk.client.post(COMPACT, json={**body(talk(6, 200)), "tidegate": options})
            assert error_of(reply) == (422, "invalid_request")
            assert reply.json()["error"]["param"] == param
            assert walk.provider.calls == []

    @pytest.mark.parametrize("sent", [b"", b"{}", b"[1]", b'{"messages": [{"role": "user"}]}'])
    def test_what_is_no_chat_is_400(self, sent: bytes) -> None:
        with walking() as walk:
            assert error_of(walk.client.post(COMPACT, content=sent)) == (400, "invalid_request")

    def test_an_invalid_budget_names_the_numbers_and_what_to_change(self) -> None:
        models = [{"match": "*", "context_window": 65536, "headroom_tokens": 65536}]
        with walking(None, models=models) as walk:
            reply = walk.client.post(COMPACT, json={**body(talk(6, 200)), "max_tokens": 8192})
        assert error_of(reply) == (422, "invalid_budget")
        message = reply.json()["error"]["message"]
        for part in (MODEL, "65536", "8192", "headroom_tokens"):
            assert part in message

    def test_an_unknown_window_is_a_configuration_error_too(self) -> None:
        with walking(None) as walk:
            reply = walk.client.post(COMPACT, json={**body(talk(6, 200)), "model": "nobody-knows"})
        assert error_of(reply) == (422, "invalid_budget")
        assert "context_window" in reply.json()["error"]["message"]

    def test_switched_off(self) -> None:
        with walking(compaction={"enabled": False}) as walk:
            assert error_of(compact(walk, talk(6, 200))) == (409, "compaction_disabled")

    @pytest.mark.parametrize(
        "script",
        [
            {"status": 500, "body": b"{}"},
            {"body": b'{"choices":[{"message":{"content":"   "},"finish_reason":"stop"}]}'},
            {"body": b'{"choices":[{"message":{"content":"cut"},"finish_reason":"length"}]}'},
        ],
    )
    def test_summary_failed_when_nothing_usable_came_and_the_attempt_is_in_the_log(
        self, script: Any
    ) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            conversation = walk.ask(messages).facts["conversation"]
            for _ in range(4):
                walk.provider.next_summary(**script)
            reply = compact(walk, messages)
            assert error_of(reply) == (502, "summary_failed")
            events = walk.client.get(f"/tidegate/conversations/{conversation}/events").json()
            after = walk.ask(messages)
        told = events["events"][1:]
        assert [e["kind"] for e in told] == ["compaction_start", "summary", "compaction_end"]
        assert told[1]["accepted"] is False
        assert told[2]["error"]
        assert after.facts["generation"] == "0"
        assert after.forwarded == messages


class TestBusy:
    def test_while_a_chat_of_it_is_in_flight(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            conversation = walk.ask(messages).facts["conversation"]
            walk.provider.next(delay=1.5)
            chat = _beside(lambda: walk.client.post(CHAT, json=body(messages)))
            wait_until(lambda: len(walk.provider.requests) == 2)
            busy = compact(walk, messages)
            known = walk.client.post(f"/tidegate/conversations/{conversation}/compact")
            shown = walk.client.get(f"/tidegate/conversations/{conversation}").json()
            assert chat().status_code == 200
            free = compact(walk, messages)
        for reply in (busy, known):
            assert error_of(reply) == (409, "conversation_busy")
            assert reply.headers["retry-after"] == "1"
        assert shown["in_flight"] is True
        assert free.json()["compacted"] is True

    def test_while_another_compaction_runs_and_chats_go_on(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            walk.provider.next_summary(delay=1.5)
            first = _beside(lambda: compact(walk, messages))
            wait_until(lambda: len(walk.provider.requests) == 1)
            second = compact(walk, messages)
            chat = walk.client.post(CHAT, json=body([*messages, assistant("ok"), user("next")]))
            forwarded = walk.provider.requests[-1].json["messages"]
            landed = first()
            later = walk.ask([*messages, assistant("ok"), user("next")])
        assert error_of(second) == (409, "conversation_busy")
        assert chat.status_code == 200
        assert forwarded == [*messages, assistant("ok"), user("next")]
        assert landed.json()["compacted"] is True
        assert later.facts["generation"] == "1"
        assert later.forwarded[2:] == [messages[-1], assistant("ok"), user("next")]

    def test_on_any_worker(self, tmp_path: Path) -> None:
        """Two applications on one store, as two worker processes are."""
        messages = [system(), *talk(6, 200)]
        server = {"workers": 2}
        with walking(folder=tmp_path, server=server) as walk:
            from proxy.assembly import create_app

            other = create_app(settings_for(tmp_path, walk.provider.url, 6000, server=server))
            with serve(other) as served, httpx.Client(base_url=served.url, timeout=30) as client:
                walk.ask(messages)
                walk.provider.next(delay=4)
                chat = _beside(lambda: walk.client.post(CHAT, json=body(messages)))
                replies: list[httpx.Response] = []

                def refused() -> bool:
                    replies.append(client.post(COMPACT, json=body(messages, force=False)))
                    return replies[-1].status_code == 409

                wait_until(refused, seconds=3)
                assert chat().status_code == 200
                busy = error_of(replies[-1])
                wait_until(lambda: client.post(COMPACT, json=body(messages)).status_code == 200)
        assert busy == (409, "conversation_busy")


class TestALostRace:
    def test_a_range_that_changed_meanwhile_is_not_replaced(self) -> None:
        """A region lands while the whole is being summarised."""
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            conversation = walk.ask(messages).facts["conversation"]
            compact(walk, messages, region={"start": 2, "end": 6})
            walk.provider.next_summary(delay=1.0)
            slow = _beside(lambda: compact(walk, messages))
            wait_until(lambda: len(walk.provider.calls) == 3 or len(walk.provider.requests) == 3)
            place = f"/tidegate/conversations/{conversation}/generations/1"
            assert walk.client.delete(place).status_code == 200
            reply = slow()
            kinds = kinds_of(walk, conversation)
            shown = walk.client.get(f"/tidegate/conversations/{conversation}").json()
        assert error_of(reply) == (409, "history_changed")
        assert kinds[-4:] == ["compaction_start", "revoke", "summary", "compaction_end"]
        assert [step["kind"] for step in shown["generations"]] == ["summary", "revoke"]

    def test_a_caller_that_leaves_cancels_what_it_alone_waited_for(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            conversation = walk.ask(messages).facts["conversation"]
            walk.provider.next_summary(never=True)
            with pytest.raises(httpx.ReadTimeout):
                walk.client.post(COMPACT, json=body(messages), timeout=0.5)
            wait_until(lambda: walk.provider.cancelled == 1, seconds=2)
            wait_until(lambda: kinds_of(walk, conversation)[-1] == "compaction_end")
            events = walk.client.get(f"/tidegate/conversations/{conversation}/events").json()
        assert events["events"][-1]["error"] == "cancelled"


class TestAKnownConversation:
    def test_is_compacted_from_the_log_and_chats_use_it(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            conversation = walk.ask(messages).facts["conversation"]
            place = f"/tidegate/conversations/{conversation}/compact"
            reply = walk.client.post(place, json={"keep": {"type": "messages", "value": 3}})
            shown = walk.client.get(f"/tidegate/conversations/{conversation}").json()
            later = walk.ask(messages)
        assert reply.json()["compacted"] is True
        assert reply.json()["preserved_message_count"] == 3
        assert shown["context"]["token_count"] == reply.json()["total_tokens"]
        assert later.summaries == ()
        assert later.forwarded[2:] == messages[-3:]

    def test_without_the_originals_history_is_unavailable(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking(log={"messages": False}) as walk:
            conversation = walk.ask(messages).facts["conversation"]
            reply = walk.client.post(f"/tidegate/conversations/{conversation}/compact")
            surface = walk.client.get(f"/tidegate/conversations/{conversation}/surface")
        assert error_of(reply) == (409, "history_unavailable")
        assert error_of(surface) == (409, "history_unavailable")

    def test_another_tenants_is_not_found(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            conversation = walk.ask(messages, headers=ONE).facts["conversation"]
            place = f"/tidegate/conversations/{conversation}/compact"
            assert error_of(walk.client.post(place, headers=TWO)) == (404, "conversation_not_found")
            gone = walk.client.post("/tidegate/conversations/nothing/compact", headers=ONE)
            assert error_of(gone) == (404, "conversation_not_found")
            own = walk.client.post(place, headers=ONE)
            assert own.json()["compacted"] is True
            assert walk.provider.summaries[-1].header("authorization") == "Bearer sk-one"

    def test_bad_options_and_bodies_are_refused(self) -> None:
        with walking() as walk:
            conversation = walk.ask([system(), *talk(6, 200)]).facts["conversation"]
            place = f"/tidegate/conversations/{conversation}/compact"
            unknown = walk.client.post(place, json={"gentle": True})
            assert error_of(unknown) == (422, "invalid_request")
            assert error_of(walk.client.post(place, content=b"{no")) == (400, "invalid_request")


class TestForLater:
    def test_the_operator_without_a_credential_has_it_done_by_the_tenants_next_chat(self) -> None:
        messages = [system(), *talk(6, 200)]
        longer = [*messages, assistant("ok"), user("next")]
        with walking() as walk:
            conversation = walk.ask(messages, headers=ONE).facts["conversation"]
            place = f"/tidegate/conversations/{conversation}"
            asked = walk.client.post(f"{place}/compact", json={})
            waiting = walk.client.get(place).json()["scheduled"]
            assert walk.provider.summaries == []
            other = walk.ask(messages, headers=TWO)
            chat = walk.ask(longer, headers=ONE)
            again = walk.ask(longer, headers=ONE)
            done = walk.client.get(place).json()
        assert (asked.status_code, asked.json()["reason"]) == (202, "scheduled")
        assert waiting is True
        assert other.facts["action"] == "none"
        assert chat.facts["action"] == "summary"
        assert chat.forwarded[-1] == longer[-1]
        assert again.facts["action"] == "none"
        assert done["scheduled"] is False
        assert done["generation"] == 1

    def test_a_configured_key_is_a_credential_to_use(self) -> None:
        messages = [system(), *talk(6, 200)]

        with walking() as walk:
            upstreams = {"default": {"base_url": f"{walk.provider.url}/v1", "api_key": "sk-ours"}}
            with walking(provider=walk.provider, upstreams=upstreams) as keyed:
                conversation = keyed.ask(messages, headers=ONE).facts["conversation"]
                reply = keyed.client.post(f"/tidegate/conversations/{conversation}/compact")
                assert reply.json()["compacted"] is True
                assert keyed.provider.summaries[-1].header("authorization") == "Bearer sk-ours"

    def test_a_failure_never_fails_the_chat(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            conversation = walk.ask(messages, headers=ONE).facts["conversation"]
            walk.client.post(f"/tidegate/conversations/{conversation}/compact")
            for _ in range(4):
                walk.provider.next_summary(status=500, body=b"{}")
            chat = walk.ask(messages, headers=ONE)
        assert chat.reply.status_code == 200
        assert chat.forwarded == messages


class TestSummarizers:
    def test_a_client_may_name_one_on_its_own_upstream_with_its_own_credential(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            reply = compact(walk, messages, ONE, summarizer="small-model")
            call = walk.provider.summaries[-1]
        assert reply.json()["compacted"] is True
        assert call.json["model"] == "small-model"
        assert call.header("authorization") == "Bearer sk-one"

    def test_but_not_with_the_operators_key(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            upstreams = {"default": {"base_url": f"{walk.provider.url}/v1", "api_key": "sk-ours"}}
            server = {"client_keys": ["sk-one"]}
            with walking(provider=walk.provider, upstreams=upstreams, server=server) as keyed:
                refused = compact(keyed, messages, ONE, summarizer="expensive-model")
                own = compact(keyed, messages, ONE, summarizer=MODEL)
        assert error_of(refused) == (422, "invalid_request")
        assert refused.json()["error"]["param"] == "summarizer"
        assert own.json()["compacted"] is True

    def test_a_listed_one_is_asked_where_it_is_listed(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            upstreams = {
                "default": {"base_url": f"{walk.provider.url}/v1"},
                "second": {"base_url": f"{walk.provider.url}/v1", "api_key": "sk-second"},
            }
            listed = [{"upstream": "default", "model": "a"}, {"upstream": "second", "model": "b"}]
            with walking(
                provider=walk.provider, upstreams=upstreams, compaction={"summarizers": listed}
            ) as chosen:
                compact(chosen, messages, ONE, summarizer="b")
                call = chosen.provider.summaries[-1]
        assert call.json["model"] == "b"
        assert call.header("authorization") == "Bearer sk-second"


def test_the_operator_may_name_the_tenant_of_an_id_that_two_have() -> None:
    with walking() as walk:
        for who in (ONE, TWO):
            walk.ask([system(), *talk(8, 200)], headers={**who, "x-tidegate-conversation": "same"})
        listed = walk.client.get("/tidegate/conversations").json()["conversations"]
        for conversation in listed:
            tenant = {"tenant": conversation["tenant"]}
            walk.client.post("/tidegate/conversations/same/compact", params=tenant)
            shown = walk.client.get("/tidegate/conversations/same", params=tenant).json()
            assert (shown["tenant"], shown["scheduled"]) == (conversation["tenant"], True)
    assert len(listed) == 2


def test_nobody_from_another_site_or_under_another_name_is_answered() -> None:
    """DNS rebinding, cross-site posts."""
    with walking() as walk:
        for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
            for method, path in (("POST", COMPACT), ("GET", "/tidegate/conversations")):
                reply = walk.client.request(method, path, headers=headers, json=body(talk(6, 200)))
                assert error_of(reply) == (403, "forbidden_origin")
        assert walk.provider.requests == []


def test_a_compressed_body_is_read() -> None:
    import gzip

    with walking() as walk:
        sent = gzip.compress(json.dumps(body([system(), *talk(6, 200)])).encode())
        reply = walk.client.post(COMPACT, content=sent, headers={"content-encoding": "gzip"})
        assert reply.json()["compacted"] is True
        wrong = walk.client.post(COMPACT, content=b"x", headers={"content-encoding": "gzip"})
        assert error_of(wrong) == (400, "invalid_request")


def _beside(send: Callable[[], httpx.Response]) -> Callable[[], httpx.Response]:
    """Sends in a thread; the returned function waits for the reply."""
    replies: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: replies.append(send()))
    thread.start()

    def ended() -> httpx.Response:
        thread.join(timeout=20)
        return replies[0]

    return ended
