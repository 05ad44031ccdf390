"""Every log line of a request carries its id."""

import asyncio
import logging
import threading

from proxy.request_ids import (
    LOG_FORMAT,
    LineFormatter,
    RequestIdFilter,
    ServerLinesFilter,
    begin_request,
    current_request_id,
)


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("proxy.x", logging.INFO, "x.py", 1, message, None, None)


async def test_each_request_has_its_own_and_its_tasks_share_it() -> None:
    async def inner() -> str:
        return current_request_id()

    async def request() -> tuple[str, str]:
        return begin_request(), await asyncio.create_task(inner())

    assert current_request_id() == "-"
    first, second = await asyncio.gather(request(), request())
    assert first[0] == first[1]
    assert second[0] == second[1]
    assert first[0] != second[0]


async def test_the_filter_puts_it_on_every_line() -> None:
    request_id = begin_request()
    line = record("hello")
    assert RequestIdFilter().filter(line)
    assert f"request_id={request_id} hello" in LineFormatter().format(line)


def test_lines_are_those_of_the_format_whatever_second_they_are_of() -> None:
    ours, plain = LineFormatter(), logging.Formatter(LOG_FORMAT)
    for created in (1e9, 1e9 + 0.25, 1e9 + 1.007, 1e9 + 0.25, 0.5):
        line = record("hello")
        line.request_id = "-"
        line.created, line.msecs = created, int(created * 1000) % 1000
        assert ours.format(line) == plain.format(line)


def test_only_uvicorns_line_about_a_passed_on_break_is_dropped() -> None:
    lines = ServerLinesFilter("beside")
    assert not lines.filter(record("ASGI callable returned without completing response."))
    assert lines.filter(record("Exception in ASGI application\n"))


def test_a_server_beside_the_commands_own_is_quiet_but_for_warnings() -> None:
    lines = ServerLinesFilter(threading.current_thread().name)
    assert not lines.filter(record("Application startup complete."))
    warning = record("out of files")
    warning.levelno = logging.WARNING
    assert lines.filter(warning)


def test_the_servers_lines_carry_no_error_in_their_name() -> None:
    line = record("Uvicorn running on ...")
    line.name = "uvicorn.error"
    assert ServerLinesFilter("beside").filter(line)
    assert line.name == "uvicorn"
