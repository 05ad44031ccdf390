"""Conversations over HTTP: pages, the surface at every generation, the log, revoking, forgetting,
and that nobody reaches another tenant's."""

from typing import Any

import httpx
import pytest

from tests.proxied import CHAT, Walk, assistant, system, talk, user, walking

LIST = "/tidegate/conversations"
ONE, TWO = {"authorization": "Bearer sk-one"}, {"authorization": "Bearer sk-two"}
MODEL = "gpt-4o"


def code_of(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


def compacted(walk: Walk, messages: list[Any], headers: Any = None, **options: Any) -> Any:
    sent = {"model": MODEL, "messages": messages, "tidegate": options}
    answer = walk.client.post("/tidegate/compact", json=sent, headers=headers).json()
    assert answer["compacted"], answer
    return answer


def test_the_list_has_what_a_gauge_needs() -> None:
    messages = [system(), *talk(14, 160)]
    with walking(8000) as walk:
        walk.ask(messages, headers={"x-session-id": "s-1"})
        (shown,) = walk.client.get(LIST).json()["conversations"]
        one = walk.client.get(f"{LIST}/{shown['id']}").json()
    tokens = shown["context"]["token_count"]
    assert shown["context"] == {
        "token_count": tokens,
        "max_context_tokens": 8000,
        "percentage": round(tokens * 100 / 8000, 1),
    }
    assert (shown["model"], shown["upstream"], shown["message_count"]) == (MODEL, "default", 29)
    assert shown["labels"] == {"x-session-id": "s-1"}
    assert shown["trigger_tokens"] == 6400
    assert one["context"] == shown["context"]
    assert (one["generations"], one["scheduled"], one["in_flight"]) == ([], False, False)


def test_without_a_window_the_gauge_has_none() -> None:
    with walking(None) as walk:
        name = walk.ask([user("hi")], model="nobody-knows").facts["conversation"]
        context = walk.client.get(f"{LIST}/{name}").json()["context"]
    assert (context["max_context_tokens"], context["percentage"]) == (None, None)


def test_the_list_is_paged_newest_first() -> None:
    with walking() as walk:
        names = [walk.ask([user(f"number {n}")]).facts["conversation"] for n in range(5)]
        found, before = [], None
        while True:
            query = {"limit": 2, **({"before": before} if before else {})}
            page = walk.client.get(LIST, params=query).json()
            found += [c["id"] for c in page["conversations"]]
            before = page["next"]
            if before is None:
                break
    assert found == names[::-1]


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=201", "limit=x", "limit=-1", "before=nonsense", "limit=" + "9" * 30],
)
def test_pages_have_bounds(query: str) -> None:
    with walking() as walk:
        assert code_of(walk.client.get(f"{LIST}?{query}")) == (422, "invalid_request")


def test_a_client_may_name_its_conversation_with_slashes() -> None:
    with walking() as walk:
        walk.ask([user("hi")], headers={"x-tidegate-conversation": "team/a b"})
        shown = walk.client.get(f"{LIST}/team%2Fa%20b")
        events = walk.client.get(f"{LIST}/team/a%20b/events")
    assert shown.json()["id"] == "team/a b"
    assert [e["kind"] for e in events.json()["events"]] == ["request"]


