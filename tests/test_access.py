"""Whom a request to `/tidegate/...` is served as, by what it shows and where it comes from."""

import pytest

from proxy.access import Access, AccessRules, AdminKeyNeeded, access_of
from proxy.tenants import Tenancy, Unauthorized, identify

TENANCY = Tenancy(b"secret" * 6)
KEY = [(b"authorization", b"Bearer sk-one")]


def rules(tenancy: Tenancy = TENANCY, *, loopback: bool = True) -> AccessRules:
    return AccessRules(tenancy, admin_key="the admin's", bound_to_loopback=loopback)


def test_on_loopback_who_shows_nothing_is_the_operator() -> None:
    assert access_of(rules(), [(b"host", b"localhost")], b"") == Access(None)
    assert access_of(rules(), [], b"").is_operator


@pytest.mark.parametrize("loopback", [True, False])
def test_a_credential_is_its_tenant_on_loopback_too(loopback: bool) -> None:
    tenant = identify(TENANCY, KEY, b"").tenant
    assert access_of(rules(loopback=loopback), KEY, b"") == Access(tenant)
    assert access_of(rules(), [], b"key=abc").tenant == identify(TENANCY, [], b"key=abc").tenant


def test_off_loopback_the_admin_key_is_needed() -> None:
    with pytest.raises(AdminKeyNeeded) as refused:
        access_of(rules(loopback=False), [], b"")
    assert refused.value.status == 401
    assert "the admin's" not in str(refused.value)
    shown = [(b"authorization", b"Bearer the admin's")]
    assert access_of(rules(loopback=False), shown, b"").is_operator
    assert access_of(rules(), shown, b"").is_operator


def test_a_request_that_a_front_passed_on_is_not_the_operators() -> None:
    for name in (b"X-Forwarded-For", b"Forwarded", b"x-real-ip", b"Via"):
        with pytest.raises(AdminKeyNeeded):
            access_of(rules(), [(name, b"203.0.113.9")], b"")


def test_with_client_keys_a_credential_must_be_one_of_them() -> None:
    keyed = Tenancy(b"secret" * 6, ("sk-one",))
    assert access_of(rules(keyed), KEY, b"").tenant == identify(keyed, KEY, b"").tenant
    with pytest.raises(Unauthorized):
        access_of(rules(keyed), [(b"authorization", b"Bearer other")], b"")
    assert access_of(rules(keyed), [], b"").is_operator


def test_the_header_of_a_trusted_front_names_the_tenant() -> None:
    named = Tenancy(b"secret" * 6, (), "X-Tenant")
    shown = [(b"x-tenant", b"blue"), (b"x-forwarded-for", b"203.0.113.9")]
    assert access_of(rules(named), shown, b"").tenant == identify(named, shown, b"").tenant
