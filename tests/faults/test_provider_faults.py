"""Whatever a provider does, its client sees one stated outcome and the worker goes on."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.faults.cluster import Process, cluster, free_port
from tests.faults.faulty_provider import (
    WHOLE,
    WHOLE_STREAM,
    gzip_bomb,
    huge_pieces,
    serve_faults,
)
from tests.faults.histories import history
from tests.faults.requests import HELLO, chat_bytes
from tests.faults.scale import figure
from tests.raw_client import Answer, RawClient, ask_chat
from tests.raw_provider import RawProvider

STALL_LIMIT_SECONDS = 1.5
MAX_GROWTH_MIB = 48


@dataclass(frozen=True)
class Outcome:
    """What the client sees; `body` None: whatever came before the cut."""

    status: int
    code: str | None = None
    body: bytes | None = None
    complete: bool = True
    stream: bool = True


# fault: outcome. A break before the first byte is an error with a status; one after it is a break.
OUTCOMES = {
    "reset": Outcome(502, "upstream_unreachable"),
    "close": Outcome(502, "upstream_unreachable"),
    "reset-in-headers": Outcome(502, "upstream_unreachable"),
    "stall": Outcome(504, "upstream_timeout"),
    "garbage": Outcome(502, "upstream_error"),
    "reset-in-stream": Outcome(200, complete=False),
    "close-in-stream": Outcome(200, complete=False),
    "stall-in-stream": Outcome(200, complete=False),
    "garbage-in-stream": Outcome(200, complete=False),
    "one-byte-chunks": Outcome(200, body=WHOLE_STREAM),
    "too-long-length": Outcome(502, "upstream_broke", stream=False),
    "too-short-length": Outcome(502, "upstream_error", stream=False),
}
# fault of the summary call: the reason that the answered request names.
SUMMARY_OUTCOMES = {
    "summary-reset": "summary-failed",
    "summary-reset-in-headers": "summary-failed",
    "summary-too-long-length": "summary-failed",
    "summary-garbage": "summary-failed",
    "summary-stall": "summary-timeout",
    "summary-bomb": "summary-failed",
    "summary-huge": "summary-failed",
}


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Before a provider that breaks, with short timeouts."""
    folder = tmp_path_factory.mktemp("faults")
    gzip_bomb()  # takes longer to make than the replica waits
    huge_pieces()
    with (
        RawProvider(serve_faults) as provider,
        cluster(
            folder,
            f"sqlite:///{folder}/tidegate.db",
            upstream=f"{provider.url}/v1",
            server__first_byte_timeout_seconds=STALL_LIMIT_SECONDS,
            server__between_bytes_timeout_seconds=STALL_LIMIT_SECONDS,
            compaction__summary_timeout_seconds=STALL_LIMIT_SECONDS,
        ) as running,
    ):
        running.replicas[0].rested()
        yield running.replicas[0]


def ask(replica: Process, fault: str, *, stream: bool = True) -> Answer:
    return ask_chat(replica.port, {**HELLO, "stream": stream}, f"x-fault: {fault}")


@pytest.mark.parametrize("fault", OUTCOMES)
def test_a_fault_has_its_outcome(replica: Process, fault: str) -> None:
    expected = OUTCOMES[fault]
    answer = ask(replica, fault, stream=expected.stream)
    assert (answer.status, answer.complete) == (expected.status, expected.complete)
    if expected.code is not None:
        assert answer.json["error"]["code"] == expected.code
    elif expected.body is not None:
        assert answer.body == expected.body
    else:
        assert (WHOLE_STREAM if expected.stream else WHOLE).startswith(answer.body)
    # The worker and its pool are as they were.
    assert ask(replica, "").body == WHOLE_STREAM
    assert ask(replica, "", stream=False).body == WHOLE


@pytest.mark.parametrize("fault", SUMMARY_OUTCOMES)
def test_a_fault_of_the_summary_call_costs_nobody_an_answer(replica: Process, fault: str) -> None:
    """A conversation of its own for each, over the window: the digest stands in."""
    conversation = 100 + list(SUMMARY_OUTCOMES).index(fault)
    before = replica.memory()
    body = {"model": fault, "messages": history(conversation, 14)}
    answer = ask_chat(replica.port, body)
    assert (answer.status, answer.body) == (200, WHOLE)
    assert answer.one("x-tidegate-reason") == SUMMARY_OUTCOMES[fault]
    assert answer.one("x-tidegate-action") == "digest"
    assert replica.memory().mib - before.mib < MAX_GROWTH_MIB


def test_a_provider_that_refuses_connections_is_a_502(tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{free_port()}/v1"
    store = f"sqlite:///{tmp_path}/tidegate.db"
    with cluster(tmp_path, store, upstream=dead) as running:
        answer = ask_chat(running.replicas[0].port, HELLO)
        assert answer.status == 502
        assert answer.json["error"]["code"] == "upstream_unreachable"
        assert running.replicas[0].healthy()


def test_a_hundred_megabytes_pass_and_are_never_held(replica: Process) -> None:
    before = replica.memory()
    client = RawClient(replica.port)
    client.send(chat_bytes("x-fault: huge", body={**HELLO, "stream": False}))
    answer = client.read_head()
    digest, most = hashlib.sha256(), 0.0
    for n, (_, chunk) in enumerate(client.chunks(answer)):
        digest.update(chunk)
        if n % 100 == 0:
            most = max(most, replica.memory().mib)
    client.socket.close()
    wanted = hashlib.sha256()
    for piece in huge_pieces():
        wanted.update(piece)
    figure("100 MB reply", mib=[round(before.mib), round(most)])
    assert answer.complete
    assert digest.digest() == wanted.digest()
    assert most - before.mib < MAX_GROWTH_MIB


def test_a_bomb_in_an_error_passes_as_it_came_and_is_not_unpacked_whole(replica: Process) -> None:
    before = replica.memory()
    answer = ask_chat(replica.port, HELLO, "x-fault: bomb", "accept-encoding: gzip")
    after = replica.memory()
    figure("gzip bomb", mib=[round(before.mib), round(after.mib)])
    assert (answer.status, answer.complete) == (400, True)
    assert answer.body == gzip_bomb()
    assert after.mib - before.mib < MAX_GROWTH_MIB
    assert httpx.get(f"{replica.url}/readyz", trust_env=False).status_code == 200