class TestSurfaces:
    def test_every_generation_can_be_looked_at(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            first = compacted(walk, messages, region={"start": 2, "end": 6})
            second = compacted(walk, messages)
            place = f"{LIST}/{first['conversation_id']}"
            walk.client.delete(f"{place}/generations/{second['checkpoint_id']}")
            pages = [walk.client.get(f"{place}/surface?generation={n}").json() for n in range(4)]
            newest = walk.client.get(f"{place}/surface").json()
            beyond = walk.client.get(f"{place}/surface?generation=4")
            forwarded = walk.ask(messages).forwarded
        spans = [[(i["kind"], i["start"], i["end"]) for i in page["items"]] for page in pages]
        assert [i["message"] for i in pages[0]["items"]] == messages[1:]
        assert ("summary", 2, 6) in spans[1]
        assert spans[2] == [("summary", 0, 12), ("sent", 12, 13)]
        assert spans[3] == spans[1]
        assert newest == pages[3]
        assert newest["head"] + [i["message"] for i in newest["items"]] == forwarded
        assert newest["items"][2]["checkpoint_ids"] == [first["checkpoint_id"]]
        assert code_of(beyond) == (422, "invalid_request")
        told = [(g["generation"], g["kind"], g["revoked_by"]) for g in newest["generations"]]
        assert told == [(1, "summary", None), (2, "summary", 3), (3, "revoke", None)]

    def test_edits_and_kept_messages_are_told_apart(self) -> None:
        messages = [
            user("look"),
            *[
                part
                for n in range(3)
                for part in (
                    assistant(None, tool_calls=[_call(n)]),
                    {"role": "tool", "tool_call_id": f"c{n}", "content": "long " * 2500},
                )
            ],
            assistant("I see."),
            user("go on"),
        ]
        with walking(9000) as walk:
            name = walk.ask(messages).facts["conversation"]
            pruned = walk.client.get(f"{LIST}/{name}/surface").json()
        kinds = [item["kind"] for item in pruned["items"]]
        assert set(kinds) == {"sent", "prune"}

    def test_they_are_paged(self) -> None:
        messages = [system(), *talk(6, 20)]
        with walking() as walk:
            name = walk.ask(messages).facts["conversation"]
            first = walk.client.get(f"{LIST}/{name}/surface?limit=10").json()
            second = walk.client.get(f"{LIST}/{name}/surface?limit=10&after={first['next']}").json()
            log = walk.client.get(f"{LIST}/{name}/log?limit=10&after=10").json()
        assert first["item_count"] == 13
        assert [i["index"] for i in first["items"] + second["items"]] == list(range(13))
        assert second["next"] is None
        assert [m["position"] for m in log["messages"]] == [10, 11, 12]
        assert all(m["tokens"] > 0 for m in log["messages"])


def _call(n: int) -> dict[str, Any]:
    return {"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_the_log_keeps_the_originals_whatever_was_compacted() -> None:
    messages = [system(), *talk(6, 200)]
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    with walking() as walk:
        walk.ask(messages, tools=tools)
        name = compacted(walk, messages)["conversation_id"]
        walk.ask(messages, tools=tools)
        log = walk.client.get(f"{LIST}/{name}/log").json()
    assert log["head"] + [m["message"] for m in log["messages"]] == messages
    assert log["tools"] == tools


def test_text_that_no_encoding_holds_is_answered_all_the_same() -> None:
    """Lone surrogates, which clients that cut strings send."""
    sent = b'{"model":"gpt-4o","messages":[{"role":"user","content":"cut \\ud83d"}]}'
    with walking() as walk:
        name = walk.client.post(CHAT, content=sent).headers["x-tidegate-conversation"]
        log = walk.client.get(f"{LIST}/{name}/log")
    assert b"\\ud83d" in log.content


class TestEvents:
    def test_oldest_first_and_paged(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            name = compacted(walk, messages)["conversation_id"]
            walk.ask(messages)
            whole = walk.client.get(f"{LIST}/{name}/events").json()
            first = walk.client.get(f"{LIST}/{name}/events?limit=2").json()
            rest = walk.client.get(f"{LIST}/{name}/events?after={first['next']}").json()
            last = walk.client.get(f"{LIST}/{name}/events?limit=1&newest=true").json()
        kinds = [event["kind"] for event in whole["events"]]
        assert kinds == ["compaction_start", "summary", "replacement", "compaction_end", "request"]
        assert first["events"] + rest["events"] == whole["events"]
        assert rest["next"] is None
        assert last["events"] == whole["events"][-1:]
        orders = [event["order"] for event in whole["events"]]
        assert orders == sorted(orders)
        assert all(event["conversation_id"] == name for event in whole["events"])
        assert whole["events"][2]["replacement"] == "summary"

    def test_they_hold_no_word_of_anybody(self) -> None:
        messages = [system(), *talk(6, 200, "secretword")]
        with walking() as walk:
            name = compacted(walk, messages, ONE)["conversation_id"]
            text = walk.client.get(f"{LIST}/{name}/events", headers=ONE).text
        assert "secretword" not in text
        assert "sk-one" not in text


class TestRevoking:
    def test_takes_a_summary_back_and_pressure_waits_until_the_range_grew(self) -> None:
        messages = [system(), *talk(12, 200)]
        with walking() as walk:
            first = walk.ask(messages)
            assert first.facts["action"] == "summary"
            name = first.facts["conversation"]
            (made,) = walk.client.get(f"{LIST}/{name}").json()["generations"]
            reply = walk.client.delete(f"{LIST}/{name}/generations/1")
            twice = walk.client.delete(f"{LIST}/{name}/generations/{made['checkpoint_id']}")
            again = walk.ask(messages)
            grown = [*messages, assistant("Well."), *talk(3, 200, "later")]
            later = walk.ask(grown)
            kinds = [e["kind"] for e in walk.client.get(f"{LIST}/{name}/events").json()["events"]]
        assert reply.json() == {
            "conversation_id": name,
            "checkpoint_id": made["checkpoint_id"],
            "revoked": True,
            "generation": 2,
        }
        assert twice.json()["generation"] == 2
        assert kinds.count("revoke") == 1
        assert again.forwarded == messages
        assert (again.summaries, again.facts["reason"]) == ((), "not-enough-new")
        assert later.facts["action"] == "summary"

    def test_another_models_copy_does_not_bring_it_back(self) -> None:
        """What one model made and another adopted stays away where it was revoked."""
        messages = [system(), *talk(12, 200)]
        with walking() as walk:
            name = walk.ask(messages).facts["conversation"]
            adopted = walk.ask(messages, model="gpt-4o-mini")
            walk.ask(messages)
            shown = walk.client.get(f"{LIST}/{name}").json()
            walk.client.delete(f"{LIST}/{name}/generations/{shown['generation']}")
            after = walk.ask(messages)
        assert "adopt" in adopted.actions
        assert after.actions == set()

    def test_what_made_no_generation_is_not_found(self) -> None:
        with walking() as walk:
            name = compacted(walk, [system(), *talk(6, 200)])["conversation_id"]
            for wrong in ("0", "2", "nothing", "-1"):
                reply = walk.client.delete(f"{LIST}/{name}/generations/{wrong}")
                assert code_of(reply) == (404, "generation_not_found")


def test_forgetting_takes_all_of_it() -> None:
    messages = [system(), *talk(6, 200)]
    with walking() as walk:
        name = compacted(walk, messages)["conversation_id"]
        gone = walk.client.delete(f"{LIST}/{name}")
        paths = [f"{LIST}/{name}{part}" for part in ("", "/surface", "/log", "/events")]
        after = [code_of(walk.client.get(path)) for path in paths]
        listed = walk.client.get(LIST).json()["conversations"]
        again = walk.ask(messages)
    assert gone.json()["forgotten"] is True
    assert (gone.json()["messages"], gone.json()["replacements"]) == (13, 1)
    assert after == [(404, "conversation_not_found")] * 4
    assert listed == []
    assert again.forwarded == messages
    assert again.facts["conversation"] != name


class TestTenants:
    def test_nobody_reaches_another_tenants(self) -> None:
        messages = [system(), *talk(6, 200)]
        with walking() as walk:
            name = compacted(walk, messages, ONE)["conversation_id"]
            assert walk.client.get(LIST, headers=TWO).json()["conversations"] == []
            calls = [
                ("GET", ""),
                ("GET", "/surface"),
                ("GET", "/log"),
                ("GET", "/events"),
                ("DELETE", "/generations/1"),
                ("DELETE", ""),
                ("POST", "/compact"),
            ]
            for method, part in calls:
                reply = walk.client.request(method, f"{LIST}/{name}{part}", headers=TWO)
                assert code_of(reply) == (404, "conversation_not_found")
            own = walk.client.get(f"{LIST}/{name}", headers=ONE)
            operator = walk.client.get(f"{LIST}/{name}")
        assert own.json()["generation"] == operator.json()["generation"] == 1

    def test_a_name_of_two_tenants_is_two_conversations(self) -> None:
        named = {"x-tidegate-conversation": "shared"}
        with walking() as walk:
            walk.ask([user("of one")], headers={**ONE, **named})
            walk.ask([user("of two")], headers={**TWO, **named})
            logs = [
                walk.client.get(f"{LIST}/shared/log", headers=who).json()["messages"][0]["message"]
                for who in (ONE, TWO)
            ]
            both = walk.client.get(LIST).json()["conversations"]
            first = walk.client.get(f"{LIST}/shared/log?tenant={both[1]['tenant']}").json()
        assert logs == [user("of one"), user("of two")]
        assert [c["id"] for c in both] == ["shared", "shared"]
        assert first["messages"][0]["message"] == user("of one")

    def test_off_loopback_only_keys_are_served(self) -> None:
        server = {"host": "0.0.0.0", "admin_key": "the admin's"}
        with walking(server=server) as walk:
            walk.ask([user("hi")], headers=ONE)
            bare = walk.client.get(LIST)
            admin = walk.client.get(LIST, headers={"authorization": "Bearer the admin's"})
            own = walk.client.get(LIST, headers=ONE)
            other = walk.client.get(LIST, headers=TWO)
        assert code_of(bare) == (401, "admin_key_needed")
        counts = [len(reply.json()["conversations"]) for reply in (admin, own, other)]
        assert counts == [1, 1, 0]

    def test_on_loopback_other_hosts_and_origins_are_refused(self) -> None:
        with walking() as walk:
            for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
                for method, path in (
                    ("GET", LIST),
                    ("DELETE", f"{LIST}/x"),
                    ("GET", "/tidegate/events"),
                ):
                    reply = walk.client.request(method, path, headers=headers)
                    assert code_of(reply) == (403, "forbidden_origin")
