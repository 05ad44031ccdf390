"""Every Prometheus name, in one table. Labels take values from closed sets, or from model names of
which only the first few hundred are told apart, so that no client can make the series grow."""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

MODELS_TOLD_APART = 200
OTHER_MODEL = "other"

TABLE: dict[str, tuple[str, str, tuple[str, ...]]] = {
    # name: (type, what it says, labels)
    "tidegate_requests_total": (
        "counter",
        "Chat requests by model, by what was done (the x-tidegate-action header) and status class",
        ("model", "action", "status"),
    ),
    "tidegate_client_tokens_total": (
        "counter",
        "Tokens of counted chat requests as the clients sent them",
        ("model",),
    ),
    "tidegate_forwarded_tokens_total": (
        "counter",
        "Tokens of counted chat requests as they were forwarded",
        ("model",),
    ),
    "tidegate_uncounted_requests_total": (
        "counter",
        "Chat requests whose bytes already said that they fit, so that nothing was counted",
        ("model",),
    ),
    "tidegate_compactions_total": (
        "counter",
        "Compactions of a range by cause and outcome",
        ("cause", "outcome"),
    ),
    "tidegate_reasons_total": (
        "counter",
        "Requests that name a reason (the x-tidegate-reason header)",
        ("reason",),
    ),
    "tidegate_summary_calls_total": ("counter", "Calls to summarisers by outcome", ("outcome",)),
    "tidegate_summary_prompt_tokens_total": (
        "counter",
        "Prompt tokens that summarisers reported",
        (),
    ),
    "tidegate_summary_completion_tokens_total": (
        "counter",
        "Completion tokens that summarisers reported",
        (),
    ),
    "tidegate_summary_seconds": ("histogram", "Seconds of one call to a summariser", ()),
    "tidegate_replays_total": ("counter", "Requests sent again after a recovery", ("cause",)),
    "tidegate_offloaded_images_total": ("counter", "Images replaced by a placeholder", ()),
    "tidegate_prefix_share": (
        "histogram",
        "Share of the forwarded messages that begin like the conversation's previous request",
        (),
    ),
    "tidegate_degraded_total": ("counter", "Requests answered without a part", ("part",)),
    "tidegate_estimate_ratio": (
        "gauge",
        "Last prompt size reported by the provider, by our count of it",
        ("model",),
    ),
    "tidegate_in_flight": ("gauge", "Chat requests under way", ()),
    "tidegate_added_seconds": (
        "histogram",
        "Seconds between the last byte of a chat request and the provider being asked",
        (),
    ),
}

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)
_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class SummaryFigures:
    """One call to a summariser, as the metrics see it."""

    outcome: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float


class Metrics:
    """The series of one process. Every method is a plain update, safe between awaits."""

    def __init__(self) -> None:
        """A registry of its own, so that two apps in one process do not share series."""
        self.registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        # Finding a series by its labels costs several times what an update does.
        self._adders: dict[object, Callable[[float], None]] = {}
        self._setters: dict[object, Callable[[float], None]] = {}
        self._models: set[str] = set()
        for name, (kind, text, labels) in TABLE.items():
            if kind == "counter":
                self._counters[name] = Counter(name, text, labels, registry=self.registry)
            elif kind == "gauge":
                self._gauges[name] = Gauge(name, text, labels, registry=self.registry)
            else:
                buckets = _SHARES if name == "tidegate_prefix_share" else _SECONDS
                self._histograms[name] = Histogram(
                    name, text, labels, registry=self.registry, buckets=buckets
                )

    def exposition(self) -> bytes:
        """The text that `/metrics` answers."""
        return generate_latest(self.registry)

    def model_label(self, model: str) -> str:
        """The model's name, or "other" when too many names were seen."""
        if model in self._models:
            return model
        if len(self._models) >= MODELS_TOLD_APART or len(model) > 100:
            return OTHER_MODEL
        self._models.add(model)
        return model

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Raise a counter of the table."""
        key = (name, *labels.items())
        add = self._adders.get(key)
        if add is None:
            counter = self._counters[name]
            add = self._adders[key] = (counter.labels(**labels) if labels else counter).inc
        add(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge of the table."""
        key = (name, *labels.items())
        put = self._setters.get(key)
        if put is None:
            gauge = self._gauges[name]
            put = self._setters[key] = (gauge.labels(**labels) if labels else gauge).set
        put(value)

    def follow(self, name: str, read: Callable[[], float]) -> None:
        """Let a gauge of the table, one without labels, be what is read when it is asked for."""
        self._gauges[name].set_function(read)

    def observe(self, name: str, value: float) -> None:
        """Record a value in a histogram of the table."""
        self._histograms[name].observe(value)

    def summary_call(self, figures: SummaryFigures) -> None:
        """Everything that one call to a summariser tells."""
        self.add("tidegate_summary_calls_total", outcome=figures.outcome)
        self.add("tidegate_summary_prompt_tokens_total", figures.prompt_tokens)
        self.add("tidegate_summary_completion_tokens_total", figures.completion_tokens)
        self.observe("tidegate_summary_seconds", figures.seconds)
