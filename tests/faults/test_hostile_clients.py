"""Clients that mean harm, or were written badly: bounded, refused clearly, isolated."""

import asyncio
import contextlib
import json
import socket
import time
from collections import Counter
from collections.abc import Iterator

import aiohttp
import httpx
import pytest

from tests.faults.cluster import Cluster, Process, cluster
from tests.faults.histories import history
from tests.faults.requests import HELLO, chat_bytes
from tests.faults.scale import figure, scaled
from tests.raw_client import RawClient, ask_chat

SLOW_CLIENTS = scaled(100, 500)
HUGE_BODY_MIB = scaled(160, 1024)
STORM = scaled(100, 1000)
MAX_GROWTH_MIB = 100  # the body limit is 16 MiB here, and one body may be held twice
KEYS = ("key-of-alice", "key-of-bob")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One replica with two client keys."""
    folder = tmp_path_factory.mktemp("hostile")
    with cluster(
        folder,
        f"sqlite:///{folder}/tidegate.db",
        server__client_keys=",".join(KEYS),
        server__body_limit_mib=16,
    ) as made:
        made.replicas[0].rested()
        yield made


@pytest.fixture
def replica(running: Cluster) -> Iterator[Process]:
    """Alive before and after, and answering an honest client."""
    one = running.replicas[0]
    yield one
    assert ask_chat(one.port, HELLO, f"authorization: Bearer {KEYS[0]}").status == 200


def raw(replica: Process, data: bytes, *, seconds: float = 5) -> bytes:
    """What comes back for these bytes until the connection closes or nothing more comes."""
    with socket.create_connection(("127.0.0.1", replica.port), timeout=seconds) as client:
        answer = b""
        with contextlib.suppress(OSError):
            client.sendall(data)
            while chunk := client.recv(65536):
                answer += chunk
        return answer


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
HOST = b"Host: localhost\r\nAuthorization: Bearer key-of-alice\r\nConnection: close\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST
MALFORMED = {
    "length and chunked": POST
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + SMUGGLED,
    "two lengths": POST + b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + SMUGGLED,
    "a list of lengths": POST + b"Content-Length: 0, 44\r\n\r\n" + SMUGGLED,
    "a signed length": POST + b"Content-Length: +4\r\n\r\nabcd",
    "a negative length": POST + b"Content-Length: -1\r\n\r\n",
    "a coding hidden by a tab": POST + b"Transfer-Encoding:\tchunked, x\r\n\r\n0\r\n\r\n",
    "a bad chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    "a name with a space": POST + b"Content-Length : 0\r\n\r\n",
    "a folded header": POST + b"X-A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
    "a NUL in a header": POST + b"X-A: b\x00c\r\nContent-Length: 0\r\n\r\n",
    "no request at all": bytes(range(256)) * 4,
}


@pytest.mark.parametrize("shape", MALFORMED)
def test_what_could_be_read_in_two_ways_is_never_relayed_as_two(
    running: Cluster, replica: Process, shape: str
) -> None:
    answer = raw(replica, MALFORMED[shape])
    assert status(answer) in (0, 400, 401, 404, 413, 501) or answer.count(b"HTTP/1.1 ") == 1
    assert b" 500 " not in answer.split(b"\r\n", 1)[0]
    assert b"/smuggled" not in json.dumps(running.report()["paths"]).encode()


@pytest.mark.parametrize("flood", ["one long header", "many headers", "a long target"])
def test_floods_of_headers_are_refused(replica: Process, flood: str) -> None:
    sent = {
        "one long header": POST + b"X-A: " + b"a" * 2**20 + b"\r\n\r\n",
        "many headers": POST + b"".join(b"X-%d: a\r\n" % n for n in range(50_000)) + b"\r\n",
        "a long target": b"GET /" + b"a" * 2**20 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    }[flood]
    before = replica.memory()
    assert status(raw(replica, sent)) == 431
    assert replica.memory().mib - before.mib < MAX_GROWTH_MIB


def test_a_body_over_the_limit_is_refused_however_large(replica: Process) -> None:
    before = replica.memory()
    block = b" " * 2**20
    head = b"Transfer-Encoding: chunked\r\n\r\n"
    sent = 0
    with socket.create_connection(("127.0.0.1", replica.port), timeout=20) as client:
        client.sendall(POST + head)
        with contextlib.suppress(OSError):
            for _ in range(HUGE_BODY_MIB):
                client.sendall(b"100000\r\n" + block + b"\r\n")
                sent += 1
        answer = b""
        with contextlib.suppress(OSError):
            answer = client.recv(65536)
    after = replica.memory()
    figure("huge body", offered_mib=HUGE_BODY_MIB, taken_mib=sent, mib=[before.mib, after.mib])
    assert status(answer) in (0, 413)
    assert after.mib - before.mib < MAX_GROWTH_MIB


async def test_slow_bodies_hold_up_nobody(replica: Process) -> None:
    """A byte now and then, from many at once."""
    request = chat_bytes("authorization: Bearer key-of-bob")
    slow = [await asyncio.open_connection("127.0.0.1", replica.port) for _ in range(SLOW_CLIENTS)]
    for n, byte in enumerate(request[:40]):
        for _, writer in slow:
            writer.write(bytes([byte]))
        if n == 20:
            started = time.monotonic()
            answer = await asyncio.to_thread(
                ask_chat, replica.port, HELLO, "authorization: Bearer key-of-alice"
            )
            figure("beside slow bodies", seconds=round(time.monotonic() - started, 3))
            assert answer.status == 200
    for _, writer in slow:
        writer.close()


@pytest.mark.parametrize(
    "path",
    [
        "/../etc/passwd",
        "/v1/../../etc/passwd",
        "/v1/%2e%2e/%2e%2e/etc/passwd",
        "/tidegate/../../proxy/app.py",
        "/tidegate/static/../../../etc/passwd",
        "/tidegate/..%2f..%2fapp.py",
        "//etc/passwd",
        "/v1/..\\..\\etc",
    ],
)
def test_no_path_leads_to_a_file(replica: Process, path: str) -> None:
    answer = raw(replica, b"GET " + path.encode() + b" HTTP/1.1\r\n" + HOST + b"\r\n")
    assert b"root:" not in answer
    assert b"import " not in answer
    assert status(answer) != 500


def test_line_ends_in_values_split_no_header(running: Cluster, replica: Process) -> None:
    """Encoded ones pass as the text that they are; the answer has no header of theirs."""
    target = "/v1/models?a=%0d%0aX-Injected:%20yes"
    client = RawClient(replica.port)
    client.request("GET", target, None, "authorization: Bearer key-of-alice")
    answer = client.read_answer(method="GET")
    client.socket.close()
    assert answer.all("x-injected") == []
    name = "a\\r\\nX-Injected: yes"
    chat = ask_chat(
        replica.port,
        HELLO,
        "authorization: Bearer key-of-alice",
        f"x-tidegate-conversation: {name}%0d%0aX-Injected: yes",
    )
    assert chat.status in (200, 422, 400)
    assert chat.all("x-injected") == []


@pytest.mark.parametrize(
    "header",
    [
        "x-nothing: 1",
        "authorization: Bearer wrong",
        "authorization: Bearer key-of-alic",
        "authorization: Bearer key-of-alicee",
        "authorization: Basic key-of-carol",
        "api-key: wrong",
    ],
)
def test_wrong_keys_are_refused(replica: Process, header: str) -> None:
    answer = ask_chat(replica.port, HELLO, header)
    assert answer.status == 401
    assert answer.json["error"]["code"] == "invalid_api_key"


def test_another_tenants_conversation_does_not_exist(replica: Process) -> None:
    chat = ask_chat(
        replica.port,
        HELLO,
        "authorization: Bearer key-of-alice",
        "x-tidegate-conversation: of-alice",
    )
    assert chat.status == 200
    for method, path in (
        ("GET", "/tidegate/conversations/of-alice"),
        ("GET", "/tidegate/conversations/of-alice/log"),
        ("GET", "/tidegate/conversations/of-alice/events"),
        ("GET", "/tidegate/conversations/of-alice/surface"),
        ("DELETE", "/tidegate/conversations/of-alice"),
        ("POST", "/tidegate/conversations/of-alice/compact"),
    ):
        seen = {
            key: httpx.request(
                method,
                replica.url + path,
                headers={"authorization": f"Bearer {key}"},
                json={} if method == "POST" else None,
                trust_env=False,
                timeout=20,
            ).status_code
            for key in reversed(KEYS)
            if not (method == "DELETE" and key == KEYS[0])
        }
        assert seen["key-of-bob"] == 404, (method, path)
        assert seen.get("key-of-alice", 200) < 500


async def test_a_storm_of_compact_commands_is_answered_and_costs_one_summary(
    running: Cluster, replica: Process
) -> None:
    before = sum(call["summary"] for call in running.report()["calls"])
    messages = [*history(900, 8), {"role": "assistant", "content": "Well."}]
    body = {**HELLO, "messages": [*messages, {"role": "user", "content": "/compact"}]}
    headers = {"authorization": "Bearer key-of-bob"}
    seen: Counter[int] = Counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=50)) as session:

        async def one() -> None:
            url = f"{replica.url}/v1/chat/completions"
            async with session.post(url, json=body, headers=headers) as reply:
                await reply.read()
                seen[reply.status] += 1

        await asyncio.gather(*(one() for _ in range(STORM)))
    summaries = sum(call["summary"] for call in running.report()["calls"]) - before
    figure("a storm of /compact", commands=STORM, summary_calls=summaries, statuses=seen)
    assert seen == {200: STORM}
    assert 1 <= summaries <= 2
