"""Fills a new SQLite store with 10,000 conversations and 1,000,000 events, in half a minute.

`python -m tests.benchmarks.big_store FILE`, then `tidegate serve` with `store.url` naming it, and
look at `/tidegate/`. Written past the store's own writer, which would take far longer.
"""

import argparse
import asyncio
import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from proxy.store.segments import pack
from proxy.store.sql import SqlStore

CONVERSATIONS, EVENTS_EACH, TENANTS = 10_000, 100, 20
WINDOW, TRIGGER = 128_000, 102_400
SECONDS_APART = 7
MODELS = ("gpt-4o", "gpt-5-mini", "qwen3-32b")
COMPACTS_EVERY = 20
Row = tuple[Any, ...]


def digest(*of: Any) -> bytes:
    return hashlib.blake2b(repr(of).encode(), digest_size=16).digest()


def tenant_of(n: int) -> str:
    return digest("tenant", n % TENANTS).hex()


def name_of(n: int) -> str:
    return digest("conversation", n).hex()


def opening_of(n: int) -> bytes:
    text = f"Conversation {n}: how do the tides turn in harbour {n % 97}?"
    return json.dumps({"role": "user", "content": text}).encode()


def conversations(now: float) -> Iterator[Row]:
    """Each of one message, so that its surface is not there to be looked at."""
    for n in range(CONVERSATIONS):
        root, seen = digest("root", n), now - (CONVERSATIONS - n) * SECONDS_APART
        gauge = {
            "tokens": 500 + n * 7919 % 100_000,
            "tokens_exact": True,
            "window_tokens": WINDOW,
            "trigger_tokens": TRIGGER,
            "generation": EVENTS_EACH // COMPACTS_EVERY,
        }
        model = MODELS[n % len(MODELS)]
        yield (
            *(tenant_of(n), name_of(n), root, root, 1, "default", model, None, None, "{}"),
            *(json.dumps(gauge), seen - 3600, seen),
        )


def segments(now: float) -> Iterator[Row]:
    """The one message of each."""
    for n in range(CONVERSATIONS):
        packed, root = pack([opening_of(n)], b"", lambda body: False), digest("root", n)
        size = len(root) + len(packed.bodies)
        yield (
            *(tenant_of(n), name_of(n), 0, 1, root, root, now, size, root),
            *(packed.sizes, packed.content_keys, packed.bodies),
        )


def data_of(turn: int) -> tuple[str, dict[str, Any]]:
    """The kind and the data of a conversation's event."""
    common = {"upstream": "default", "model": MODELS[0]}
    within, generation = turn % COMPACTS_EVERY, turn // COMPACTS_EVERY
    if within == COMPACTS_EVERY - 1:
        return "replacement", {
            **common,
            "checkpoint_id": digest("checkpoint", turn).hex(),
            "replacement": "summary",
            "start": 0,
            "end": turn * 2,
            "tokens_before": TRIGGER,
            "tokens_after": 24_000,
        }
    tokens = 24_000 + within * 4_000
    return "request", {
        **common,
        "status": 200,
        "completed": True,
        "broke": None,
        "finish_reason": "stop",
        "messages": turn * 2 + 1,
        "tokens": tokens,
        "tokens_exact": True,
        "tokens_before": 24_000 + turn * 4_000,
        "reported_tokens": tokens,
        "window_tokens": WINDOW,
        "trigger_tokens": TRIGGER,
        "generation": generation,
        "actions": [],
        "reason": None,
    }


def events(now: float) -> Iterator[Row]:
    """Turn by turn, as conversations that go on at the same time write them."""
    names = [(tenant_of(n), name_of(n)) for n in range(CONVERSATIONS)]
    for turn in range(EVENTS_EACH):
        kind, data = data_of(turn)
        text, at = json.dumps(data), now - (EVENTS_EACH - turn) * SECONDS_APART
        for n, (tenant, name) in enumerate(names):
            yield (f"{turn:08x}{n:024x}", tenant, name, kind, at, len(text), text)


def insert(connection: sqlite3.Connection, table: str, columns: str, rows: Iterator[Row]) -> None:
    marks = ",".join("?" * (columns.count(",") + 1))
    connection.executemany(f"insert into {table} ({columns}) values ({marks})", rows)


async def made(file: Path) -> None:
    """An empty store."""
    store = SqlStore(f"sqlite:///{file}", sole_process=True)
    await store.open()
    await store.secret("digests")
    await store.close()


def fill(file: Path) -> None:
    asyncio.run(made(file))
    now = time.time()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("pragma synchronous = off")
        insert(
            connection,
            "conversations",
            "tenant,id,root,last_fingerprint,message_count,upstream,model,head,tools,labels,"
            "gauge,created_at,seen_at",
            conversations(now),
        )
        insert(
            connection,
            "segments",
            "tenant,conversation,start,messages,last,parent,seen,bytes,fingerprints,sizes,"
            "content_keys,bodies",
            segments(now),
        )
        insert(connection, "events", "id,tenant,conversation,kind,time,bytes,data", events(now))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.big_store")
    parser.add_argument("file", type=Path, help="the SQLite file to make")
    fill(parser.parse_args().file.absolute())
