"""The loopback guard: Host and Origin must name this machine."""

import pytest

from proxy.guard import NotLoopback, is_loopback_host, require_loopback

LOOPBACK = [
    "localhost",
    "localhost:8080",
    "LOCALHOST",
    "app.localhost",
    "127.0.0.1",
    "127.9.9.9:80",
]
LOOPBACK += ["[::1]", "[::1]:8080", "::1", "localhost."]
FOREIGN = ["evil.example", "evil.example:8080", "localhost.evil.example", "0.0.0.0", "10.0.0.1", ""]
FOREIGN += ["127.0.0.1.evil.example", "[::2]:80", "127.0.0.1@evil.example"]


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_hosts_pass(host: str) -> None:
    require_loopback([(b"host", host.encode())])


@pytest.mark.parametrize("host", FOREIGN)
def test_foreign_hosts_are_refused(host: str) -> None:
    with pytest.raises(NotLoopback) as refused:
        require_loopback([(b"host", host.encode())])
    assert refused.value.status == 403


def test_a_missing_host_is_refused() -> None:
    with pytest.raises(NotLoopback):
        require_loopback([])


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:8080"]
)
def test_loopback_origins_pass(origin: str) -> None:
    require_loopback([(b"host", b"localhost"), (b"origin", origin.encode())])


@pytest.mark.parametrize("origin", ["null", "https://evil.example", "http://[", "file://", "x"])
def test_foreign_origins_are_refused(origin: str) -> None:
    with pytest.raises(NotLoopback):
        require_loopback([(b"host", b"localhost"), (b"origin", origin.encode())])


def test_bare_hosts() -> None:
    assert is_loopback_host("127.0.0.1")
    assert not is_loopback_host("192.168.0.1")
