"""Turns as the pipeline makes them, without an edge: a real store, a real meter, a real fold."""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from proxy.anchor_book import AnchorBook
from proxy.core.budget import Budget
from proxy.core.compaction import RangePlan
from proxy.core.frame import KeptWords
from proxy.core.replacements import NewReplacement, Replacement, ReplacementKind
from proxy.core.surface import planned_ids
from proxy.meter import Meter
from proxy.model_rules import ModelRules
from proxy.relay import Caller, Upstream
from proxy.store.sql import SqlStore
from proxy.surfaces import Surfaces
from proxy.turn import Turn
from proxy.wire import ChatRequest, read_chat

UPSTREAM = Upstream("default", "http://127.0.0.1:9/v1")
BUDGET = Budget(6000, 0, 750, None, trigger_tokens=4800, retain_tokens=960)


@dataclass(frozen=True)
class Bench:
    """The parts that make turns."""

    store: SqlStore
    meter: Meter
    anchors: AnchorBook
    surfaces: Surfaces

    async def turn(
        self, messages: Sequence[Mapping[str, Any]], *, of: Caller | None = None, **fields: Any
    ) -> Turn:
        """A request opened on the store, not yet priced."""
        rules = ModelRules(budget=BUDGET)
        return await self.surfaces.open(chat(messages, **fields), of or caller(), rules)

    async def stored(self, turn: Turn, *new: NewReplacement) -> tuple[Replacement, ...]:
        """Replacements written as if a compaction had landed."""
        return await self.store.commit(
            turn.scope,
            turn.root,
            turn.chain,
            planned_on=planned_ids(turn.applied),
            new=new,
            lease=None,
            conversation="c",
        )


@contextlib.asynccontextmanager
async def bench(folder: Path) -> AsyncIterator[Bench]:
    """The parts on a store in `folder`."""
    store = SqlStore(f"sqlite:///{folder}/turns.db", sole_process=True)
    meter, anchors = Meter(), AnchorBook()
    await store.open()
    try:
        yield Bench(store, meter, anchors, Surfaces(store, meter, anchors, b"k" * 32))
    finally:
        meter.close()
        await store.close()


def chat(messages: Sequence[Mapping[str, Any]], **fields: Any) -> ChatRequest:
    """A chat request as it is read from a body."""
    body = json.dumps({"model": "gpt-4o", **fields, "messages": list(messages)}).encode()
    request = read_chat(body)
    assert request is not None
    return request


def caller(tenant: str = "tenant-a", **changes: Any) -> Caller:
    """Somebody who asks."""
    usual = Caller(
        tenant=tenant,
        upstream=UPSTREAM,
        method="POST",
        path=b"/v1/chat/completions",
        query=b"",
        headers=(),
        credential=True,
    )
    return replace(usual, **changes)


def summary_until(turn: Turn, end: int, text: str = "It was settled.") -> NewReplacement:
    """A summary of `history[:end]`."""
    payload = {
        "format": 1,
        "summary": text,
        "first": None,
        "rules": [],
        "left_out": 0,
        "kept": [],
        "merge": False,
        "fence": "=====",
    }
    return NewReplacement(ReplacementKind.SUMMARY, 0, end, turn.chain[end - 1], payload)


def plan_until(turn: Turn, end: int) -> RangePlan:
    """A plan to summarise `history[:end]`."""
    return RangePlan(
        end=end,
        end_fingerprint=turn.chain[end - 1],
        range_tokens=1000,
        new_tokens=900,
        summary_cap_tokens=200,
        kept_words=KeptWords(None, (), 0),
        kept=(),
        dropped_instructions=0,
    )
