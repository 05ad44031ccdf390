"""What a request of 20 MB costs: memory beside the body's size, and for how long the event loop
stood still, while a stream of another client runs.

    python -m tests.benchmarks.big_bodies [MEGABYTES]

Tidegate, the providers and the reader of the stream are processes of their own. `loop` is the
longest time that Tidegate's loop did not run (a task that wakes every millisecond), `stream` the
longest pause that the other client saw between two events sent every 5 ms; its floor is the one
measured with nothing else going on. `memory` is the peak of the resident set above what it was
before, in bodies. Linux only.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx

from proxy.assembly import create_app
from proxy.settings import Settings
from tests.fake_provider import completion
from tests.serving import serve

MEGABYTES = 20
EVENT_SECONDS = 0.005
WINDOW_TOKENS = 128_000
MAX_IMAGES = 5
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x07\x80\0\0\x04\x38\x08\x02\0\0\0"


async def provider(scope: Any, receive: Any, send: Any) -> None:
    """Streams for `beat`; refuses images over five for `picky` and any prompt for `small`."""
    if scope["type"] == "lifespan":
        for kind in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{kind}.complete"})
        return
    pieces, more = [], True
    while more:
        message = await receive()
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"".join(pieces)
    if b'"model": "beat"' in body:
        await _beat(send)
        return
    status, answer = 200, completion("Done.", usage={"prompt_tokens": 100, "completion_tokens": 2})
    if b'"model": "picky"' in body and body.count(b'"image_url": {') > MAX_IMAGES:
        status, answer = 400, _error(f"At most {MAX_IMAGES} image(s) may be provided in one prompt")
    if b'"model": "small"' in body and len(body) > 4 * WINDOW_TOKENS:
        text = f"This model's maximum context length is {WINDOW_TOKENS} tokens. However, your"
        status, answer = 400, _error(f"{text} messages resulted in {len(body) // 4} tokens.")
    headers = [
        (b"content-type", b"application/json"),
        (b"x-digest", hashlib.sha256(body).hexdigest().encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": None}}


async def _beat(send: Any) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    chunk = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]}
    event = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    with contextlib.suppress(OSError):
        while True:
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(EVENT_SECONDS)


def run_provider(pipe: Connection) -> None:
    """In a process of its own, until killed."""
    with serve(provider) as served:
        pipe.send(served.url)
        pipe.recv()


def run_proxy(pipe: Connection, upstream: str, beat: str, folder: str) -> None:
    """Tidegate with a watch on its loop; every message asks for the figures since the last."""
    values: dict[str, Any] = {
        "store": {"url": f"sqlite:///{Path(folder) / 'tidegate.db'}"},
        "upstreams": {
            "default": {"base_url": f"{upstream}/v1"},
            "beat": {"base_url": f"{beat}/v1"},
        },
        "models": [
            {"match": "beat", "upstream": "beat"},
            {"match": "*", "context_window": WINDOW_TOKENS, "headroom_tokens": "auto"},
        ],
    }
    app = create_app(Settings(**values))
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.001)
            longest = max(longest, loop.time() - before - 0.001)

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            scope["state"]["watch"] = asyncio.create_task(watch())
        await app(scope, receive, send)

    with serve(watched) as served:
        pipe.send(served.url)
        while pipe.recv():
            pipe.send((longest, *_memory_kib()))
            longest = 0.0
            Path("/proc/self/clear_refs").write_text("5")


def _memory_kib() -> tuple[int, int]:
    """The resident set: at its peak since the last reset, and now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
    return int(sizes["VmHWM"]), int(sizes["VmRSS"])


def run_reader(pipe: Connection, url: str) -> None:
    """Reads a stream; every message asks for the longest pause since the last."""
    body = {"model": "beat", "stream": True, "messages": [{"role": "user", "content": "go"}]}
    raw = json.dumps(body).encode()
    with httpx.stream("POST", f"{url}/v1/chat/completions", content=raw, timeout=60) as reply:
        longest, before, started = 0.0, time.monotonic(), False
        for _ in reply.iter_raw():
            now = time.monotonic()
            longest, before = max(longest, now - before), now
            if not started:
                pipe.send("reading")
                started = True
            while pipe.poll():
                pipe.recv()
                pipe.send(longest)
                longest = 0.0


