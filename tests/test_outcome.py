"""An outcome is a reply and the headers that say what was done."""

from proxy.outcome import Outcome
from proxy.reply import Reply
from tests.proxied import talk, walking


def test_an_outcome_without_headers_says_nothing() -> None:
    outcome = Outcome(reply=object.__new__(Reply))
    assert dict(outcome.headers) == {}


def test_its_headers_reach_the_client_beside_the_providers() -> None:
    with walking(6000) as walk:
        walk.provider.next(status=503, body=b"{}", headers=[(b"x-request-id", b"r1")])
        reply = walk.ask(talk(2, 20)).reply
    assert reply.status_code == 503
    assert reply.headers["x-request-id"] == "r1"
    assert reply.headers["x-tidegate-window"] == "6000"
