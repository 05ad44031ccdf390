"""The session that `tidegate demo` plays: a user and a coding agent mend a berth booking service.

What the user says, which tools the agent calls and what the tools answer stand here; what the agent
says comes from the model. Nothing is random: every play sends the same.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SYSTEM = (
    "You are a careful coding agent in the repository of `berths`, a service that books moorings "
    "for a small harbour. Call tools to look and to change; say briefly what you found and what "
    "comes next."
)


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of the agent, and what the tool answers."""

    name: str
    arguments: Mapping[str, Any]
    result: str


@dataclass(frozen=True, slots=True)
class Step:
    """What is added before the next request: the user's words, or the results of calls."""

    title: str
    says: str = ""
    calls: Sequence[Call] = ()


def _tool(name: str, purpose: str, **arguments: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": text} for key, text in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": [*arguments]}
    function = {"name": name, "description": purpose, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = (
    _tool("list_files", "List the files under a folder.", folder="the folder"),
    _tool("read_file", "Read a file.", path="the file"),
    _tool("edit_file", "Replace text in a file.", path="the file", old="from", new="to"),
    _tool("run_tests", "Run the tests of one module.", module="the module"),
    _tool("read_log", "Read the service's log of one day.", day="the day"),
)


def _log(day: str, requests: int) -> str:
    """A day of the service, one line for each request; every ninth booking fails."""
    lines = [f"{day} 05:58:02 INFO  berths.app listening port=7040 tide_table=2026 workers=2"]
    for number in range(requests):
        hour, minute, second = 6 + number // 40, number * 7 % 60, number * 13 % 60
        at = f"{day} {hour:02}:{minute:02}:{second:02}"
        berth = f"{'ABCDE'[number % 5]}{number * 3 % 24 + 1:02}"
        nights = number % 6 + 1
        if number % 9 == 4:
            lines.append(
                f"{at} ERROR berths.calendar booking={48200 + number} berth={berth} refused: "
                f"departure is before arrival, nights={-nights}"
            )
        else:
            lines.append(
                f"{at} INFO  berths.calendar booking={48200 + number} berth={berth} "
                f"nights={nights} fee={nights * (1850 + number % 7 * 120)} accepted"
            )
    return "\n".join(lines)


def _module(name: str, purpose: str, functions: Sequence[tuple[str, str]]) -> str:
    """A source file with one function for each (name, sentence)."""
    lines = [f'"""{purpose}"""', "", "from datetime import date, timedelta", ""]
    for index, (function, sentence) in enumerate(functions):
        lines += [
            "",
            f"def {function}(booking, calendar, *, season={index + 1}):",
            f'    """{sentence}"""',
            "    arrival = date.fromisoformat(booking['arrival'])",
            f"    nights = int(booking.get('nights', {index % 4 + 1}))",
            "    departure = arrival + timedelta(days=nights)",
            f"    if departure <= arrival or nights > {20 + index * 3}:",
            f"        raise ValueError('{name}.{function}: departure is before arrival')",
            f"    taken = [row for row in calendar if row['berth'] in booking][:{index + 9}]",
            "    free = all(row['to'] <= arrival or row['from'] >= departure for row in taken)",
            f"    return {{'free': free, 'fee': nights * {1850 + index * 120}, 'season': season}}",
            "",
        ]
    return "\n".join(lines)


def _test_run(module: str, passed: int, failures: Sequence[str]) -> str:
    """What a test run prints."""
    lines = [f"tests/{module}.py::test_case_{number:03} PASSED" for number in range(passed)]
    lines += [f"tests/{module}.py::{failure} FAILED" for failure in failures]
    for failure in failures:
        lines += [
            f"____ {failure} ____",
            "    booking = {'berth': 'B07', 'arrival': '2026-03-28', 'nights': 2}",
            ">   assert quote(booking)['departure'] == '2026-03-30'",
            "E   AssertionError: '2026-03-29' != '2026-03-30'",
        ]
    return "\n".join([*lines, f"==== {len(failures)} failed, {passed} passed ===="])


def _read(path: str, text: str) -> Call:
    return Call("read_file", {"path": path}, text)


def _edit(path: str, old: str, new: str) -> Call:
    return Call("edit_file", {"path": path, "old": old, "new": new}, f"{path}: 1 replacement")


_FILES = "\n".join(
    f"berths/{folder}/{name}.py"
    for folder in ("calendar", "prices", "letters", "importer", "legacy")
    for name in ("__init__", "models", "rules", "seasons", "views", "errors")
)
_CALENDAR = _module(
    "calendar",
    "Which berth is free when.",
    [
        ("is_free", "Whether nobody else has the berth for any night of the booking."),
        ("next_free", "The first arrival from which the berth is free for all nights."),
        ("hold", "Reserve the berth for twenty minutes while the skipper pays."),
        ("release", "Give the berth back when the payment did not come."),
        ("move", "Move a booking to another berth of the same length."),
        ("close_for_repairs", "Take the berth out of the calendar for some nights."),
    ],
)
_PRICES = _module(
    "prices",
    "What a stay costs, in cents.",
    [
        ("base_fee", "The fee of the season for the boat's length."),
        ("winter_discount", "A fifth less between November and the end of February."),
        ("member_discount", "A tenth less for members of the yacht club."),
        ("power", "Shore power by the kilowatt hour, metered at the pillar."),
        ("deposit", "A third of the fee, due within a week."),
        ("late_fee", "Half a night when the boat leaves after noon."),
    ],
)
_LETTERS = _module(
    "letters",
    "The letters that skippers get.",
    [
        ("confirmation", "Sent when the deposit has come."),
        ("reminder", "Sent two weeks before the arrival."),
        ("goodbye", "Sent after the departure, with the final bill."),
        ("waiting_list", "Sent when a berth became free for somebody who waits."),
    ],
)
_IMPORTER = _module(
    "importer",
    "Reads the bookings of the old system.",
    [
        ("parse_row", "One line of the old system's export."),
        ("map_berth", "The old berth numbers, 1 to 118, to the new letters."),
        ("merge_boats", "The same boat under two spellings is one boat."),
        ("check_totals", "The sum of the fees must equal the old ledger."),
        ("report", "What was left out, and why."),
    ],
)

STEPS: tuple[Step, ...] = (
    Step(
        "the task and the rules",
        "The booking service loses one night when a stay crosses the end of March: booking 48217 "
        "was quoted 2026-03-28 to 2026-03-29 although the skipper asked for two nights. Find out "
        "why and mend it.\nAlways write dates as YYYY-MM-DD.\nNever touch anything under "
        "berths/legacy.\nYou must run the tests of a module after every change to it.",
    ),
    Step("list the files", calls=[Call("list_files", {"folder": "berths"}, _FILES)]),
    Step("read the calendar", calls=[_read("berths/calendar/rules.py", _CALENDAR)]),
    Step("read the prices", calls=[_read("berths/prices/rules.py", _PRICES)]),
    Step(
        "run the calendar's tests",
        calls=[
            Call(
                "run_tests",
                {"module": "test_calendar"},
                _test_run("test_calendar", 48, ["test_two_nights_over_the_clock_change"]),
            )
        ],
    ),
    Step(
        "read a long log", calls=[Call("read_log", {"day": "2026-03-27"}, _log("2026-03-27", 300))]
    ),
    Step(
        "the cause",
        "So the clock change is the cause: 2026-03-29 has only 23 hours, and somebody divides "
        "seconds by 86400. Decide where to mend it, in the calendar or where the dates are read, "
        "and tell me why.",
    ),
    Step(
        "edit two modules",
        calls=[
            _edit("berths/calendar/models.py", "seconds // 86400", "(departure - arrival).days"),
            _edit("berths/prices/models.py", "seconds // 86400", "(departure - arrival).days"),
        ],
    ),
    Step(
        "run two test suites",
        calls=[
            Call("run_tests", {"module": "test_calendar"}, _test_run("test_calendar", 49, [])),
            Call(
                "run_tests",
                {"module": "test_prices"},
                _test_run("test_prices", 62, ["test_late_fee_is_half_a_night"]),
            ),
        ],
    ),
    Step("read the seasons", calls=[_read("berths/prices/seasons.py", _PRICES[:2600])]),
    Step(
        "a second wish",
        "Good. The late fee was wrong before, I know that one: it must be half of the *last* "
        "night's fee, not of the first's. Do that too. [[pin]] The harbour office is closed on "
        "Mondays, so no letter may be dated on one.",
    ),
    Step(
        "edit the late fee",
        calls=[_edit("berths/prices/rules.py", "fees[0] // 2", "fees[-1] // 2")],
    ),
    Step(
        "run the prices' tests",
        calls=[Call("run_tests", {"module": "test_prices"}, _test_run("test_prices", 63, []))],
    ),
    Step("read the letters", calls=[_read("berths/letters/rules.py", _LETTERS)]),
    Step(
        "read two logs",
        calls=[
            Call("read_log", {"day": "2026-03-28"}, _log("2026-03-28", 420)),
            Call("read_log", {"day": "2026-03-29"}, _log("2026-03-29", 60)),
        ],
    ),
    Step(
        "count the damage",
        "How many bookings were hit on those two days, and which berths? I have to write to the "
        "skippers. Do not send anything yourself.",
    ),
    Step("read the importer", calls=[_read("berths/importer/rules.py", _IMPORTER)]),
    Step(
        "run the importer's tests",
        calls=[Call("run_tests", {"module": "test_importer"}, _test_run("test_importer", 71, []))],
    ),
    Step(
        "a change of mind",
        "Forget the letters for now, the office does them by hand. Instead look whether the "
        "importer has the same mistake: the old system's export counts nights too.",
    ),
    Step("read the views", calls=[_read("berths/calendar/views.py", _CALENDAR[700:])]),
    Step(
        "edit the importer",
        calls=[_edit("berths/importer/rules.py", "hours / 24", "(departure - arrival).days")],
    ),
    Step(
        "run them once more",
        calls=[Call("run_tests", {"module": "test_importer"}, _test_run("test_importer", 73, []))],
    ),
    Step(
        "read a log after it",
        calls=[Call("read_log", {"day": "2026-03-30"}, _log("2026-03-30", 150))],
    ),
    Step("read the errors", calls=[_read("berths/calendar/errors.py", _CALENDAR[:2400])]),
    Step(
        "a note for the others",
        "Write the note for the change log: what was wrong since when, what is mended, what is "
        "not. Keep it under ten lines.",
    ),
    Step("read the letters' views", calls=[_read("berths/letters/views.py", _LETTERS[300:])]),
    Step(
        "run all tests",
        calls=[
            Call("run_tests", {"module": "test_calendar"}, _test_run("test_calendar", 49, [])),
            Call("run_tests", {"module": "test_prices"}, _test_run("test_prices", 63, [])),
            Call("run_tests", {"module": "test_letters"}, _test_run("test_letters", 31, [])),
        ],
    ),
    Step(
        "does it still know?",
        "Before I merge: how many nights did the skipper of booking 48217 ask for, and how was it "
        "quoted?",
    ),
)


def tool_calls(step: Step, number: int) -> list[dict[str, Any]]:
    """The step's calls as the agent's message carries them."""
    return [
        {
            "id": f"call_{number}_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for index, call in enumerate(step.calls)
    ]


def messages_of(step: Step, number: int) -> list[dict[str, Any]]:
    """What the client adds for the step after the agent's last message."""
    if step.says:
        return [{"role": "user", "content": step.says}]
    return [
        {"role": "tool", "tool_call_id": f"call_{number}_{index}", "content": call.result}
        for index, call in enumerate(step.calls)
    ]