def data_url(size_bytes: int, seed: int) -> str:
    """A PNG's header and noise."""
    noise = random.Random(seed).randbytes(size_bytes * 3 // 4)
    return "data:image/png;base64," + base64.b64encode(PNG + noise).decode()


def images(model: str, count: int, total_bytes: int) -> bytes:
    """A chat of so many images."""
    messages: list[dict[str, Any]] = []
    for number in range(count):
        url = {"url": data_url(total_bytes // count, number)}
        image = {"type": "image_url", "image_url": url}
        content = [{"type": "text", "text": f"image {number}"}, image]
        messages += [
            {"role": "user", "content": content},
            {"role": "assistant", "content": "Seen."},
        ]
    return _chat(model, messages[:-1])


def text(model: str, messages: int, total_bytes: int) -> bytes:
    """A chat of text alone."""
    words = random.Random(1).choices([f"word{n}" for n in range(5000)], k=total_bytes // 9)
    step = len(words) // messages
    turns = [" ".join(words[n * step : (n + 1) * step]) for n in range(messages)]
    roles = ("user", "assistant")
    told = [{"role": roles[n % 2], "content": turn} for n, turn in enumerate(turns)]
    return _chat(model, [*told, {"role": "user", "content": "Go on."}])


def tool_results(model: str, total_bytes: int) -> bytes:
    """A chat whose tool results are long."""
    call = {"id": "c", "type": "function", "function": {"name": "run", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Read everything."}]
    line = "2026-01-01 12:00:00 INFO worker 17 handled a request in 12 ms\n"
    for _ in range(20):
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        content = line * (total_bytes // 20 // len(line))
        messages.append({"role": "tool", "tool_call_id": "c", "content": content})
    return _chat(model, messages)


def _chat(model: str, messages: list[dict[str, Any]]) -> bytes:
    return json.dumps({"model": model, "messages": messages}).encode()


Scenario = tuple[str, Callable[[int], bytes]]
SCENARIOS: tuple[Scenario, ...] = (
    ("one image, sent as it is", lambda n: images("any", 1, n)),
    ("the same again", lambda n: images("any", 1, n)),
    ("20 images, provider takes 5", lambda n: images("picky", 20, n)),
    ("the next turn of it", lambda n: images("picky", 20, n)),
    ("200 images, over T", lambda n: images("any", 200, n)),
    ("tool results, over T", lambda n: tool_results("small", n)),
    ("text, over T and refused", lambda n: text("small", 40, n)),
    ("one text, over T and refused", lambda n: text("small", 1, n)),
    ("not a chat", lambda n: b"\0" * n),
)


@contextlib.contextmanager
def started(run: Callable[..., None], *arguments: Any) -> Iterator[tuple[Connection, Any]]:
    """A process, the pipe to it, and what it said when it was ready."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=run, args=(theirs, *arguments), daemon=True
    )
    process.start()
    try:
        yield ours, ours.recv()
    finally:
        process.terminate()
        process.join()


def figures(pipe: Connection) -> Any:
    """What a process measured since it was last asked."""
    pipe.send(True)
    return pipe.recv()


def main(megabytes: int) -> None:
    """Print the table."""
    print("| request | body | status | seconds | loop | stream | memory | action |")
    print("|---|--:|--:|--:|--:|--:|--:|---|")
    with (
        tempfile.TemporaryDirectory() as folder,
        started(run_provider) as (_, upstream),
        started(run_provider) as (_, beat),
        started(run_proxy, upstream, beat, folder) as (proxy, url),
        started(run_reader, url) as (reader, _),
        httpx.Client(base_url=url, timeout=600, trust_env=False) as client,
    ):
        time.sleep(1)
        figures(proxy), figures(reader)
        time.sleep(3)
        loop, *_ = figures(proxy)
        print(f"| nothing | | | | {loop * 1e3:.0f} ms | {figures(reader) * 1e3:.0f} ms | | |")
        for name, make in SCENARIOS:
            body = make(megabytes * 1_000_000)
            path = "/v1/files" if body.startswith(b"\0") else "/v1/chat/completions"
            time.sleep(1)
            _, _, before_kib = figures(proxy)
            figures(reader)
            began = time.monotonic()
            reply = client.post(path, content=body)
            seconds = time.monotonic() - began
            time.sleep(2)  # the log is written after the answer
            loop, peak_kib, _ = figures(proxy)
            bodies = (peak_kib - before_kib) * 1024 / len(body)
            action = reply.headers.get("x-tidegate-action", "-")
            reason = reply.headers.get("x-tidegate-reason", "")
            if reply.headers.get("x-digest") == hashlib.sha256(body).hexdigest():
                action += ", bytes untouched"
            cells = [name, f"{len(body) / 1e6:.1f} MB", reply.status_code, f"{seconds:.2f}"]
            cells += [f"{loop * 1e3:.0f} ms", f"{figures(reader) * 1e3:.0f} ms", f"{bodies:.1f}"]
            print("| " + " | ".join(map(str, [*cells, f"{action} {reason}"])) + " |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MEGABYTES)
