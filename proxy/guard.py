"""On loopback the operator's browser is a way in: names rebound to 127.0.0.1, pages that post
across sites. So what could hurt answers only to a loopback Host and Origin."""

import ipaddress
from urllib.parse import urlsplit

from proxy.core.errors import TidegateError
from proxy.tenants import Headers

_USUAL = frozenset({"localhost", "127.0.0.1"})


class NotLoopback(TidegateError):
    """The request names a host or an origin that is not this machine."""

    status = 403
    type = "invalid_request_error"
    code = "forbidden_origin"


def is_loopback_host(host: str) -> bool:
    """Whether a bare host (no port) means this machine: `localhost`, 127.0.0.0/8, ::1."""
    if host in _USUAL:
        return True
    name = host.strip().strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def require_loopback(headers: Headers) -> None:
    """Refuses a request whose Host, or Origin if it has one, is not loopback.

    Raises:
        NotLoopback: one of them is not, or Host is missing.
    """
    host = origin = None
    for name, value in headers:
        if name == b"host":
            host = value.decode("latin-1")
        elif name == b"origin":
            origin = value.decode("latin-1")
    if host is None or not is_loopback_host(_without_port(host)):
        raise NotLoopback("This address answers only requests whose Host is a loopback name.")
    if origin is not None and not is_loopback_host(_origin_host(origin)):
        raise NotLoopback("This address answers only requests whose Origin is a loopback name.")


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host


def _origin_host(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""
