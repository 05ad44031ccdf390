"""Header rules, URLs and credentials. Rows R115 and R149, and the header half of R111 to R114."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.errors import InvalidRequest
from proxy.relay import (
    HOP_BY_HOP,
    Caller,
    RelayRules,
    Upstream,
    own_request,
    provider_request,
    provider_url,
    read_caller,
    streamed_request,
    without_content_encoding,
)
from proxy.tenants import Tenancy

UPSTREAM = Upstream("default", "https://h/v1")
TENANCY = Tenancy(secret=b"s" * 32)


def caller(
    headers: list[tuple[bytes, bytes]],
    *,
    path: bytes = b"/v1/chat/completions",
    query: bytes = b"",
    upstream: Upstream = UPSTREAM,
    forward: bool = False,
    **tenancy: Any,
) -> Caller:
    rules = RelayRules(Tenancy(secret=b"s" * 32, **tenancy), forward_client_headers=forward)
    return read_caller("POST", path, query, headers, rules=rules, upstream=upstream)


class TestUrls:
    @pytest.mark.parametrize(
        ("base", "path", "query", "url"),
        [
            ("https://h", "/v1/chat/completions", "", "https://h/v1/chat/completions"),
            ("https://h/", "/v1/chat/completions", "", "https://h/v1/chat/completions"),
            ("https://h/v1", "/v1/chat/completions", "", "https://h/v1/chat/completions"),
            ("https://h/v1/", "/v1/chat/completions", "", "https://h/v1/chat/completions"),
            ("https://h/v1", "/chat/completions", "", "https://h/v1/chat/completions"),
            ("https://h", "/chat/completions", "", "https://h/v1/chat/completions"),
            (
                "https://h/api/coding/v3",
                "/v1/chat/completions",
                "a=1&b=%2F",
                "https://h/api/coding/v3/chat/completions?a=1&b=%2F",
            ),
            (
                "https://r.openai.azure.com/openai/deployments/x?api-version=2024-06-01",
                "/v1/chat/completions",
                "",
                "https://r.openai.azure.com/openai/deployments/x/chat/completions"
                "?api-version=2024-06-01",
            ),
            (
                "https://h/openai/deployments/x?api-version=1",
                "/v1/chat/completions",
                "beta=true",
                "https://h/openai/deployments/x/chat/completions?api-version=1&beta=true",
            ),
            (
                "https://r.openai.azure.com",
                "/openai/deployments/x/chat/completions",
                "api-version=1",
                "https://r.openai.azure.com/openai/deployments/x/chat/completions?api-version=1",
            ),
            ("https://h", "/v1beta/openai/models", "", "https://h/v1beta/openai/models"),
            ("https://h", "/api/v1/models", "", "https://h/api/v1/models"),
            ("https://h/v1", "/v1", "", "https://h/v1"),
            ("https://h/v1", "/v1/", "", "https://h/v1/"),
            ("https://h", "/", "", "https://h/v1/"),
            ("https://h/v1", "/v1x/models", "", "https://h/v1/v1x/models"),
            ("https://h/v1", "/v1/a%2Fb/%7e;x", "q=%20+", "https://h/v1/a%2Fb/%7e;x?q=%20+"),
            ("http://127.0.0.1:8000/v1", "/v1/models", "", "http://127.0.0.1:8000/v1/models"),
        ],
    )
    def test_the_path_less_v1_on_the_base(self, base: str, path: str, query: str, url: str) -> None:
        assert "".join(provider_url(base, path.encode(), query.encode())) == url

    @given(st.binary(max_size=40))
    def test_bytes_of_the_target_stay_as_they_are(self, tail: bytes) -> None:
        _, target = provider_url("https://h/v1", b"/v1/" + tail, b"")
        assert target.encode("latin-1") == b"/v1/" + tail

    @pytest.mark.parametrize(
        "path",
        [
            b"/v1/../admin",
            b"/v1/%2e%2e/admin",
            b"/v1/%2E./x",
            b"/./v1",
            b"/v1/..",
            b"/v1/..%2fadmin",
            b"/v1/..%5cadmin",
            b"/v1/a b",
            b"/v1/a#b",
            b"*",
        ],
    )
    def test_a_path_that_climbs_or_cannot_be_one_is_refused(self, path: bytes) -> None:
        with pytest.raises(InvalidRequest):
            caller([], path=path)

    @pytest.mark.parametrize("path", [b"/v1/models/gpt-4.1", b"/v1/...", b"/v1/a%2eb", b"/v1/.x"])
    def test_dots_inside_names_pass(self, path: bytes) -> None:
        assert caller([], path=path).path == path

    def test_a_target_too_long_is_refused_by_status_414(self) -> None:
        with pytest.raises(InvalidRequest) as refused:
            caller([], path=b"/v1/" + b"x" * 20000)
        assert refused.value.status == 414


class TestRequestHeaders:
    def test_hop_by_hop_names_and_those_that_connection_lists_are_dropped(self) -> None:
        sent = [(name, b"x") for name in sorted(HOP_BY_HOP)]
        sent += [(b"connection", b"close, X-Mine"), (b"x-mine", b"1"), (b"x-other", b"2")]
        assert provider_request(caller(sent), b"").headers == ((b"x-other", b"2"),)

    def test_everything_else_passes_in_order_and_repeated(self) -> None:
        sent = [
            (b"http-referer", b"https://a"),
            (b"x-title", b"\xc3\xa9"),
            (b"openai-organization", b"org"),
            (b"openai-beta", b"b1"),
            (b"openai-beta", b"b2"),
            (b"idempotency-key", b"k"),
            (b"cookie", b"c=1"),
            (b"user-agent", b"u"),
            (b"accept", b"*/*"),
            (b"accept-encoding", b"gzip"),
            (b"x-stainless-lang", b"python"),
        ]
        assert provider_request(caller(sent), b"").headers == tuple(sent)

    def test_host_expect_and_our_own_names_are_not_forwarded(self) -> None:
        sent = [
            (b"host", b"proxy.local"),
            (b"expect", b"100-continue"),
            (b"x-tidegate-mode", b"on"),
            (b"x-tidegate-conversation", b"c"),
        ]
        assert provider_request(caller(sent), b"").headers == ()

    def test_client_addresses_are_forwarded_only_when_configured(self) -> None:
        sent = [
            (b"forwarded", b"for=1"),
            (b"x-forwarded-host", b"proxy.local"),
            (b"x-forwarded-for", b"1.2.3.4"),
            (b"x-real-ip", b"1.2.3.4"),
        ]
        assert provider_request(caller(sent), b"").headers == ()
        assert provider_request(caller(sent, forward=True), b"").headers == tuple(sent)

    def test_the_length_is_the_bodys_and_stands_where_it_stood(self) -> None:
        sent = [(b"a", b"1"), (b"content-length", b"999"), (b"b", b"2")]
        assert provider_request(caller(sent), b"12345").headers == (
            (b"a", b"1"),
            (b"content-length", b"5"),
            (b"b", b"2"),
        )
        assert provider_request(caller([]), b"12345").headers == ((b"content-length", b"5"),)
        assert provider_request(caller([]), b"").headers == ()

    def test_a_chunked_request_sent_whole_gets_a_length(self) -> None:
        request = provider_request(caller([(b"transfer-encoding", b"chunked")]), b"12345")
        assert request.headers == ((b"content-length", b"5"),)

    def test_a_streamed_body_keeps_the_declared_length(self) -> None:
        async def chunks() -> Any:
            yield b""

        sent = [(b"content-length", b"999")]
        assert streamed_request(caller(sent), chunks(), declared=b"999").headers == tuple(sent)

    def test_identity_replaces_the_codings_asked_for(self) -> None:
        sent = [(b"accept-encoding", b"gzip"), (b"a", b"1")]
        request = provider_request(caller(sent), b"", identity=True)
        assert request.headers == ((b"a", b"1"), (b"accept-encoding", b"identity"))
        assert request.accepts == frozenset()
        assert provider_request(caller(sent), b"").accepts == {"gzip"}

    def test_a_decoded_body_has_no_coding_any_more(self) -> None:
        sent = [(b"content-encoding", b"gzip"), (b"a", b"1")]
        assert without_content_encoding(caller(sent)).headers == ((b"a", b"1"),)


class TestCredentials:
    keyed = Upstream("default", "https://h/v1", "sk-operator")

    def test_the_clients_own_pass_and_the_configured_key_stays_home(self) -> None:
        for header in [(b"authorization", b"Bearer c"), (b"api-key", b"c"), (b"x-api-key", b"c")]:
            request = provider_request(caller([header], upstream=self.keyed), b"")
            assert request.headers == (header,)
        request = provider_request(caller([], query=b"key=c", upstream=self.keyed), b"")
        assert request.headers == ()

    def test_the_configured_key_is_used_when_the_client_sends_none(self) -> None:
        request = provider_request(caller([], upstream=self.keyed), b"")
        assert request.headers == ((b"authorization", b"Bearer sk-operator"),)

    def test_azure_gets_it_as_api_key(self) -> None:
        azure = Upstream("a", "https://r.openai.azure.com/openai/deployments/x", "k")
        assert provider_request(caller([], upstream=azure), b"").headers == ((b"api-key", b"k"),)

    def test_a_client_key_is_replaced_and_never_forwarded(self) -> None:
        sent = [(b"authorization", b"Bearer tg-1"), (b"x-api-key", b"tg-1"), (b"a", b"1")]
        who = caller(sent, query=b"key=tg-1&x=1", upstream=self.keyed, client_keys=("tg-1",))
        request = provider_request(who, b"")
        assert request.headers == ((b"a", b"1"), (b"authorization", b"Bearer sk-operator"))
        assert request.target == "/v1/chat/completions?x=1"

    def test_neither_keys_nor_headers_are_in_any_repr(self) -> None:
        who = caller([(b"authorization", b"Bearer secret-1")], upstream=self.keyed)
        for value in (who, provider_request(who, b"body-1"), self.keyed, TENANCY):
            assert "secret-1" not in repr(value)
            assert "sk-operator" not in repr(value)
            assert "body-1" not in repr(value)


class TestCaller:
    def test_what_the_client_says_about_itself_is_read(self) -> None:
        who = caller(
            [
                (b"x-tidegate-conversation", b" mine "),
                (b"x-tidegate-mode", b"OFF"),
                (b"x-session-id", b"s" * 999),
                (b"session-id", b"t"),
            ]
        )
        assert who.conversation == "mine"
        assert who.mode_off
        assert who.labels == {"x-session-id": "s" * 200, "session-id": "t"}

    def test_nothing_said_means_nothing(self) -> None:
        who = caller([(b"x-tidegate-mode", b"on"), (b"x-tidegate-conversation", b" ")])
        assert who.conversation is None
        assert not who.mode_off
        assert not who.credential
        assert who.accepts == frozenset()


class TestMadeBefore:
    def test_the_same_caller_asks_again_with_other_bodies(self) -> None:
        who = caller([(b"accept-encoding", b"br"), (b"content-length", b"1"), (b"a", b"1")])
        for _ in range(2):
            for body in (b"12", b""):
                length = (b"content-length", b"%d" % len(body))
                plain = ((b"accept-encoding", b"br"), length, (b"a", b"1"))
                assert provider_request(who, body).headers == plain
                identity = (length, (b"a", b"1"), (b"accept-encoding", b"identity"))
                assert provider_request(who, body, identity=True).headers == identity

    def test_elsewhere_it_is_another_request(self) -> None:
        who = caller([])
        provider_request(who, b"")
        other = Upstream("other", "https://o/v2", "sk-o")
        assert who.at(UPSTREAM) is who
        for _ in range(2):
            request = provider_request(who.at(other), b"")
            assert (request.origin, request.target) == ("https://o", "/v2/chat/completions")
            assert request.headers == ((b"authorization", b"Bearer sk-o"),)
        assert who.at(other) is who.at(other)
        assert who.at(other).at(UPSTREAM) == who
        renamed = Upstream("other", "https://p/v2")
        assert who.at(renamed).upstream is renamed


class TestOwnRequests:
    def test_on_the_callers_upstream_the_callers_account_pays(self) -> None:
        who = caller(
            [
                (b"authorization", b"Bearer c"),
                (b"openai-project", b"p"),
                (b"openai-organization", b"o"),
                (b"idempotency-key", b"k"),
                (b"cookie", b"c"),
            ],
            path=b"/openai/deployments/x/chat/completions",
            query=b"api-version=1",
        )
        request = own_request(UPSTREAM, b"{}", caller=who)
        assert dict(request.headers) == {
            b"authorization": b"Bearer c",
            b"openai-project": b"p",
            b"openai-organization": b"o",
            b"content-type": b"application/json",
            b"accept-encoding": b"identity",
            b"content-length": b"2",
        }
        assert request.target == "/v1/openai/deployments/x/chat/completions?api-version=1"

    def test_on_another_upstream_the_configured_key_pays(self) -> None:
        other = Upstream("other", "https://o/v1", "ok")
        who = caller([(b"authorization", b"Bearer c")], query=b"key=c")
        request = own_request(other, b"{}", caller=who)
        assert dict(request.headers)[b"authorization"] == b"Bearer ok"
        assert (request.origin, request.target) == ("https://o", "/v1/chat/completions")
        assert own_request(other, b"{}").target == "/v1/chat/completions"
