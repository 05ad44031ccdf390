"""Who may use `/tidegate/...`: a credential is its tenant, the admin key and the bare loopback are
the operator. Nobody reaches another tenant's conversations but the operator."""

import hmac
from dataclasses import dataclass, field

from proxy.core.errors import TidegateError
from proxy.tenants import Headers, Tenancy, credentials_of, identify

# A front on this machine passes requests of others on: they are not the operator's.
_FROM_A_FRONT = frozenset({b"forwarded", b"x-real-ip", b"via"})
_FROM_A_FRONT_PREFIX = b"x-forwarded-"
_BEARER = b"bearer"


class AdminKeyNeeded(TidegateError):
    """Without a credential only the operator is served, who has to show it from off loopback."""

    status = 401
    type = "invalid_request_error"
    code = "admin_key_needed"


@dataclass(frozen=True, slots=True)
class Access:
    """Whose things a request may reach; `tenant` None is the operator, who reaches everything."""

    tenant: str | None

    @property
    def is_operator(self) -> bool:
        """Whether it may see every tenant."""
        return self.tenant is None


@dataclass(frozen=True, slots=True)
class AccessRules:
    """What the operator decided about `/tidegate/...`."""

    tenancy: Tenancy
    admin_key: str | None = field(default=None, repr=False)
    bound_to_loopback: bool = True


def access_of(rules: AccessRules, headers: Headers, query: bytes) -> Access:
    """Whom the request is served as.

    Raises:
        AdminKeyNeeded: it shows nothing, and did not come straight from this machine.
        Unauthorized: client keys are configured, and what it shows is none of them.
    """
    sent = credentials_of(headers, query)
    if rules.admin_key is not None and _shows(rules.admin_key, sent):
        return Access(None)
    if sent or _names_a_tenant(rules.tenancy, headers):
        return Access(identify(rules.tenancy, headers, query).tenant)
    if rules.bound_to_loopback and not _came_through_a_front(headers):
        return Access(None)
    raise AdminKeyNeeded(
        "Send the key of server.admin_key as a bearer token, or the credential whose conversations "
        "you want to see."
    )


def _shows(admin_key: str, sent: list[tuple[bytes, bytes]]) -> bool:
    """Every credential is compared, in constant time each."""
    wanted = admin_key.encode()
    matched = False
    for where, value in sent:
        offered = value
        if where == b"authorization":
            scheme, _, rest = value.partition(b" ")
            offered = rest.strip() if scheme.lower() == _BEARER else value
        matched |= hmac.compare_digest(wanted, offered)
    return matched


def _names_a_tenant(tenancy: Tenancy, headers: Headers) -> bool:
    if not tenancy.tenant_header:
        return False
    wanted = tenancy.tenant_header.lower().encode()
    return any(name.lower() == wanted and value for name, value in headers)


def _came_through_a_front(headers: Headers) -> bool:
    return any(
        name.lower() in _FROM_A_FRONT or name.lower().startswith(_FROM_A_FRONT_PREFIX)
        for name, _ in headers
    )
