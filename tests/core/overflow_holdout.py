"""Measures how far the table of overflow signs carries beyond what it was written from.

For every provider of a labelled corpus, its rows are judged by a table without that provider's own
signs. Run as a script, it prints the shares and the misses; the tests use the same functions.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxy.core.overflow import Refusal, SignTable, classify, load_table

CORPUS = Path(__file__).parents[2].parent / "shared" / "errors" / "corpus.jsonl"


@dataclass(slots=True)
class Score:
    """How many rows were judged, and which were wrong."""

    rows: int = 0
    wrong_kind: list[str] = field(default_factory=list)
    wrong_numbers: list[str] = field(default_factory=list)
    false_overflow: list[str] = field(default_factory=list)

    @property
    def kinds_right(self) -> float:
        return 1 - len(self.wrong_kind) / self.rows

    @property
    def all_right(self) -> float:
        return 1 - len({*self.wrong_kind, *self.wrong_numbers}) / self.rows


def rows() -> list[dict[str, Any]]:
    """The rows a test may be gated on: neither ambiguous nor unverified."""
    lines = CORPUS.read_text("utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    return [
        row
        for row in found
        if not row.get("unverified") and not (row.get("note") or "").startswith("AMBIGUOUS")
    ]


def judge(row: dict[str, Any], table: SignTable | None = None) -> Refusal:
    body = row["body"] if isinstance(row["body"], str) else json.dumps(row["body"])
    return classify(row["status"], body.encode(), in_stream=row["in_stream"], table=table)


def score(*, hold_out: bool) -> Score:
    """All rows judged; with `hold_out`, each without its own provider's signs."""
    raw = load_table()
    tables: dict[str, SignTable] = {}
    result = Score()
    for row in rows():
        provider = row["provider"]
        if provider not in tables:
            tables[provider] = SignTable(raw, without=[provider] if hold_out else [])
        refusal = judge(row, tables[provider])
        result.rows += 1
        if refusal.kind != row["kind"]:
            result.wrong_kind.append(row["id"])
            if row["kind"] == "other" and refusal.kind == "context_overflow":
                result.false_overflow.append(row["id"])
        stated = (refusal.window_tokens, refusal.prompt_tokens, refusal.requested_output_tokens)
        if stated != (row["window"], row["prompt_tokens"], row["requested_output"]):
            result.wrong_numbers.append(row["id"])
    return result


if __name__ == "__main__":
    for name, hold_out in (("in sample", False), ("hold-out", True)):
        found = score(hold_out=hold_out)
        line = (
            f"{name}: {found.rows} rows, kinds {found.kinds_right:.1%}, all {found.all_right:.1%}"
        )
        sys.stdout.write(f"{line}, misses {sorted({*found.wrong_kind, *found.wrong_numbers})}\n")
