"""What holds for one model and one request: its budget, and the operator's choices for compaction.
Values only; `rulebook` makes them."""

from dataclasses import dataclass, field

from proxy.core.budget import Budget
from proxy.core.compaction import Words
from proxy.core.summary_tasks import SummaryMode


@dataclass(frozen=True, slots=True)
class SummaryModel:
    """A model that may be asked for summaries, and the name of the upstream that serves it."""

    upstream: str
    model: str


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """The operator's choices for one model. `summarizers` empty: the conversation's own model."""

    enabled: bool = True
    retries: int = 1
    max_overflow_replays: int = 1
    digest_allowed: bool = True
    words: Words = field(default_factory=Words)
    summary_mode: SummaryMode = SummaryMode.AUTO
    summary_timeout_seconds: float = 120.0
    summarizers: tuple[SummaryModel, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelRules:
    """Everything that decides about one request besides its messages."""

    budget: Budget
    compaction: CompactionPolicy = field(default_factory=CompactionPolicy)
    hold_seconds: float = 10.0
    takes_no_images: bool = False
    inject_stream_usage: bool = False
