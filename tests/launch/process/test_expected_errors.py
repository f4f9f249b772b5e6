"""Errors that end a process in one line, with a status; all others keep their traceback."""

import asyncio
import logging
from typing import Any

import pytest

from headrace.broker.errors import ExpectedError, UserError
from headrace.launch.process import logs, runtime


@logs.one_line_errors(ValueError)
def fails(*errors: Exception, in_tasks: bool) -> int:
    """Fails as told, as a role does: by itself, or in its tasks."""

    async def raise_it(error: Exception) -> None:
        raise error

    async def main() -> int:
        async with asyncio.TaskGroup() as group:
            for error in errors:
                group.create_task(raise_it(error), name="fails")
        return runtime.OK

    if errors and not in_tasks:
        raise errors[0]
    return asyncio.run(main())


@pytest.mark.parametrize("in_tasks", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [(UserError("  one\nline "), runtime.YOUR_INPUT), (ExpectedError("one line"), 1)],
)
def test_an_expected_error_is_one_line_and_a_status(
    error: Exception, status: int, in_tasks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert fails(error, in_tasks=in_tasks) == status
    (record,) = caplog.records
    assert (record.levelno, record.message) == (logging.ERROR, "one line")
    assert (record.name, record.exc_info) == (__name__, None)


def test_what_a_role_names_beside_is_expected_of_its_tasks_only(caplog: Any) -> None:
    assert fails(ValueError("no such network"), in_tasks=True) == runtime.YOUR_INPUT
    assert caplog.messages == ["no such network"]
    with pytest.raises(ValueError, match="a slip"):
        fails(ValueError("a slip"), in_tasks=False)


def test_a_fault_beside_an_expected_error_keeps_its_traceback(caplog: Any) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        fails(UserError("expected"), ZeroDivisionError(), in_tasks=True)
    assert raised.value.subgroup(ZeroDivisionError) is not None
    assert caplog.messages == []


def test_what_ends_well_ends_well() -> None:
    assert fails(in_tasks=True) == runtime.OK
