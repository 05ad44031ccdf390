"""The `/tidegate/...` calls over sockets: who is served, as whom, and what is answered."""

from typing import Any

import httpx
import pytest

from tests.proxied import talk, user, walking
from tests.strict_provider import StrictProvider

TRUE = 4000
ONE, TWO = {"authorization": "Bearer sk-one"}, {"authorization": "Bearer sk-two"}
ADMIN = {"authorization": "Bearer the-admins"}
MODELS = "/tidegate/models"
RULES = [
    {"match": "gpt-4o", "context_window": 128_000, "max_output_tokens": 4096},
    {"match": "qwen3-*", "context_window": 32_768, "headroom_tokens": "auto"},
    {"match": "tiny", "context_window": 8192},
]


def by_name(reply: httpx.Response) -> dict[str, dict[str, Any]]:
    assert reply.status_code == 200, reply.text
    assert reply.headers["cache-control"] == "no-store"
    assert "date" in reply.headers
    return {model["model"]: model for model in reply.json()["models"]}


def refusing() -> StrictProvider:
    return StrictProvider(TRUE)


def test_rules_are_shown_with_their_numbers_and_why_they_do_not_hold() -> None:
    with walking(None, provider=refusing(), models=RULES) as walk:
        shown = by_name(walk.client.get(MODELS))
        assert list(shown) == ["gpt-4o", "qwen3-*", "tiny"]
        gpt, qwen, tiny = shown.values()
        assert (gpt["window"], gpt["window_source"], gpt["output_reserve"], gpt["headroom"]) == (
            128_000,
            "configured",
            4096,
            65_536,
        )
        assert (gpt["trigger"], gpt["retain"], gpt["valid"]) == (58_368, 19_824, True)
        assert gpt["problem"] is None
        assert (gpt["pattern"], qwen["pattern"]) == (False, True)
        assert (qwen["trigger"], qwen["retain"], qwen["headroom"]) == (26_214, 5242, 4096)
        assert not tiny["valid"]
        assert "8192 - 0 - 65536" in tiny["problem"]


def test_what_was_learned_is_shown_to_its_tenant_and_forgotten_on_request() -> None:
    provider = refusing()
    with walking(None, provider=provider, models=RULES) as walk:
        assert walk.ask(talk(10, 250), headers=ONE).reply.status_code == 200
        assert walk.ask([user("hello")], headers=TWO, model="vendor/other").reply.status_code == 200

        mine = [m for m in walk.client.get(MODELS, headers=ONE).json()["models"] if m["tenant"]]
        assert [m["model"] for m in mine] == ["gpt-4o"]
        assert (mine[0]["window"], mine[0]["window_source"]) == (TRUE, "learned")
        assert "4000 - 4096 - 500" in mine[0]["problem"]
        (fact,) = mine[0]["learned"]
        assert (fact["kind"], fact["value"]) == ("window", TRUE)
        assert fact["expires_at"] > 0

        theirs = [m for m in walk.client.get(MODELS, headers=TWO).json()["models"] if m["tenant"]]
        assert [(m["model"], m["window_source"]) for m in theirs] == [("vendor/other", "unknown")]
        assert theirs[0]["problem"].startswith("the context window is unknown")
        everyone = [m for m in walk.client.get(MODELS).json()["models"] if m["tenant"]]
        assert {m["model"] for m in everyone} == {"gpt-4o", "vendor/other"}

        learned = "/tidegate/models/gpt-4o/learned"
        assert walk.client.delete(learned, headers=TWO).json() == {
            "model": "gpt-4o",
            "forgotten": 0,
        }
        assert walk.client.delete(learned, headers=ONE).json() == {
            "model": "gpt-4o",
            "forgotten": 1,
        }
        assert walk.ask([user("hello")], headers=ONE).facts["window"] == "128000"
        mine = [m for m in walk.client.get(MODELS, headers=ONE).json()["models"] if m["tenant"]]
        assert (mine[0]["window"], mine[0]["learned"]) == (128_000, [])


def test_the_operator_forgets_for_every_tenant() -> None:
    with walking(None, provider=refusing()) as walk:
        for headers in (ONE, TWO):
            walk.ask(talk(10, 250), headers=headers, model="vendor/m")
        forgotten = walk.client.delete("/tidegate/models/vendor/m/learned").json()
        assert forgotten == {"model": "vendor/m", "forgotten": 2}
        for headers in (ONE, TWO):
            answer = walk.ask([user("hello")], headers=headers, model="vendor/m")
            assert answer.facts["window"] == "unknown"


def test_what_was_learned_elsewhere_is_shown_after_a_restart(tmp_path: Any) -> None:
    provider = refusing()
    with walking(None, provider=provider, folder=tmp_path) as walk:
        walk.ask(talk(10, 250), model="m", headers=ONE)
    with walking(None, provider=provider, folder=tmp_path) as walk:
        shown = by_name(walk.client.get(MODELS, headers=ONE))
        assert (shown["m"]["window"], shown["m"]["window_source"]) == (TRUE, "learned")


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), (ADMIN, 200), ({"authorization": "Bearer wrong"}, 401), (ONE, 200)],
)
def test_off_loopback_the_admin_key_or_a_client_key_is_needed(
    headers: dict[str, str], status: int
) -> None:
    server = {"host": "0.0.0.0", "admin_key": "the-admins", "client_keys": ["sk-one"]}
    with walking(None, provider=refusing(), server=server) as walk:
        for method, path in (("GET", MODELS), ("DELETE", "/tidegate/models/m/learned")):
            reply = walk.client.request(method, path, headers=headers)
            assert reply.status_code == status
            if status != 200:
                error = reply.json()["error"]
                assert error["message"]
                assert error["code"] in ("admin_key_needed", "invalid_api_key")


def test_on_loopback_only_loopback_names_are_answered() -> None:
    with walking(None, provider=refusing()) as walk:
        for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
            reply = walk.client.get(MODELS, headers=headers)
            assert reply.status_code == 403
            assert reply.json()["error"]["code"] == "forbidden_origin"


def test_wrong_methods_and_paths_get_the_envelope() -> None:
    with walking(None, provider=refusing()) as walk:
        assert walk.client.post(MODELS).status_code == 405
        unknown = walk.client.get("/tidegate/nothing")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
