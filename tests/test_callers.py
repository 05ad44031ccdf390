"""Heads of requests: the same one gives the same again, and any other its own."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import callers, relay, tenants
from proxy.callers import HEADS_REMEMBERED, MAX_REMEMBERED_BYTES, Callers, Head
from proxy.core.errors import InvalidRequest
from proxy.relay import RelayRules, Upstream, provider_request, streamed_request
from proxy.tenants import Tenancy, Unauthorized
from proxy.wire import MAX_MODEL_CHARS

UPSTREAM = Upstream("default", "https://h/v1")
CHAT = b"/v1/chat/completions"
Pairs = list[tuple[bytes, bytes]]


def heads(**tenancy: Any) -> Callers:
    return Callers(RelayRules(Tenancy(secret=b"s" * 32, **tenancy)), UPSTREAM)


def read(
    reader: Callers, headers: Pairs, *, method: str = "POST", path: bytes = CHAT, query: bytes = b""
) -> tuple[Head, bytes]:
    scope = {"method": method, "raw_path": path, "query_string": query, "headers": headers}
    return reader.read(scope)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Pairs]:
    """The headers of every head that was read and not known."""
    made: list[Pairs] = []
    read_caller = relay.read_caller

    def noting(method: str, path: bytes, query: bytes, headers: Pairs, **options: Any) -> Any:
        made.append(headers)
        return read_caller(method, path, query, headers, **options)

    monkeypatch.setattr(callers, "read_caller", noting)
    return made


SENT = [(b"host", b"h"), (b"authorization", b"Bearer a"), (b"content-length", b"5"), (b"x", b"1")]


class TestRemembered:
    def test_a_head_that_differs_in_its_length_alone_is_known(self, reads: list[Pairs]) -> None:
        reader = heads()
        first, declared = read(reader, SENT)
        assert declared == b"5"
        again = [(n, b"70" if n == b"content-length" else v) for n, v in SENT]
        assert read(reader, again) == (first, b"70")
        assert len(reads) == 1
        assert again[2] == (b"content-length", b"70")  # what the server gave is left as it was

    @pytest.mark.parametrize(
        "other",
        [
            {"headers": [*SENT, (b"y", b"1")]},
            {"headers": SENT[::-1]},
            {"headers": [(n, b"Bearer b" if n == b"authorization" else v) for n, v in SENT]},
            {"headers": [item for item in SENT if item[0] != b"content-length"]},
            {"path": b"/v2/chat/completions"},
            {"query": b"key=k"},
            {"method": "PUT"},
        ],
    )
    def test_any_other_is_read(self, other: dict[str, Any], reads: list[Pairs]) -> None:
        reader = heads()
        read(reader, SENT)
        read(reader, **({"headers": SENT} | other))
        assert len(reads) == 2

    def test_the_oldest_goes_first(self, reads: list[Pairs]) -> None:
        reader = heads()
        for number in range(HEADS_REMEMBERED + 1):
            read(reader, [(b"n", b"%d" % number)])
        read(reader, [(b"n", b"1")])
        assert len(reads) == HEADS_REMEMBERED + 1
        read(reader, [(b"n", b"0")])
        assert len(reads) == HEADS_REMEMBERED + 2

    def test_a_long_one_is_read_each_time(self, reads: list[Pairs]) -> None:
        reader = heads()
        for _ in range(2):
            read(reader, [(b"n", b"x" * MAX_REMEMBERED_BYTES)])
        assert len(reads) == 2

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(
                    [b"a", b"content-length", b"authorization", b"connection", b"x-tidegate-mode"]
                ),
                st.sampled_from([b"1", b"a", b"off", b"keep-alive"]),
            ),
            unique_by=lambda item: item[0],
            max_size=5,
        ),
        st.integers(0, 20),
    )
    def test_what_goes_out_is_as_if_it_had_been_read(self, headers: Pairs, size: int) -> None:
        known, body = heads(), b"x" * size
        read(known, headers)
        requests = [
            provider_request(read(reader, headers)[0].caller, body) for reader in (known, heads())
        ]
        assert requests[0] == requests[1]


class TestClientKeys:
    def test_are_compared_each_time(
        self, monkeypatch: pytest.MonkeyPatch, reads: list[Pairs]
    ) -> None:
        compared = []
        identify = tenants.identify

        def noting(tenancy: Tenancy, headers: Any, query: bytes) -> Any:
            compared.append(query)
            return identify(tenancy, headers, query)

        monkeypatch.setattr(callers, "identify", noting)
        reader = heads(client_keys=("tg-a",))
        sent = [(b"authorization", b"Bearer tg-a"), (b"content-length", b"1")]
        assert read(reader, sent) == read(reader, sent)
        assert (len(compared), len(reads)) == (2, 1)
        for _ in range(2):
            with pytest.raises(Unauthorized):
                read(reader, [(b"authorization", b"Bearer tg-b")])
        assert (len(compared), len(reads)) == (4, 1)


class TestWhatItSays:
    def test_of_the_body_and_the_path(self) -> None:
        sent = [(b"content-type", b"Application/JSON"), (b"content-encoding", b"gzip, br")]
        head, declared = read(heads(), [*sent, (b"expect", b"100-continue")])
        assert head.is_chat
        assert head.says_json
        assert head.waits
        assert head.codings == ("gzip", "br")
        assert (head.deployment, declared) == ("", b"")

    def test_nothing_said(self) -> None:
        head, _ = read(heads(), [], method="GET", path=b"/openai/deployments/gpt/models")
        assert not head.is_chat
        assert not head.says_json
        assert not head.waits
        assert head.codings == ()
        assert head.deployment == "gpt"

    def test_no_deployment_has_a_name_that_is_too_long_for_a_model(self) -> None:
        for chars, named in ((MAX_MODEL_CHARS, MAX_MODEL_CHARS), (MAX_MODEL_CHARS + 1, 0)):
            path = b"/openai/deployments/" + b"g" * chars + b"/chat/completions"
            head, _ = read(heads(), [], path=path)
            assert head.deployment == "g" * named

    @pytest.mark.parametrize("method", ["CONNECT", "TRACE"])
    def test_methods_that_are_not_relayed(self, method: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            read(heads(), [], method=method)
        assert refused.value.status == 405

    def test_no_websocket(self) -> None:
        with pytest.raises(InvalidRequest) as refused:
            read(heads(), [(b"upgrade", b"WebSocket")])
        assert refused.value.status == 426

    def test_a_streamed_body_keeps_the_length_of_its_own_request(self) -> None:
        async def chunks() -> Any:
            yield b""

        reader = heads()
        for length in (b"999", b"1000"):
            head, declared = read(reader, [(b"content-length", length), (b"a", b"1")])
            request = streamed_request(head.caller, chunks(), declared=declared)
            assert request.headers == ((b"content-length", length), (b"a", b"1"))
