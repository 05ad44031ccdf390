"""What the beginning of a reply says: known good, an error, or not yet decided.

Known good is the first event that carries content, reasoning, a call, a finish reason or usage;
after it nothing may be replayed. Errors hide in replies of status 200 too, in a dozen shapes; this
module only says that one is there. What it means is decided elsewhere, from the evidence.
"""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from proxy.core.messages import REASONING_FIELDS
from proxy.core.sse import Event

WINDOW_EXCEEDED = "model_context_window_exceeded"

_OUTPUT_FIELDS = (
    *("content", "refusal", "tool_calls", "function_call", "audio", "images"),
    *REASONING_FIELDS,
)
_ZERO_CODES = (None, 0, "0", "", "success")
# Keys under which an envelope tells of an error; most replies have none of them.
_ERROR_KEYS = frozenset(
    {
        *("error", "errors", "error_type", "error_message", "error_msg", "error_code"),
        *("base_resp", "Response"),
    }
)


class Verdict(StrEnum):
    """What is known after an event."""

    UNDECIDED = "undecided"
    GOOD = "good"
    ERROR = "error"
    HELD = "held"  # a `length` finish without output: usage or the end decides


def decode_json(data: bytes) -> Any:
    """The value, or None where it is not JSON. (A JSON null decides nothing either.)"""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def choices_of(value: Any) -> Sequence[Mapping[str, Any]]:
    """The choices that are objects; none for `choices: null`, a missing key, or any other shape."""
    choices = value.get("choices") if isinstance(value, dict) else None
    if not isinstance(choices, list):
        return ()
    return [choice for choice in choices if isinstance(choice, dict)]


def usage_of(value: Any) -> Mapping[str, Any] | None:
    """The usage object that is not empty, also where a vendor puts it inside the first choice."""
    if not isinstance(value, dict):
        return None
    usage = value.get("usage")
    if isinstance(usage, dict) and usage:
        return usage
    for choice in choices_of(value):
        usage = choice.get("usage")
        if isinstance(usage, dict) and usage:
            return usage
    return None


def finish_reason_of(value: Any) -> str | None:
    """The first finish reason that is a non-empty string."""
    for choice in choices_of(value):
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            return reason
    return None


def carries_output(value: Any) -> bool:
    """Whether any choice carries content, reasoning or a call; an empty string carries nothing."""
    for choice in choices_of(value):
        if choice.get("text"):
            return True
        for key in ("delta", "message"):
            part = choice.get(key)
            if isinstance(part, dict):
                for field in _OUTPUT_FIELDS:
                    if part.get(field):
                        return True
    return False


def _reported_output(value: Any) -> bool:
    """Whether usage says that output tokens were made."""
    usage = usage_of(value)
    made = usage.get("completion_tokens") if usage is not None else None
    return isinstance(made, (int, float)) and made > 0


def looks_like_error(value: Any) -> bool:
    """Whether a body or an event carries an error, in any envelope that providers use."""
    if isinstance(value, list):  # Gemini wraps its error in a one-element array
        return len(value) == 1 and not isinstance(value[0], list) and looks_like_error(value[0])
    if not isinstance(value, dict):
        return False
    if value.get("type") == "error" or value.get("object") == "error":
        return True
    if not _ERROR_KEYS.isdisjoint(value) and _names_error(value):
        return True
    for choice in choices_of(value):
        if choice.get("error") or choice.get("finish_reason") == "error":
            return True
    return "choices" not in value and (
        isinstance(value.get("detail"), (str, list))
        or (isinstance(value.get("message"), str) and ("code" in value or "type" in value))
    )


def _names_error(value: Mapping[str, Any]) -> bool:
    """Whether any of the error keys says that there is one."""
    if value.get("error") or value.get("errors"):
        return True
    if any(isinstance(value.get(key), str) for key in ("error_type", "error_message", "error_msg")):
        return True
    base = value.get("base_resp")
    if isinstance(base, dict) and base.get("status_code") not in _ZERO_CODES:
        return True
    response = value.get("Response")
    if isinstance(response, dict) and response.get("Error"):
        return True
    return value.get("error_code") not in _ZERO_CODES


def window_exceeded(value: Any) -> bool:
    """A finished reply that made no output because the window was full, or that may mean so.

    `length` counts too: whether the prompt really filled the window is for the evidence's reader.
    """
    if carries_output(value) or _reported_output(value):
        return False
    return finish_reason_of(value) in (WINDOW_EXCEEDED, "length")


def is_evidence(value: Any) -> bool:
    """Whether a whole body of status 200, read as JSON, says that something went wrong."""
    return looks_like_error(value) or window_exceeded(value)


def event_verdict(event: Event, value: Any) -> Verdict:
    """The verdict on one event by itself; `value` is its data as JSON."""
    if event.oversized:
        return Verdict.GOOD
    if event.event == b"error" or looks_like_error(value):
        return Verdict.ERROR
    if event.done:
        return Verdict.GOOD
    if carries_output(value):
        return Verdict.GOOD
    if window_exceeded(value):
        settled = usage_of(value) is not None or finish_reason_of(value) == WINDOW_EXCEEDED
        return Verdict.ERROR if settled else Verdict.HELD
    if finish_reason_of(value) is not None or usage_of(value) is not None:
        return Verdict.GOOD
    return Verdict.UNDECIDED


class FirstEvents:
    """Reads the first events of a stream until they decide; then `verdict` stays as it is."""

    def __init__(self) -> None:
        """Nothing is known before the first event."""
        self.verdict = Verdict.UNDECIDED
        self.evidence = b""
        # Whether the evidence is a finish without any output, so that no event before it had some.
        self.ended_empty = False
        self._finish: Mapping[str, Any] | None = None

    @property
    def decided(self) -> bool:
        """Whether more events can change nothing."""
        return self.verdict in (Verdict.GOOD, Verdict.ERROR)

    def feed(self, event: Event, value: Any) -> Verdict:
        """The verdict after this event, whose data as JSON is `value`."""
        if self.decided:
            return self.verdict
        verdict = event_verdict(event, value)
        if self._finish is not None:
            self._settle(event, value, verdict)
            return self.verdict
        self.verdict = verdict
        if verdict is Verdict.ERROR:
            self.evidence = event.data
            self.ended_empty = not looks_like_error(value) and window_exceeded(value)
        elif verdict is Verdict.HELD:
            self._finish = value
        return self.verdict

    def end(self) -> Verdict:
        """The verdict when no more events come: a `length` finish still held may be an overflow."""
        if self._finish is not None and not self.decided:
            self._overflowed(None)
        return self.verdict

    def _settle(self, event: Event, value: Any, verdict: Verdict) -> None:
        """What came after a `length` finish without output."""
        usage = usage_of(value)
        if usage is not None and not carries_output(value) and not looks_like_error(value):
            if _reported_output(value):
                self.verdict = Verdict.GOOD
            else:
                self._overflowed(usage)
        elif event.done:
            self._overflowed(None)
        elif verdict in (Verdict.GOOD, Verdict.ERROR):
            self.verdict = verdict
            self.evidence = event.data if verdict is Verdict.ERROR else b""

    def _overflowed(self, usage: Mapping[str, Any] | None) -> None:
        """The finish and the usage, which came apart, become one body of evidence."""
        finish = dict(self._finish or {})
        if usage is not None:
            finish["usage"] = dict(usage)
        self.verdict = Verdict.ERROR
        self.ended_empty = True
        self.evidence = json.dumps(finish).encode()
