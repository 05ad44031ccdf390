"""Who sends a request: credentials, client keys, and the tenant's keyed hash."""

from typing import Any

import pytest

from proxy.tenants import (
    Tenancy,
    Unauthorized,
    credentials_of,
    identify,
    without_credentials,
)


def tenancy(**options: Any) -> Tenancy:
    return Tenancy(**({"secret": b"s" * 32} | options))


BEARER = (b"authorization", b"Bearer one")


class TestTenant:
    def test_the_same_credential_is_the_same_tenant_and_another_is_not(self) -> None:
        one = identify(tenancy(), [BEARER], b"")
        assert one.credential
        assert identify(tenancy(), [(b"x", b"1"), BEARER], b"").tenant == one.tenant
        others = [
            identify(tenancy(), [(b"authorization", b"Bearer two")], b""),
            identify(tenancy(), [(b"api-key", b"Bearer one")], b""),
            identify(tenancy(), [BEARER, (b"api-key", b"x")], b""),
            identify(tenancy(), [], b"key=one"),
            identify(tenancy(), [], b""),
        ]
        assert len({one.tenant, *(other.tenant for other in others)}) == 6

    def test_the_order_of_credentials_does_not_matter(self) -> None:
        sent = [BEARER, (b"x-goog-api-key", b"g")]
        forward = identify(tenancy(), sent, b"").tenant
        assert forward == identify(tenancy(), sent[::-1], b"").tenant

    def test_no_credential_is_one_tenant_without_a_credential(self) -> None:
        nobody = identify(tenancy(), [(b"authorization", b"")], b"key=&x=1")
        assert not nobody.credential
        assert nobody.tenant == identify(tenancy(), [], b"").tenant

    def test_it_is_a_keyed_hash_that_shows_nothing(self) -> None:
        tenant = identify(tenancy(), [BEARER], b"").tenant
        assert len(tenant) == 32
        assert "one" not in tenant
        assert tenant != identify(tenancy(secret=b"t" * 32), [BEARER], b"").tenant

    def test_parts_cannot_be_shifted_into_each_other(self) -> None:
        one = identify(tenancy(), [(b"api-key", b"ab"), (b"x-api-key", b"c")], b"")
        other = identify(tenancy(), [(b"api-key", b"a"), (b"x-api-key", b"bc")], b"")
        assert one.tenant != other.tenant

    def test_a_trusted_header_names_the_tenant_whatever_the_credential(self) -> None:
        named = tenancy(tenant_header="X-Team")
        one = identify(named, [(b"x-team", b"blue"), BEARER], b"")
        assert one.credential
        assert one.tenant == identify(named, [(b"x-team", b"blue")], b"").tenant
        assert one.tenant != identify(named, [(b"x-team", b"red"), BEARER], b"").tenant
        assert identify(named, [BEARER], b"").tenant == identify(tenancy(), [BEARER], b"").tenant


class TestClientKeys:
    keys = tenancy(client_keys=("k-1", "k-2"), tenant_header="x-team")

    @pytest.mark.parametrize(
        ("headers", "query"),
        [
            ([(b"authorization", b"Bearer k-2")], b""),
            ([(b"Authorization", b"bearer  k-2 ")], b""),
            ([(b"authorization", b"k-2")], b""),
            ([(b"api-key", b"k-2")], b""),
            ([(b"x-api-key", b"k-2")], b""),
            ([(b"x-goog-api-key", b"k-2")], b""),
            ([], b"a=1&key=k-2"),
            ([], b"key=k%2D2"),
            ([(b"authorization", b"Bearer other"), (b"api-key", b"k-2")], b""),
            ([(b"api-key", b"k-2"), (b"x-team", b"blue")], b""),
        ],
    )
    def test_a_key_is_taken_wherever_it_stands_and_is_the_tenant(
        self, headers: Any, query: bytes
    ) -> None:
        plain = identify(self.keys, [(b"api-key", b"k-2")], b"").tenant
        assert identify(self.keys, headers, query).tenant == plain

    @pytest.mark.parametrize(
        "headers",
        [
            [],
            [(b"authorization", b"Bearer k-3")],
            [(b"authorization", b"Bearer k-")],
            [(b"authorization", b"Basic k-1")],
            [(b"x-team", b"k-1")],
        ],
    )
    def test_none_or_a_wrong_one_is_refused_by_status_401(self, headers: Any) -> None:
        with pytest.raises(Unauthorized) as refused:
            identify(self.keys, headers, b"")
        assert refused.value.status == 401
        assert refused.value.envelope()["error"]["code"] == "invalid_api_key"


def test_all_credentials_are_found_and_can_be_taken_out() -> None:
    headers = [BEARER, (b"Api-Key", b"a"), (b"cookie", b"c"), (b"x-api-key", b"")]
    assert credentials_of(headers, b"key=q&x=key") == [
        BEARER,
        (b"api-key", b"a"),
        (b"?key", b"q"),
    ]
    kept, query = without_credentials(headers, b"x=1&key=q&monkey=2")
    assert list(kept) == [(b"cookie", b"c")]
    assert query == b"x=1&monkey=2"
    assert without_credentials([], b"a=1")[1] == b"a=1"
